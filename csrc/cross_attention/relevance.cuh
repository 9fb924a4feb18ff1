// SCAN's relevance in CUDA, a number at a time, and its gradients (SCAN Eqs. 1–8; kernels.md §1 and §2). The formulas
// are those of `relevance.inl`; what is bounded here would leave float32's range there.
#pragma once
#include "cross_attention/problem.h"
#include "cuda/device.cuh"

namespace crossret {
namespace gpu {

constexpr float kTiny = 1.1754944e-38f;  // the least float32 of full precision
constexpr float kMostLogit = 3.4e38f;    // so that no difference to the greatest is ∞ − ∞, however large λ is
constexpr float kMostCosine = 2.0f;
constexpr float kMostFactor = 1e30f;  // of gradients' factors
constexpr float kLeastNorm = 1e-18f;  // whose square is in range
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

struct AttentionOptions {
  Norm norm;
  Pooling pooling;
  bool shifted;  // whether the greatest logit is subtracted from all
  bool normalize;
  float slope;  // of the clip below zero, 1 for none
  float lambda_softmax, lambda_lse, empty_score;
};

CROSSRET_DEVICE float inverse(float x) { return x > 0.0f ? 1.0f / x : 0.0f; }
CROSSRET_DEVICE float clipped(float s, float slope) { return s > 0.0f ? s : slope * s; }
CROSSRET_DEVICE float bounded(float x, float most) { return fminf(fmaxf(x, -most), most); }

// The sum of a norm's terms, x² or |x|, and the norm it makes; of the softmax the sum of exponentials.
CROSSRET_DEVICE float add_norm_term(Norm norm, float x, float sum) {
  return fmaf(x, norm == Norm::l2 ? x : x < 0.0f ? -1.0f : 1.0f, sum);
}
CROSSRET_DEVICE float finish_norm(Norm norm, float sum) { return norm == Norm::l2 ? approx_sqrt(sum) : sum; }

// Factor of x, or of the softmax's exponential, in the logit of base 2, λ n log₂e.
CROSSRET_DEVICE float logit_factor(Norm kind, float lambda_softmax, float norm) {
  const float scale = lambda_softmax * kLog2E;
  float factor = scale;
  if (kind == Norm::l2 || kind == Norm::l1) factor = scale * approx_reciprocal(norm + kEps);
  if (kind == Norm::softmax) factor = norm > 0.0f ? scale * approx_reciprocal(norm) : 0.0f;
  return bounded(factor, kMostLogit);
}

// ∂L/∂x from ∂L/∂n: factor ∂L/∂n − along (x, or sign x of L1); of the softmax n (∂L/∂n − along).
struct NormGradient {
  float factor, along;

  // `pull` is Σ x ∂L/∂n along an item's queries, of the softmax Σ n ∂L/∂n.
  CROSSRET_DEVICE static NormGradient of(Norm kind, float norm, float pull) {
    if (kind == Norm::softmax) return {0.0f, pull};
    const float factor = norm > 0.0f ? 1.0f / (norm + kEps) : 0.0f;
    float along = pull * factor * factor;
    if (kind == Norm::l2) along /= fmaxf(norm, kLeastNorm);
    return {factor, bounded(along, kMostFactor)};
  }
  // `x` is n of the softmax.
  CROSSRET_DEVICE float through(Norm kind, float gradient, float x) const {
    if (kind == Norm::softmax) return x * (gradient - along);
    if (kind == Norm::l1) return factor * gradient - along * (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f);
    return factor * gradient - along * x;
  }
};

// r = q · a / max(‖q‖ ‖a‖, ε Σ p) and its derivatives. ∂r/∂(Σ p), where the denominator is ε Σ p, is the same for all
// contexts of a query and so vanishes in the softmax.
struct Relevance {
  float value;        // r
  float of_products;  // ∂r/∂(q · a)
  float of_squares;   // −2 ∂r/∂‖a‖²

  CROSSRET_DEVICE static Relevance of(float row_length, float product, float total, float square) {
    const float length = row_length * approx_sqrt(fmaxf(square, 0.0f)), least = total * kEps;
    const float inverted = approx_reciprocal(fmaxf(fmaxf(length, least), kTiny));
    const float cosine = length > 0.0f ? bounded(product * inverted, kMostCosine) : 0.0f;
    const bool moves = length > 0.0f && length >= least && square > 0.0f;
    return {row_length == row_length ? cosine : NAN, length > 0.0f ? fminf(inverted, kMostFactor) : 0.0f,
            moves ? bounded(cosine / fmaxf(square, kTiny), kMostFactor) : 0.0f};
  }
};

// ∂r/∂p of a weight p: `weighted` is its element of G p.
CROSSRET_DEVICE float weight_derivative(float of_products, float s, float of_squares, float weighted) {
  return fmaf(of_products, s, -(of_squares * weighted));
}

// The relevances of one pair, pooled (SCAN Eqs. 5–8).
struct Pooled {
  // "lse", "softmax": the sum of exp(λ (r − greatest)).
  float sum = 0.0f, greatest = -INFINITY;
  // "max": the row of the greatest; "softmax": the sum of (r − greatest) exp(λ (r − greatest)).
  float detail = 0.0f;

  CROSSRET_DEVICE static bool weighs(const AttentionOptions& options) { return options.pooling == Pooling::softmax; }
  CROSSRET_DEVICE static bool by_exponentials(const AttentionOptions& options) {
    return weighs(options) || options.pooling == Pooling::lse;
  }

  // Adds relevance(row) of every `apart`-th row of [from, to) of a piece; rows are counted from `begin` on.
  template <class Value>
  CROSSRET_DEVICE void add(const AttentionOptions& options, int begin, int from, int to, int apart,
                           const Value& relevance) {
    const float before = greatest;
    for (int row = from; row < to; row += apart) {
      if (relevance(row) > greatest && !weighs(options)) detail = static_cast<float>(begin + row);
      greatest = max_or_nan(greatest, relevance(row));
      if (!by_exponentials(options)) sum += relevance(row);
    }
    if (!by_exponentials(options)) return;
    rescale(options, before, greatest);
    for (int row = from; row < to; row += apart) {
      const float below = relevance(row) - greatest, term = below == 0.0f ? 1.0f : approx_exp2(below * scale(options));
      sum += term;
      if (weighs(options)) detail = fmaf(below, term, detail);
    }
  }

  // Adds those of other rows of the same pair.
  CROSSRET_DEVICE void add(const AttentionOptions& options, Pooled other) {
    const float most = max_or_nan(greatest, other.greatest);
    if (by_exponentials(options)) {
      rescale(options, greatest, most), other.rescale(options, other.greatest, most);
      detail += other.detail;
    } else if (other.greatest > greatest || (other.greatest == greatest && other.detail < detail)) {
      detail = other.detail;
    }
    sum += other.sum, greatest = most;
  }

  CROSSRET_DEVICE float score(const AttentionOptions& options, int count) const {
    if (options.pooling == Pooling::avg) return sum / static_cast<float>(count);
    if (options.pooling == Pooling::max) return greatest;
    if (options.pooling == Pooling::lse) return approx_log2(sum) * kLn2 / options.lambda_lse + greatest;
    if (options.pooling == Pooling::softmax) return greatest + detail / sum;
    return sum;
  }

  // ∂score/∂r of a row.
  CROSSRET_DEVICE float share(const AttentionOptions& options, float relevance, int row, int count) const {
    if (options.pooling == Pooling::lse) {
      return approx_exp2(options.lambda_lse * (relevance - greatest) * kLog2E) / fmaxf(sum, 1.0f);
    }
    if (options.pooling == Pooling::softmax) {  // p (1 + t − Σ p t), t = λ (r − greatest)
      const float t = fmaxf(options.lambda_lse * (relevance - greatest), -100.0f), terms = fmaxf(sum, 1.0f);
      return approx_exp2(t * kLog2E) / terms * (1.0f + t - options.lambda_lse * (detail / terms));
    }
    if (options.pooling == Pooling::max) return detail == static_cast<float>(row) ? 1.0f : 0.0f;
    return options.pooling == Pooling::avg ? 1.0f / static_cast<float>(count) : 1.0f;
  }

 private:
  CROSSRET_DEVICE static float scale(const AttentionOptions& options) { return options.lambda_lse * kLog2E; }

  // Takes sums of differences to `before` to those of `most`; -∞ before has no sums, and 0 · λ may be NaN.
  CROSSRET_DEVICE void rescale(const AttentionOptions& options, float before, float most) {
    if (before == -INFINITY || before == most) return;
    const float rescaled = approx_exp2((before - most) * scale(options));
    if (weighs(options)) detail = rescaled * fmaf(before - most, sum, detail);
    sum *= rescaled;
  }
};

}  // namespace gpu
}  // namespace crossret
