// The backward pass of a pairwise score over threads, cut into chunks whose workspace is bounded whatever the batch.
#pragma once
#include <functional>
#include <vector>

#include "common/plan.h"
#include "common/problem.h"
#include "common/workspace.h"

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
  const PairList* pairs;     // null: all pairs, row by row
  const float* grad_scores;  // of each pair
  // Floats that are kept between the two passes, for a pair and for an item of the owner's side.
  std::function<int64_t(int64_t image, int64_t caption)> pair_floats;
  std::function<int64_t(int64_t item)> item_floats;
};

// Calls run(chunk) for chunks that together hold every pair whose gradient is not zero. Where many are zero, as under a
// hardest-negative loss, no pair with a zero gradient is in any chunk: it costs nothing.
void for_each_backward_chunk(const BackwardProblem& problem, const std::function<void(const BackwardChunk&)>& run);

// First pass over a chunk: run(rectangle, workspace) for each.
void run_rectangles(const BackwardChunk& chunk, int64_t bytes,
                    const std::function<void(const Rectangle&, Workspace&)>& run);

// Second pass: run(of_images, jobs, index, column, gradients, workspace) for every item of both sides and every slice
// of its columns. A side whose gradients are null is left out.
using FeatureGradients = std::function<void(bool, const ItemPairs&, int64_t, int64_t, float*, Workspace&)>;
void run_feature_gradients(const BackwardProblem& problem, const BackwardChunk& chunk, float* image_gradients,
                           float* caption_gradients, int64_t bytes, const FeatureGradients& run);

}  // namespace crossret
