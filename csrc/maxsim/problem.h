// What the Sum-Max kernels are given, and their entry points under one instruction set.
#pragma once
#include "common/problem.h"
#include "common/workspace.h"

namespace crossret {

struct MaxSimCall {
  Side images;
  Side captions;
  Direction direction;
  Pooling pooling;
  Limits limits;
  float* scores;  // by slot
};

// The backward pass of some of the pairs: for each query, at offsets[slot], its best context and ∂L/∂ their similarity.
struct MaxSimGradients {
  const float* grad_scores;
  int32_t* best;
  float* coefs;
  const int64_t* offsets;
};

struct MaxSimKernels {
  void (*forward)(const MaxSimCall&, const Rectangle&, Workspace&);
  void (*backward)(const MaxSimCall&, const MaxSimGradients&, const Rectangle&, Workspace&);
  void (*feature_gradients)(const MaxSimCall&, const MaxSimGradients&, bool of_images, const ItemPairs&, int64_t index,
                            int64_t column, float* gradients, Workspace&);
  // Bytes of workspace that one call of each takes.
  int64_t (*score_bytes)(const MaxSimCall&);
  int64_t (*feature_bytes)(const MaxSimCall&);
};

}  // namespace crossret
