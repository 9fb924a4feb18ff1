// The backward pass of a pairwise score over threads, cut into chunks whose workspace is bounded whatever the batch.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "common/memory.h"
#include "common/plan.h"
#include "common/problem.h"
#include "common/side_gradient.h"
#include "common/workspace.h"

namespace crossret {

// ∂L/∂score of every pair, by strides: an expanded gradient is never copied.
struct ScoreGradients {
  const float* data;
  int64_t image_stride;  // of a pair list: from pair to pair
  int64_t caption_stride;

  float of_pair(int64_t k) const { return data[k * image_stride]; }
  float of(int64_t image, int64_t caption) const { return data[image * image_stride + caption * caption_stride]; }
};

// What one chunk after another uses.
struct BackwardMemory {
  Memory workspaces;
  Memory kept;  // between the two passes over a chunk
  // Floats that are taken for `kept` at once where chunks fill up: growing by what each needs would leave holes.
  int64_t kept_at_once = 0;
};

// Some pairs of the batch; the k-th has gradient grads[k] and is slot k of the plans.
struct BackwardChunk {
  Pairs pairs;
  std::vector<float> grads;
  Plan plan;
  ItemPairsPlan by_image, by_caption;
  BackwardMemory* memory;
  double work;  // multiply-adds of either pass, about

  // Memory for what is kept between the two passes.
  Workspace keep(int64_t bytes) const {
    const int64_t at_once = memory->kept_at_once * static_cast<int64_t>(sizeof(float));
    return Workspace(memory->kept.bytes(std::max(bytes, at_once)));
  }
};

struct BackwardProblem {
  const Side& images;
  const Side& captions;
  const Limits& limits;
  Owner owner;
  const PairList* pairs;  // null: all pairs
  ScoreGradients grads;
  SideGradient& image_gradient;
  SideGradient& caption_gradient;
  // Floats that are kept between the two passes over a chunk, for a pair and for an item of the owner's side.
  std::function<int64_t(int64_t image, int64_t caption)> pair_floats;
  std::function<int64_t(int64_t item)> item_floats;
};

// Calls run(chunk) for chunks that together hold every pair whose gradient is not zero, and finishes the gradients that
// it adds up. Where many are zero, as under a hardest-negative loss, no pair with a zero gradient is in any chunk: it
// costs nothing. A pair comes twice where neither side's sums fit the workspace: once for its image, once for its
// caption.
void run_backward(const BackwardProblem& problem, const std::function<void(const BackwardChunk&)>& run);

// First pass over a chunk: run(rectangle, workspace) for each.
void run_rectangles(const BackwardChunk& chunk, int64_t bytes,
                    const std::function<void(const Rectangle&, Workspace&)>& run);

// Second pass: run(of_images, jobs, group of them, column, workspace) for the items of both sides and every slice of
// their columns. A side that is not summed up at the moment is left out.
using FeatureGradients = std::function<void(bool, const ItemPairs&, const JobGroup&, int64_t, Workspace&)>;
void run_feature_gradients(const BackwardProblem& problem, const BackwardChunk& chunk, int64_t bytes,
                           const FeatureGradients& run);

}  // namespace crossret
