// Products of whole matrices and the entry points of their kernels under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// One factor: rows as long as the product is deep. One of the strides is 1.
struct DenseFactor {
  const float* data;
  int64_t row, k;
};

// out (rows, columns) = left · rightᵀ + bias.
struct DenseCall {
  DenseFactor left, right;
  int64_t rows, columns, depth;
  const float* bias;  // (columns,), or null
  float* out;         // contiguous
  bool bfloat16;      // whether factors are rounded to bfloat16; sums are float32
};

// Part of the depth that is taken at a time.
struct DenseSlice {
  int64_t first, depth;
};

constexpr int64_t kDenseRows = 96;     // rows of a task, at most: whole register tiles and tiles of AMX
constexpr int64_t kDenseDepth = 1024;  // depth of a slice, at most

struct DenseKernels {
  int64_t (*depth)(const DenseCall&, int64_t depth);  // 32-bit elements of a column in panels
  // Packs columns [32 · part, 32 · part + 32). `pack_scratch` and `multiply_scratch` count the workspaces.
  void (*pack)(const DenseCall&, const DenseSlice&, int64_t part, float* panels, Workspace&);
  void (*multiply)(const DenseCall&, const DenseSlice&, int64_t row, int64_t rows, const float* panels, Workspace&);
  void (*pack_scratch)(const DenseCall&, const DenseSlice&, Workspace&);
  void (*multiply_scratch)(const DenseCall&, const DenseSlice&, Workspace&);
  // out[c] = the sum of a factor's elements with k = c, over its rows
  void (*sum_rows)(const DenseFactor&, int64_t rows, int64_t columns, float* out);
};

}  // namespace crossret
