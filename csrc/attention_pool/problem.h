// What attention pooling's kernels are given, and their entry points under one instruction set.
#pragma once
#include "pairs/side.h"
#include "pairs/workspace.h"

namespace crossret {

// Rows of an item averaged by a softmax over them, once for each head. Logits lie as the gradient of the values does: a
// row of so many heads for each row of values, padding included.
struct AttentionPoolCall {
  Side values;
  const float* logits;
  int64_t heads;
  int64_t width;  // of the weights
};

struct AttentionPoolResults {
  float* pooled;   // (items, heads, dim)
  float* weights;  // (items, heads, width), zeros where an item has no row; null where they are not wanted
};

// ∂L/∂ the results, and where those of values and logits go: of an item's rows, no others are touched.
struct AttentionPoolGradients {
  const float* pooled;   // (items, heads, dim)
  const float* weights;  // (items, heads, width), or null
  char* values;          // contiguous rows, or null where it is not wanted
  float* logits;         // (rows, heads), or null
};

struct AttentionPoolKernels {
  // Of an item. `workspace` is what `scratch_bytes` counts.
  void (*pool)(const AttentionPoolCall&, const AttentionPoolResults&, int64_t item, Workspace&);
  void (*differentiate)(const AttentionPoolCall&, const AttentionPoolGradients&, int64_t item, Workspace&);
  void (*scratch)(const AttentionPoolCall&, Workspace&);
};

}  // namespace crossret
