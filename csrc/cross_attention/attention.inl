// Stacked cross attention of one context item and one query block, from its similarities to the relevance of every
// query. kernels.md §1: the softmax denominator cancels in the cosine, and ‖a‖ = ‖U p‖ needs no attended vector.
#pragma once
#include "cross_attention/problem.h"
#include "pairs/prepare.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Of the published code: added to norms after the root, and the cosine's least denominator.
constexpr float kEps = 1e-8f;

// Similarity-shaped arrays, contexts × queries of the block, row stride ld.
struct AttentionTile {
  const float* similarities;
  float* weights;  // n, what attention weighs; then p, the unnormalised attention
  int64_t ld;
  float* last_features;  // of all contexts, those behind the last whole vector of features
};

// Per query of the block. Each holds whole vectors.
struct Queries {
  float* product;    // Σ p s = q·a
  float* total;      // Σ p
  float* square;     // ‖a‖²
  float* squares;    // the same, a vector of partial sums each
  float* relevance;  // cos(q, a)
  // Of the attended vectors, where they are wanted: 1 / Σ p, and where each goes; else null.
  float* inverse;
  float** attended;
};

static Queries take_queries(int64_t n, Workspace& memory) {
  const int64_t size = pad_columns(n);
  return {memory.floats(size),
          memory.floats(size),
          memory.floats(size),
          memory.floats(size * V::width),
          memory.floats(size),
          memory.floats(size),
          nullptr};
}

// 1 / (norm + eps), what similarities of that norm are multiplied by; zero where the norm is.
static inline F norm_factor(F norm, F eps) {
  return V::select(V::nonzero(norm), V::div(V::set(1.0f), V::add(norm, eps)), V::zero());
}

// Squares beyond the range of float32 are taken of similarities multiplied by this.
constexpr float kSmall = 1.0f / 16777216.0f / 16777216.0f / 16777216.0f;  // 2⁻⁷²

static inline bool overflown(F sum) { return V::any(V::less(V::set(3.4028234e38f), sum)); }

static inline F norm_term(F x, Norm norm) { return norm == Norm::l1 ? V::max(V::sub(V::zero(), x), x) : V::mul(x, x); }

static inline F finish_norm(F sum, Norm norm) { return norm == Norm::l1 ? sum : V::sqrt(sum); }

// exp(x − max) of a row segment into out; returns 1 / Σ.
static float softmax_segment(const float* x, int64_t n, float* out) {
  const F best = V::set(max_of(x, n));
  F sum = V::zero();
  for (int64_t j = 0; j < n; j += V::width) {
    const F e = V::keep_first(exp(V::sub(V::load(x + j, n - j), best)), n - j);
    V::store(out + j, e, n - j);
    sum = V::add(sum, e);
  }
  return 1.0f / V::reduce_add(sum);
}

// softmax(s) of one item's queries, n columns of every context.
static void softmax_logits(const float* s, float* out, int64_t ld, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) {
    const F factor = V::set(softmax_segment(s + r * ld, n, out + r * ld));
    for (int64_t j = 0; j < n; j += V::width) {
      float* at = out + r * ld + j;
      V::store(at, V::mul(V::load(at, n - j), factor), n - j);
    }
  }
}

// x / (‖x‖ + eps) of one item's queries, n columns of `rows` contexts, at most V::width, x = clip(s); `vectors` is how
// many vectors hold n, known so that they stay in registers, or 0 for any number. x is multiplied by `scale` first, and
// eps too. False where the norm overflows: nothing is written then, but for a scaled one.
template <int vectors>
static bool length_logits(const float* s, float* out, int64_t ld, int64_t rows, int64_t n, F slope, Norm norm,
                          float scale) {
  constexpr int kept = vectors > 0 ? vectors : 1;
  const int64_t count = vectors > 0 ? vectors : (n + V::width - 1) / V::width;
  const bool scales = scale != 1.0f;
  F x[V::width][kept], sums[V::width];
  const auto clipped = [&](int64_t i, int64_t v) {
    const int64_t j = v * V::width;
    const F value = clip(V::load(s + i * ld + j, n - j), slope);
    return scales ? V::mul(value, V::set(scale)) : value;
  };
#pragma GCC unroll 16
  for (int i = 0; i < V::width; ++i) {
    sums[i] = V::zero();
    for (int v = 0; v < kept; ++v) x[i][v] = V::zero();
    if (i >= rows) continue;
    for (int64_t v = 0; v < count; ++v) {
      const F value = clipped(i, v);
      if (vectors > 0) x[i][v] = value;
      sums[i] = V::add(sums[i], norm_term(value, norm));
    }
  }
  const F sum = sum_rows(sums);
  if (!scales && overflown(sum)) return false;
  alignas(64) float factors[V::width];
  V::store(factors, norm_factor(finish_norm(sum, norm), V::set(kEps * scale)));
#pragma GCC unroll 16
  for (int i = 0; i < V::width; ++i) {
    if (i >= rows) break;
    const F factor = V::set(factors[i]);
    for (int64_t v = 0; v < count; ++v) {
      const int64_t j = v * V::width;
      V::store(out + i * ld + j, V::mul(vectors > 0 ? x[i][v] : clipped(i, v), factor), n - j);
    }
  }
  return true;
}

// n of one item's queries, columns [c0, c0 + n), normalised along them for every context.
static void normalised_logits(const CrossAttentionOptions& options, const AttentionTile& tile, int64_t rows, int64_t c0,
                              int64_t n) {
  const F slope = V::set(options.clip_slope);
  const float* s = tile.similarities + c0;
  float* out = tile.weights + c0;
  if (options.norm == Norm::softmax) return softmax_logits(s, out, tile.ld, rows, n);
  const auto logits = n <= V::width       ? length_logits<1>
                      : n <= 2 * V::width ? length_logits<2>
                      : n <= 3 * V::width ? length_logits<3>
                                          : length_logits<0>;
  for (int64_t r = 0; r < rows; r += V::width) {
    const int64_t group = rows - r < V::width ? rows - r : V::width, at = r * tile.ld;
    if (logits(s + at, out + at, tile.ld, group, n, slope, options.norm, 1.0f)) continue;
    // Row by row: what brings one into range would leave its neighbours nothing.
    for (int64_t row = at; row < at + group * tile.ld; row += tile.ld) {
      if (!logits(s + row, out + row, tile.ld, 1, n, slope, options.norm, 1.0f)) {
        logits(s + row, out + row, tile.ld, 1, n, slope, options.norm, kSmall);
      }
    }
  }
}

// n of all queries, where they are normalised: zero in the columns of the last vector that no item owns.
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

// cos(q, a) = Σ p s / max(‖q‖ ‖a‖, eps), the floor scaled by the denominator that p lacks; zero where a norm is zero.
static inline void finish_relevance(Queries& queries, int64_t j, const float* query_norms) {
  const F attended = V::sqrt(V::load(queries.square + j));
  const F length = V::mul(V::load(query_norms + j), attended);
  const F least = V::mul(V::set(kEps), V::load(queries.total + j));
  const F cosine = V::div(V::load(queries.product + j), V::max(least, length));
  V::store(queries.relevance + j, V::select(V::nonzero(length), cosine, V::zero()));
}

// p, Σ p s and Σ p of the queries in `vectors` vectors of columns from j on: several at once, for each sum waits for
// itself.
template <int vectors>
static void weigh(const CrossAttentionOptions& options, int64_t rows, const AttentionTile& tile, int64_t j,
                  Queries& queries) {
  const int64_t ld = tile.ld;
  const float* s = tile.similarities + j;
  float* p = tile.weights + j;
  const F lambda = V::set(options.lambda_softmax);
  if (options.norm == Norm::none) {
    const F slope = V::set(options.clip_slope);
    for (int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < vectors; ++v)
        V::store(p + r * ld + v * V::width, clip(V::load(s + r * ld + v * V::width), slope));
    }
  }
  // The largest λn is taken out: weights of 1e-18 squared would leave ‖U p‖² no digits, and λ(n − n′) reaches no
  // infinity where λn would.
  const bool largest = options.lambda_softmax > 0;
  F shift[vectors], product[vectors], total[vectors];
  for (int v = 0; v < vectors; ++v) shift[v] = V::load(p + v * V::width);
  for (int64_t r = 1; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      const F n = V::load(p + r * ld + v * V::width);
      shift[v] = largest ? V::max(shift[v], n) : V::min(shift[v], n);
    }
  }
  for (int v = 0; v < vectors; ++v) product[v] = total[v] = V::zero();
  for (int64_t r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = r * ld + v * V::width;
      const F weight = exp(V::mul(lambda, V::sub(V::load(p + at), shift[v])));
      V::store(p + at, weight);
      product[v] = V::fma(weight, V::load(s + at), product[v]);
      total[v] = V::add(total[v], weight);
    }
  }
  for (int v = 0; v < vectors; ++v) {
    V::store(queries.product + j + v * V::width, product[v]);
    V::store(queries.total + j + v * V::width, total[v]);
    V::store(queries.inverse + j + v * V::width, V::div(V::set(1.0f), total[v]));
  }
}

// Epilogue: squares gain those of the product, summed down its columns; kept too where `kept` is wanted.
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

// Epilogue: the partial sums of every row gain the squares of its products; where attended vectors are wanted, these
// are the products divided by Σ p, features from `column` on, `left` of them or whole vectors.
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

// ‖Σ p c‖² of the block's n queries from the contexts themselves, features along the columns of the product: of few
// queries none is rounded up to a panel.
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

// The attention of all queries of the block over one context item: fills the weights and the queries, and `attended`,
// row stride tile.ld, with what their norms are made of, where that is wanted.
static void attend(const CrossAttentionOptions& options, const RaggedView& query_side, const Rectangle& pairs,
                   const Factor& factor, const QueryBlock& block, const AttentionTile& tile, Queries& queries,
                   float* attended) {
  const int64_t rows = factor.n;
  if (options.norm != Norm::none) block_logits(options, query_side, pairs, block, tile, rows);
  int64_t j = 0;
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
  for (j = 0; j < block.columns; j += V::width) finish_relevance(queries, j, block.norms);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
