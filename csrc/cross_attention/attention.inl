// Stacked cross attention of one context item and one query block, from their similarities to the relevance of every
// query: ‖a‖ = ‖U p‖, U the triangular factor of the contexts, needs no attended vector (kernels.md §1).
#pragma once
#include "cross_attention/minmax.inl"
#include "cross_attention/relevance.inl"
#include "pairs/prepare.inl"

namespace crossret {
namespace CROSSRET_ISA {

// n of all queries of a block; zeros behind them up to a whole vector.
static void block_logits(const CrossAttentionOptions& options, const RaggedView& queries, const Rectangle& pairs,
                         const QueryBlock& block, const AttentionTile& tile, int64_t rows) {
  int64_t c0 = 0;
  for (int64_t q = block.first; q < block.first + block.count; ++q) {
    const int64_t n = queries.length(pairs.queries[q]);
    normalised_logits(options, tile, rows, c0, n);
    c0 += n;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = c0; j < round_up(c0, V::width); ++j) tile.weights[r * tile.ld + j] = 0.0f;
  }
}

// Epilogue: squares of the product, added down its columns; the product itself goes to `kept` unless that is null.
struct Squares {
  float* squares;
  float* kept;
  int64_t ld;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      F square = V::load(squares + n + j * V::width);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) square = V::fma(sums[i][j], sums[i][j], square);
      V::store(squares + n + j * V::width, square);
    }
    if (kept != nullptr) Store{kept, ld, false}.take(m, n, sums);
  }
};

// Epilogue: squares of the product, added along its rows in partial sums. Attended vectors, where they are wanted, are
// the product divided by Σ p: features from `column` on, `left` of them or, with 0, whole vectors.
struct RowSquares {
  const Queries& queries;
  int64_t column, left;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
    if (queries.attended != nullptr) {
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        float* const out = queries.attended[m + i] + column + n;
        const F inverse = V::set(queries.inverse[m + i]);
#pragma GCC unroll 2
        for (int j = 0; j < NV; ++j) {
          const F a = V::mul(sums[i][j], inverse);
          if (left == 0) {
            V::store(out + j * V::width, a);
          } else {
            V::store(out, a, left);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      float* const at = queries.squares + (m + i) * V::width;
      F square = V::load(at);
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) square = V::fma(sums[i][j], sums[i][j], square);
      V::store(at, square);
    }
  }
};

// ‖a‖² of the block's n queries from the contexts themselves. Features are the columns of the product, so that few
// queries are not padded to a panel.
static void attended_squares(const Factor& factor, int64_t n, const AttentionTile& tile, Queries& queries) {
  const int64_t contexts = factor.n, whole = factor.rows / V::width * V::width, left = factor.rows - whole;
  for (int64_t q = 0; q < round_up(n, V::width); ++q) V::store(queries.squares + q * V::width, V::zero());
  const Left weights{tile.weights, 1, tile.ld};
  multiply(n, whole, AllOf{contexts}, weights, {factor.data, kPanel, factor.ld}, RowSquares{queries, 0, 0});
  if (left > 0) {
    for (int64_t c = 0; c < contexts; ++c) {
      V::store(tile.last_features + c * V::width, V::load(factor.data + c * factor.ld + whole, left));
    }
    multiply(n, left, AllOf{contexts}, weights, {tile.last_features, kPanel, V::width},
             RowSquares{queries, whole, left});
  }
  for (int64_t q = 0; q < n; q += V::width) {
    F sums[V::width];
    for (int i = 0; i < V::width; ++i) sums[i] = V::load(queries.squares + (q + i) * V::width);
    V::store(queries.square + q, sum_rows(sums));
  }
}

// ‖q‖ of a block's queries; null where they count as 1.
static inline const float* query_norms(const CrossAttentionOptions& options, const QueryBlock& block) {
  return options.projects ? nullptr : block.norms;
}

// The attention of a block's queries over one context item: fills the tile's weights and all of `queries`. `attended`,
// unless it is null, receives U p or Cᵀ p, row stride tile.ld.
static void attend(const CrossAttentionOptions& options, const RaggedView& query_side, const Rectangle& pairs,
                   const Factor& factor, const QueryBlock& block, const AttentionTile& tile, Queries& queries,
                   float* attended) {
  const int64_t rows = factor.n;
  if (options.along_queries()) block_logits(options, query_side, pairs, block, tile, rows);
  int64_t j = 0;
  for (; options.norm == Norm::minmax && j < block.columns; j += V::width) spread(options, rows, tile, j, queries);
  for (; j + V::width < block.columns; j += 2 * V::width) weigh<2>(options, rows, tile, j, queries);
  if (j < block.columns) weigh<1>(options, rows, tile, j, queries);
  for (j = 0; j < block.columns; j += V::width) V::store(queries.square + j, V::zero());
  const Squares squares{queries.square, attended, tile.ld};
  const Right weights{tile.weights, kPanel, tile.ld};
  if (factor.triangular) {
    multiply(factor.rows, block.columns, UpperTriangle{rows}, factor.left(), weights, squares);
  } else if (attended != nullptr) {
    multiply(factor.rows, block.columns, AllOf{rows}, factor.left(), weights, squares);
  } else {
    attended_squares(factor, block.columns, tile, queries);
  }
  const float* const norms = query_norms(options, block);
  for (j = 0; j < block.columns; j += V::width) finish_relevance(queries, j, norms);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
