// The backward pass of a pairwise score over threads, in chunks whose workspace is bounded whatever the batch.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "pairs/memory.h"
#include "pairs/plan.h"
#include "pairs/operands.h"
#include "pairs/side_gradient.h"
#include "pairs/walk.h"
#include "pairs/workspace.h"

namespace crossret {

// ∂L/∂score of every pair, by strides: an expanded gradient is never copied.
struct ScoreGradients {
  const float* data;
  int64_t context_stride;  // from pair to pair for a pair list
  int64_t query_stride;

  float of_pair(int64_t k) const { return data[k * context_stride]; }
  float of(int64_t context, int64_t query) const { return data[context * context_stride + query * query_stride]; }
};

// Memory that successive chunks share.
struct BackwardMemory {
  WalkMemory walks;
  Memory kept;               // between the two passes over a chunk
  int64_t kept_at_once = 0;  // floats to allocate for `kept` where chunks fill up: growing would fragment the heap
};

// Some pairs of the batch; the k-th has gradient grads[k] and slot k of the plans.
struct BackwardChunk {
  Pairs pairs;
  std::vector<float> grads;
  std::vector<int64_t> places;  // listed pairs' places in the caller's list
  Plan plan;
  ItemPairsPlan by_context, by_query;
  BackwardMemory* memory;
  double work;  // multiply-adds of either pass, estimated

  // Memory that lasts from the first pass to the second.
  Workspace keep(int64_t bytes) const {
    const int64_t at_once = memory->kept_at_once * static_cast<int64_t>(sizeof(float));
    return Workspace(memory->kept.bytes(std::max(bytes, at_once)));
  }
};

struct BackwardProblem {
  const Operands& operands;
  const PairList* pairs;  // null: all pairs
  ScoreGradients grads;
  SideGradient& context_gradient;
  SideGradient& query_gradient;
  // Floats kept between the two passes over a chunk, for a pair and for a context item.
  std::function<int64_t(int64_t context, int64_t query)> pair_floats;
  std::function<int64_t(int64_t context)> context_floats;
};

// Calls run(chunk) for chunks that together hold every pair with a gradient, and finishes the gradients that it sums.
// Where many are zero, as under a hardest-negative loss, chunks leave those pairs out. A pair comes twice where neither
// side's sums fit the workspace: once for its context, once for its query.
void run_backward(const BackwardProblem& problem, const std::function<void(const BackwardChunk&)>& run);

// First pass over a chunk.
void run_pairs(const BackwardProblem& problem, const BackwardChunk& chunk, const Steps& steps);

// Second pass: run(of_contexts, jobs, group of jobs, column, workspace) for the items of both sides whose sums have
// begun and every slice of their columns.
using FeatureGradients = std::function<void(bool, const ItemPairs&, const JobGroup&, int64_t, Workspace&)>;
void run_feature_gradients(const BackwardProblem& problem, const BackwardChunk& chunk, int64_t bytes,
                           const FeatureGradients& run);

}  // namespace crossret
