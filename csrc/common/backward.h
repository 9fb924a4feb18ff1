// The backward pass of a pairwise score, cut into chunks whose workspace is bounded whatever the batch.
#pragma once
#include <functional>
#include <vector>

#include "common/plan.h"
#include "common/problem.h"

namespace crossret {

// Some pairs of the batch; the k-th has gradient grads[k] and is slot k of the plan.
struct BackwardChunk {
  Pairs pairs;
  std::vector<float> grads;
  Plan plan;
};

struct BackwardProblem {
  const Side& images;
  const Side& captions;
  const Limits& limits;
  Owner owner;
  const Pairs* pairs;        // null: all pairs, row by row
  const float* grad_scores;  // of each pair
};

// Calls run(chunk) for chunks that hold every pair whose gradient is not zero: a pair without gradient, as most are
// under a hardest-negative loss, costs nothing. `floats(image, caption)` is what a pair keeps between the passes.
void for_each_backward_chunk(const BackwardProblem& problem, const std::function<int64_t(int64_t, int64_t)>& floats,
                             const std::function<void(const BackwardChunk&)>& run);

}  // namespace crossret
