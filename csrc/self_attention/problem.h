// Self-attention within padded items and the entry points of its kernels under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// softmax(λ q kᵀ) v of every head among the rows of an item; rows attend to those where the mask is true.
struct SelfAttentionCall {
  const float* projected;  // (items, rows, 3, heads · dim): queries, keys and values
  const bool* mask;        // (items, rows)
  int64_t items, rows, heads, dim;
  float lambda;
};

struct SelfAttentionKernels {
  void (*attend)(const SelfAttentionCall&, int64_t item, float* out, Workspace&);  // (items, rows, heads · dim)
  // `gradients` are laid out as `projected`.
  void (*differentiate)(const SelfAttentionCall&, const float* grads, int64_t item, float* gradients, Workspace&);
  void (*scratch)(const SelfAttentionCall&, Workspace&);
};

}  // namespace crossret
