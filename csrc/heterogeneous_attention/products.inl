// Products of the layer's backward pass and of the matching: dot products of rows, sums of products in registers.
#pragma once
#include "gemm/dots.inl"
#include "heterogeneous_attention/pack.inl"

namespace crossret {
namespace CROSSRET_ISA {

// n rows of `dim` features.
struct MatchedRows {
  const float* data;
  int64_t n, ld;
  const float* nonzero;          // norm of every unit row: 1, or 0 of a zero row; null where it is not needed
  const float* pairs = nullptr;  // the rows as pairs of bfloat16, where products take these
};

// Rows [first, first + n) of those that `unit_rows` wrote.
static inline MatchedRows matched_rows(const HeterogeneousCall& call, const float* units, const float* pairs,
                                       const float* nonzero, int64_t first, int64_t n) {
  const int64_t ld = layered_row(call);
  return {units + first * ld, n, ld, nonzero + first,
          layered_pairs(call) ? pairs + first * unit_pair_row(call) : nullptr};
}

// Rows with row stride ld; `pairs` receives them as pairs of bfloat16, where products take these.
static MatchedRows as_rows(const HeterogeneousCall& call, const float* data, int64_t n, int64_t ld, float* pairs) {
  if (!layered_pairs(call)) return {data, n, ld, nullptr, nullptr};
  pair_left({data, ld, 1}, n, call.dim, layered_depth(call, call.dim), pairs, unit_pair_row(call));
  return {data, n, ld, nullptr, pairs};
}

// Workspace of dot products of n rows with `columns` rows.
struct DotScratch {
  const float** rows;  // addresses of both
  float* panels;       // the columns, where AMX multiplies

  DotScratch(const HeterogeneousCall& call, int64_t n, int64_t columns, Workspace& memory)
      : rows(reinterpret_cast<const float**>(memory.floats(2 * (n + columns)))),
        panels(memory.floats(Tiles::present ? pad_columns(columns) * unit_pair_row(call) : 0)) {}
};

// out = rows · columnsᵀ, row stride ld.
static void row_dots(const HeterogeneousCall& call, const MatchedRows& rows, const MatchedRows& columns,
                     const DotScratch& scratch, float* out, int64_t ld) {
  const bool pairs = rows.pairs != nullptr && columns.pairs != nullptr;
  const int64_t row = unit_pair_row(call), depth = pairs ? layered_depth(call, call.dim) : call.dim;
  if (pairs && Tiles::present) {
    transpose_to_panels(columns.pairs, row, columns.n, depth, scratch.panels);
    return multiply_either(true, rows.n, columns.n, depth, {rows.pairs, row, 1},
                           {scratch.panels, depth * kPanel, kPanel}, DenseStore{out, ld, columns.n, nullptr, false});
  }
  const float **const of_rows = scratch.rows, **const of_columns = of_rows + rows.n;
  for (int64_t r = 0; r < rows.n; ++r) of_rows[r] = pairs ? rows.pairs + r * row : rows.data + r * rows.ld;
  for (int64_t c = 0; c < columns.n; ++c) {
    of_columns[c] = pairs ? columns.pairs + c * row : columns.data + c * columns.ld;
  }
  multiply_either_dots(pairs, of_rows, rows.n, of_columns, columns.n, depth, out, ld);
}

// Epilogue: C += factor · product, `columns` of it.
struct AddScaled {
  float* c;
  int64_t ld, columns;
  float factor;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        const int64_t left = columns - n - j * V::width;
        float* const out = c + (m + i) * ld + n + j * V::width;
        V::store(out, V::fma(V::set(factor), sums[i][j], V::load(out, left)), left);
      }
    }
  }
};

// One term of a sum of products A · B: B in place, row stride k.
struct Term {
  Left a;
  const float* b;
  int64_t k, depth;
};

template <class Find>
struct SumOfProducts {
  int64_t count;
  const Find& find;  // find(i): the i-th term
  AddScaled out;

  template <int MR, int NV>
  __attribute__((noinline)) void tile(int64_t m, int64_t n) const {
    F sums[MR][NV];
    clear_tile(sums);
    for (int64_t i = 0; i < count; ++i) {
      const Term term = find(i);
      add_to_tile<Floats, false>(sums, term.depth, {term.a.data + m * term.a.row, term.a.row, term.a.k}, term.b + n,
                                 term.k, {});
    }
    out.take(m, n, sums);
  }
};

template <class Find>
static void add_products(int64_t rows, int64_t columns, int64_t count, const Find& find, const AddScaled& out) {
  for_each_tile(rows, columns, SumOfProducts<Find>{count, find, out});
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
