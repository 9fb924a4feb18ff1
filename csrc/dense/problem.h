// What products of whole matrices are given, and their entry points under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// One factor: rows of so many elements as the product is deep. Either stride is 1.
struct DenseFactor {
  const float* data;
  int64_t row, k;
};

// out (left's rows × right's rows) = left · rightᵀ + bias.
struct DenseCall {
  DenseFactor left, right;
  int64_t rows, columns, depth;
  const float* bias;  // (columns,), or null
  float* out;         // contiguous
  bool bfloat16;      // whether the factors are rounded to it; sums are float32
};

// So much of the depth at a time.
struct DenseSlice {
  int64_t first, depth;
};

constexpr int64_t kDenseRows = 96;     // of a task, at most: whole register tiles and tiles of AMX
constexpr int64_t kDenseDepth = 1024;  // of a slice, at most

struct DenseKernels {
  int64_t (*depth)(const DenseCall&, int64_t depth);  // 32-bit elements of a column in panels
  // Columns [32 · part, 32 · part + 32) into panels. `workspace` is what `pack_scratch` and `multiply_scratch` count.
  void (*pack)(const DenseCall&, const DenseSlice&, int64_t part, float* panels, Workspace&);
  void (*multiply)(const DenseCall&, const DenseSlice&, int64_t row, int64_t rows, const float* panels, Workspace&);
  void (*pack_scratch)(const DenseCall&, const DenseSlice&, Workspace&);
  void (*multiply_scratch)(const DenseCall&, const DenseSlice&, Workspace&);
  // out[c] = the sum of a factor's elements with k = c, over its rows
  void (*sum_rows)(const DenseFactor&, int64_t rows, int64_t columns, float* out);
};

}  // namespace crossret
