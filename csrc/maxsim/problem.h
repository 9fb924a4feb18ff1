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
  int64_t columns;  // queries that are packed together, padded
  int64_t held;     // queries whose best contexts a worker keeps: no fewer than `columns`, nor than one item has
  // The contexts of each item that are compared, as far as it has them: all, unless a pair is cut into parts.
  int64_t first_context;
  int64_t last_context;
  float* scores;  // by slot
  // By slot, for `argmax_row` queries each: the best context, −1 where there is no such query.
  int64_t* argmax;
  int64_t argmax_row;
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
  void (*argmax)(const MaxSimCall&, const Rectangle&, Workspace&);
  // The best similarities of one context item's pairs, query by query; and the score of a pair by its own.
  void (*best)(const MaxSimCall&, const Rectangle&, float* values, Workspace&);
  float (*pool)(const float* values, int64_t queries, Pooling);
  void (*backward)(const MaxSimCall&, const MaxSimGradients&, const Rectangle&, Workspace&);
  void (*feature_gradients)(const MaxSimCall&, const MaxSimGradients&, bool of_images, const ItemPairs&,
                            const JobGroup&, int64_t column, Workspace&);
  // Bytes of workspace that one call of each takes.
  int64_t (*score_bytes)(const MaxSimCall&);
  int64_t (*feature_bytes)(const MaxSimCall&);
};

}  // namespace crossret
