// Products of whole matrices: the right-hand side is packed once, the left-hand side a few rows at a time.
#pragma once
#include "dense/problem.h"
#include "gemm/tile.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Elements of packed factors: floats, floats rounded to bfloat16, or pairs of bfloat16.
enum class DenseElements { floats, rounded, pairs };

static int64_t dense_depth(const DenseCall& call, int64_t depth) { return product_layout(call.bfloat16, depth).depth; }

static inline F dense_load(const DenseFactor& from, int64_t at, int64_t n) { return V::load(from.data + at, n); }

template <DenseElements elements>
static inline F dense_rounded(F x) {
  if constexpr (elements != DenseElements::rounded) return x;
  uint16_t bits[V::width];
  V::store_bf16(bits, x, V::width);
  return V::load_bf16(bits, V::width);
}

template <DenseElements elements>
static inline void dense_store(float* row, int64_t k, F x, int64_t n) {
  if constexpr (elements == DenseElements::pairs) return V::store_bf16(reinterpret_cast<uint16_t*>(row) + k, x, n);
  V::store(row + k, dense_rounded<elements>(x), n);
}

// Packs rows [first, first + rows) of a slice row by row, with zeros behind each.
template <DenseElements elements>
static void dense_rows(const DenseFactor& from, const DenseSlice& slice, int64_t first, int64_t rows,
                       const Layout& layout, float* out) {
  const int64_t depth = slice.depth, start = first * from.row + slice.first * from.k;
  if constexpr (elements == DenseElements::pairs) {
    for (int64_t r = 0; r < rows; ++r) {
      uint16_t* const row = reinterpret_cast<uint16_t*>(out + r * layout.ld);
      __builtin_memset(row + depth, 0, 2 * (2 * layout.depth - depth));
    }
  }
  if (from.k == 1) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < depth; k += V::width) {
        dense_store<elements>(out + r * layout.ld, k, dense_load(from, start + r * from.row + k, depth - k), depth - k);
      }
    }
    return;
  }
  for (int64_t k = 0; k < depth; k += V::width) {
    for (int64_t r = 0; r < rows; r += V::width) {
      F square[V::width];
      for (int64_t i = 0; i < V::width; ++i) {
        square[i] = k + i < depth ? dense_load(from, start + (k + i) * from.k + r, rows - r) : V::zero();
      }
      V::transpose(square);
      for (int64_t i = 0; i < V::width && r + i < rows; ++i) {
        dense_store<elements>(out + (r + i) * layout.ld, k, square[i], depth - k);
      }
    }
  }
}

static void dense_copy(const DenseCall& call, const DenseFactor& from, const DenseSlice& slice, int64_t first,
                       int64_t rows, const Layout& layout, float* out) {
  if (!call.bfloat16) return dense_rows<DenseElements::floats>(from, slice, first, rows, layout, out);
  dense_rows<V::bf16_dots ? DenseElements::pairs : DenseElements::rounded>(from, slice, first, rows, layout, out);
}

// Packs columns [first, first + columns) of a slice, of a factor with row stride 1, as panels without a transpose.
static void dense_columns(const DenseFactor& from, const DenseSlice& slice, int64_t first, int64_t columns,
                          float* out) {
  for (int64_t k = 0; k < slice.depth; ++k) {
    for (int64_t j = 0; j < columns; j += V::width) {
      const F x = dense_load(from, first + j + (slice.first + k) * from.k, columns - j);
      V::store(panel_column(out, j, slice.depth) + k * kPanel, x);
    }
  }
}

static void dense_pack_scratch(const DenseCall& call, const DenseSlice& slice, Workspace& workspace) {
  workspace.floats(kPad * product_layout(call.bfloat16, slice.depth).ld);
}

static void dense_pack(const DenseCall& call, const DenseSlice& slice, int64_t part, float* panels,
                       Workspace& workspace) {
  const DenseFactor& from = call.right;
  const Layout layout = product_layout(call.bfloat16, slice.depth);
  const int64_t first = part * kPad, columns = call.columns - first < kPad ? call.columns - first : kPad;
  float* const out = panels + first * layout.depth;
  if (from.row == 1 && !call.bfloat16) return dense_columns(from, slice, first, columns, out);
  float* const strip = workspace.floats(kPad * layout.ld);
  dense_copy(call, from, slice, first, columns, layout, strip);
  transpose_to_panels(strip, layout.ld, columns, layout.depth, out);
}

// Epilogue: out = or += product + bias, unless the bias is null.
struct DenseStore {
  float* out;
  int64_t ld, columns;
  const float* bias;
  bool accumulate;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      const int64_t column = n + j * V::width, left = columns - column;
      const F more = bias ? V::load(bias + column, left) : V::zero();
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        float* const to = out + (m + i) * ld + column;
        const F sum = V::add(sums[i][j], more);
        V::store(to, accumulate ? V::add(V::load(to, left), sum) : sum, left);
      }
    }
  }
};

static void dense_multiply_scratch(const DenseCall& call, const DenseSlice& slice, Workspace& workspace) {
  workspace.floats(kDenseRows * product_layout(call.bfloat16, slice.depth).ld);
}

static void dense_multiply(const DenseCall& call, const DenseSlice& slice, int64_t row, int64_t rows,
                           const float* panels, Workspace& workspace) {
  const Tiles configured;
  const DenseFactor& from = call.left;
  const Layout layout = product_layout(call.bfloat16, slice.depth);
  float* const copied = workspace.floats(kDenseRows * layout.ld);
  dense_copy(call, from, slice, row, rows, layout, copied);
  float* const out = call.out + row * call.columns;
  // Prefetch of the task that most likely follows.
  const bool more = from.k == 1 && row + 2 * rows <= call.rows && slice.depth == call.depth;
  const Ahead ahead{reinterpret_cast<const char*>(more ? from.data + (row + rows) * from.row : copied),
                    more ? rows * from.row * 4 : 0};
  multiply_rows(layout, 0, layout.depth, rows, call.columns, copied, layout.ld, panels, ahead,
                DenseStore{out, call.columns, call.columns, slice.first == 0 ? call.bias : nullptr, slice.first != 0});
}

// Sums of a few rows at a time, added up: in one chain of thousands the last rows would lose their digits.
static void dense_sum_rows(const DenseFactor& from, int64_t rows, int64_t columns, float* out) {
  constexpr int64_t few = 64;
  for (int64_t first = 0; first < rows; first += few) {
    const int64_t end = first + few < rows ? first + few : rows;
    for (int64_t c = 0; c < columns; c += V::width) {
      const int64_t n = columns - c;
      F sum = V::zero();
      for (int64_t r = first; r < end; ++r) sum = V::add(sum, dense_load(from, r * from.row + c, n));
      V::store(out + c, first == 0 ? sum : V::add(V::load(out + c, n), sum), n);
    }
  }
}

extern const DenseKernels dense_kernels;
const DenseKernels dense_kernels = {
    dense_depth, dense_pack, dense_multiply, dense_pack_scratch, dense_multiply_scratch, dense_sum_rows};

}  // namespace CROSSRET_ISA
}  // namespace crossret
