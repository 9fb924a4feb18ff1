// SCAN's relevance of queries to the contexts of one item, and its gradients (SCAN Eqs. 1–4; kernels.md §1 and §2):
//   s = c · q     x = clip(s)     n = x / (‖x‖ + ε) along an item's queries, or softmax(x)     p = exp(λ n)
//   a = Σ p c     r = q · a / max(‖q‖ ‖a‖, ε Σ p)
// The softmax's denominator Σ p cancels in the cosine. Contexts are rows and queries columns of all arrays.
#pragma once
#include "cross_attention/problem.h"
#include "pairs/workspace.h"
#include "simd/math.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Arrays of one item's contexts × a block's queries, row stride ld.
struct AttentionTile {
  const float* similarities;
  float* weights;  // n, but of min-max attention; then p
  int64_t ld;
  float* last_features;  // of all contexts, features behind the last whole vector
};

// Arrays of a block's queries, padded to whole vectors.
struct Queries {
  float* product;    // Σ p s = q · a
  float* total;      // Σ p
  float* square;     // ‖a‖²
  float* squares;    // ‖a‖² in V::width partial sums
  float* relevance;  // r
  float* inverse;    // 1 / Σ p
  float** attended;  // destinations of attended vectors; null where these are not wanted
};

static Queries take_queries(int64_t n, Workspace& memory) {
  const int64_t size = pad_columns(n);
  float *const product = memory.floats(size), *const total = memory.floats(size), *const square = memory.floats(size);
  float *const squares = memory.floats(size * V::width), *const relevance = memory.floats(size);
  return {product, total, square, squares, relevance, memory.floats(size), nullptr};
}

// Gradients of a block's queries.
struct QueryGradients {
  float* relevance;     // ∂L/∂r
  float* product;       // ∂L/∂(Σ p s)
  float* twice_square;  // 2 ∂L/∂‖a‖²
  float* own;           // factor of the query's row in its own gradient
};

// Scale of x whose squares overflow float32: 2⁻⁷².
constexpr float kSmall = 1.0f / 16777216.0f / 16777216.0f / 16777216.0f;

static inline bool overflown(F sum) { return V::any(V::less(V::set(3.4028234e38f), sum)); }

// The norm as a sum of terms and what is made of the sum.
static inline F norm_term(F x, Norm norm) { return norm == Norm::l1 ? V::max(V::sub(V::zero(), x), x) : V::mul(x, x); }

static inline F finish_norm(F sum, Norm norm) { return norm == Norm::l1 ? sum : V::sqrt(sum); }

// 1 / (norm + ε); zero where the norm is zero.
static inline F norm_factor(F norm, F eps) {
  return V::select(V::nonzero(norm), V::div(V::set(1.0f), V::add(norm, eps)), V::zero());
}

// ∂L/∂x = own ∂L/∂n − shared (x, or sign x of L1), from the norm's sum and Σ x ∂L/∂n; both zero where the norm is zero.
struct NormGradient {
  F own, shared;
};

static inline NormGradient norm_gradient(Norm norm, F sum, F dot, F eps) {
  const F length = finish_norm(sum, norm);
  const auto valid = V::nonzero(length);
  const F inverse = V::div(V::set(1.0f), V::add(length, eps));
  F shared = V::mul(V::mul(dot, inverse), inverse);
  if (norm == Norm::l2) shared = V::div(shared, length);
  return {V::select(valid, inverse, V::zero()), V::select(valid, shared, V::zero())};
}

static inline F direction_of(F x, Norm norm) {
  if (norm == Norm::l2) return x;
  const F one = V::set(1.0f), zero = V::zero();
  return V::sub(V::select(V::less(zero, x), one, zero), V::select(V::less(x, zero), one, zero));
}

// exp(x − max) of n columns of a row into out; returns 1 / Σ.
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

// softmax(s) of one item's n columns, for every context.
static void softmax_logits(const float* s, float* out, int64_t ld, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) {
    const F factor = V::set(softmax_segment(s + r * ld, n, out + r * ld));
    for (int64_t j = 0; j < n; j += V::width) {
      float* at = out + r * ld + j;
      V::store(at, V::mul(V::load(at, n - j), factor), n - j);
    }
  }
}

// e (∂L/∂n − Σ e ∂L/∂n) in place of ∂L/∂n, e = softmax(s) of n columns of a row. `scratch` holds n.
static void softmax_segment_gradient(const float* s, int64_t n, float* dn, float* scratch) {
  const F inverse = V::set(softmax_segment(s, n, scratch));
  F dot = V::zero();
  for (int64_t j = 0; j < n; j += V::width) {
    const F e = V::mul(V::load(scratch + j, n - j), inverse);
    V::store(scratch + j, e, n - j);
    dot = V::fma(e, V::load(dn + j, n - j), dot);
  }
  const F shift = V::set(V::reduce_add(dot));
  for (int64_t j = 0; j < n; j += V::width) {
    V::store(dn + j, V::mul(V::load(scratch + j, n - j), V::sub(V::load(dn + j, n - j), shift)), n - j);
  }
}

// x / (‖x‖ + ε) of one item's n columns of `rows` contexts, at most V::width. `vectors` is how many vectors hold n,
// known so that x stays in registers, or 0 for any number. x and ε are multiplied by `scale`. Returns false, and writes
// nothing, where the norm overflows at scale 1.
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

// ∂L/∂x in place of ∂L/∂n, of the same columns and contexts, with the same scale and result.
static bool length_gradients(const float* s, float* dn, int64_t ld, int64_t rows, int64_t n, F slope, Norm norm,
                             float scale) {
  const auto scaled = [&](int64_t i, int64_t j) {
    return V::mul(clip(V::load(s + i * ld + j, n - j), slope), V::set(scale));
  };
  F sums[V::width], dots[V::width];
  for (int i = 0; i < V::width; ++i) {
    sums[i] = dots[i] = V::zero();
    for (int64_t j = 0; i < rows && j < n; j += V::width) {
      const F x = scaled(i, j);
      sums[i] = V::add(sums[i], norm_term(x, norm));
      dots[i] = V::fma(x, V::load(dn + i * ld + j, n - j), dots[i]);
    }
  }
  const F sum = sum_rows(sums), dot = sum_rows(dots);
  if (scale == 1.0f && overflown(sum)) return false;
  const NormGradient gradient = norm_gradient(norm, sum, dot, V::set(kEps * scale));
  alignas(64) float own[V::width], shared[V::width];
  V::store(own, gradient.own);
  V::store(shared, gradient.shared);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; j += V::width) {
      float* at = dn + i * ld + j;
      const F pulled = V::mul(V::set(shared[i]), direction_of(scaled(i, j), norm));
      V::store(at, V::mul(V::sub(V::mul(V::set(own[i]), V::load(at, n - j)), pulled), V::set(scale)), n - j);
    }
  }
  return true;
}

// Calls run(first cell, contexts, scale) for V::width contexts at a time. Where it returns false, each of them is taken
// alone, and scaled where its own norm overflows: one scale for all would take the digits of the others.
template <class Run>
static inline void in_range(int64_t rows, int64_t ld, const Run& run) {
  for (int64_t r = 0; r < rows; r += V::width) {
    const int64_t count = rows - r < V::width ? rows - r : V::width;
    if (run(r * ld, count, 1.0f)) continue;
    for (int64_t at = r * ld; at < (r + count) * ld; at += ld) {
      if (!run(at, 1, 1.0f)) run(at, 1, kSmall);
    }
  }
}

// n of one item's queries, columns [c0, c0 + n).
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
  in_range(rows, tile.ld, [&](int64_t at, int64_t count, float scale) {
    return logits(s + at, out + at, tile.ld, count, n, slope, options.norm, scale);
  });
}

// ∂L/∂x of the same columns, in place of ∂L/∂n. `scratch` holds n.
static void norm_gradients(const CrossAttentionOptions& options, const AttentionTile& tile, float* weight_grads,
                           int64_t rows, int64_t c0, int64_t n, float* scratch) {
  const F slope = V::set(options.clip_slope);
  const float* s = tile.similarities + c0;
  float* dn = weight_grads + c0;
  const int64_t ld = tile.ld;
  if (options.norm == Norm::softmax) {
    for (int64_t r = 0; r < rows; ++r) softmax_segment_gradient(s + r * ld, n, dn + r * ld, scratch);
    return;
  }
  in_range(rows, ld, [&](int64_t at, int64_t count, float scale) {
    return length_gradients(s + at, dn + at, ld, count, n, slope, options.norm, scale);
  });
}

// Σ p s and Σ p of one vector of queries.
static inline void keep_sums(Queries& queries, int64_t j, F product, F total) {
  V::store(queries.product + j, product);
  V::store(queries.total + j, total);
  V::store(queries.inverse + j, V::div(V::set(1.0f), total));
}

// Focal attention (BFAN) of one vector of queries: zeros in place of weights that are not above a query's mean, and
// sums of those that are. Weights that rounding alone keeps apart, as all are of a query that is its item's only one,
// count as equal to the mean or above it: so some always stay.
static void focus(int64_t rows, const AttentionTile& tile, int64_t j, Queries& queries) {
  const F count = V::set(static_cast<float>(rows));
  const F most = V::mul(V::load(queries.total + j), V::set(1.0f - kFocalSlack));
  F product = V::zero(), total = V::zero();
  for (int64_t at = j; at < rows * tile.ld; at += tile.ld) {
    const F p = V::load(tile.weights + at);
    const F kept = V::select(V::less(most, V::mul(p, count)), p, V::mul(p, V::zero()));  // NaN stays
    V::store(tile.weights + at, kept);
    product = V::fma(kept, V::load(tile.similarities + at), product);
    total = V::add(total, kept);
  }
  keep_sums(queries, j, product, total);
}

// p, Σ p s and Σ p of `vectors` vectors of queries from column j on: several, as each sum is a chain of additions.
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
  // The largest λn is taken out: squares of small weights would leave ‖a‖² no digits, and λ(n − n′) is finite where λn
  // is not.
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
  for (int v = 0; v < vectors; ++v) keep_sums(queries, j + v * V::width, product[v], total[v]);
  for (int v = 0; options.focal && v < vectors; ++v) focus(rows, tile, j + v * V::width, queries);
}

// ‖q‖ of one vector of queries, of which there are none where they count as 1.
static inline F query_lengths(const float* query_norms, int64_t j) {
  return query_norms == nullptr ? V::set(1.0f) : V::load(query_norms + j);
}

// r of one vector of queries; zero where a norm is zero.
static inline void finish_relevance(Queries& queries, int64_t j, const float* query_norms) {
  const F attended = V::sqrt(V::load(queries.square + j));
  const F length = V::mul(query_lengths(query_norms, j), attended);
  const F least = V::mul(V::set(kEps), V::load(queries.total + j));
  const F cosine = V::div(V::load(queries.product + j), V::max(least, length));
  V::store(queries.relevance + j, V::select(V::nonzero(length), cosine, V::zero()));
}

// The other gradients from ∂L/∂r of one vector of queries. ∂L/∂(Σ p), where the denominator is ε Σ p, is the same for
// all contexts and so vanishes in the softmax.
static void relevance_gradient(const Queries& queries, const float* query_norms, int64_t j, QueryGradients& grads) {
  const F norm = query_lengths(query_norms, j), square = V::load(queries.square + j);
  const F grad = V::load(grads.relevance + j);
  const F length = V::mul(norm, V::sqrt(square)), least = V::mul(V::set(kEps), V::load(queries.total + j));
  const auto valid = V::nonzero(length);
  const F zero = V::zero();
  const F pull = V::sub(zero, V::mul(grad, V::load(queries.relevance + j)));  // −g r
  const F kept = V::select(V::less(length, least), zero, pull);
  V::store(grads.product + j, V::select(valid, V::div(grad, V::max(least, length)), zero));
  V::store(grads.twice_square + j, V::select(valid, V::div(kept, square), zero));
  V::store(grads.own + j, query_norms == nullptr ? zero : V::select(valid, V::div(kept, V::mul(norm, norm)), zero));
}

// ∂L/∂p of one vector of queries but for what goes through Σ p, in place of G p, G = C Cᵀ; and 2 ∂L/∂‖a‖² p in
// scaled_weights. `given` is null or ∂L/∂(p / Σ p) besides. Returns their mean by p: it is what goes through Σ p, as
// results are the same of all multiples of p. Where nothing does it is rounding, which λ and long features would
// magnify.
static F weight_gradients(int64_t rows, const AttentionTile& tile, const Queries& queries, const float* query_norms,
                          int64_t j, QueryGradients& grads, const float* given, float* weight_grads,
                          float* scaled_weights) {
  relevance_gradient(queries, query_norms, j, grads);
  const F inverse = V::load(queries.inverse + j);
  const F product = V::load(grads.product + j), square = V::load(grads.twice_square + j);
  F dot = V::zero();
  for (int64_t at = j; at < rows * tile.ld; at += tile.ld) {
    const F p = V::load(tile.weights + at), s = V::load(tile.similarities + at);
    F dp = V::fma(product, s, V::mul(square, V::load(weight_grads + at)));
    if (given != nullptr) dp = V::fma(V::load(given + at), inverse, dp);
    dot = V::fma(p, dp, dot);
    V::store(weight_grads + at, dp);
    V::store(scaled_weights + at, V::mul(square, p));
  }
  return V::div(dot, V::load(queries.total + j));
}

// ∂L/∂n of one vector of queries, in place of ∂L/∂p, whose mean it takes out.
static void logit_gradients(float lambda_softmax, int64_t rows, const AttentionTile& tile, int64_t j, F mean,
                            float* weight_grads) {
  const F lambda = V::set(lambda_softmax);
  for (int64_t at = j; at < rows * tile.ld; at += tile.ld) {
    const F p = V::mul(lambda, V::load(tile.weights + at));
    V::store(weight_grads + at, V::mul(p, V::sub(V::load(weight_grads + at), mean)));
  }
}

// ∂L/∂s of a vector of cells: from ∂L/∂x through the clip, and through q · a.
static inline F similarity_gradient(F s, F slope, F dx, F product, F p) {
  return V::fma(product, p, V::mul(dx, V::select(V::less(V::zero(), s), V::set(1.0f), slope)));
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
