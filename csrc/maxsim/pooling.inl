// Scores of the best similarities that Sum-Max has found, clipped and pooled, and their gradients.
#pragma once
#include "maxsim/problem.h"
#include "pairs/pooling.inl"

namespace crossret {
namespace CROSSRET_ISA {

// The leaky clip: it keeps the order of similarities, so that the best of clipped ones is the best, clipped.
static void clip_best(float* values, int64_t n, const MaxSimOptions& options) {
  if (options.clip_slope == 1.0f) return;
  const F slope = V::set(options.clip_slope);
  for (int64_t j = 0; j < n; j += V::width) V::store(values + j, clip(V::load(values + j, n - j), slope), n - j);
}

// taken[i]: 1 of the `top` largest of n values, of equals the first, NaN ahead of numbers; 0 of the others.
static void mark_top(const float* values, int64_t n, int64_t top, float* taken) {
  for (int64_t i = 0; i < n; ++i) taken[i] = top < n ? 0.0f : 1.0f;
  for (int64_t k = 0; k < (top < n ? top : 0); ++k) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i) {
      if (taken[i] != 0.0f || (best >= 0 && (values[best] != values[best] || values[i] <= values[best]))) continue;
      best = i;
    }
    taken[best] = 1.0f;
  }
}

// The score of n best similarities, which it clips. `taken` has room for n.
static float pool_best(float* values, int64_t n, const MaxSimOptions& options, float* taken) {
  clip_best(values, n, options);
  if (options.pooling != Pooling::topk) return pool(values, n, options.pooling, options.lambda_lse);
  mark_top(values, n, options.top, taken);
  for (int64_t i = 0; i < n; ++i) taken[i] = taken[i] != 0.0f ? values[i] : 0.0f;
  return pool(taken, n, Pooling::sum, options.lambda_lse);
}

// coefs[i] = grad · ∂score/∂values[i] of n best similarities, which it clips.
static void pool_best_gradient(float* values, int64_t n, const MaxSimOptions& options, float grad, float* coefs) {
  clip_best(values, n, options);
  if (options.pooling == Pooling::topk) {
    mark_top(values, n, options.top, coefs);
    for (int64_t i = 0; i < n; ++i) coefs[i] *= grad;
  } else {
    pool_gradient(values, n, options.pooling, options.lambda_lse, grad, coefs);
  }
  for (int64_t i = 0; options.clip_slope != 1.0f && i < n; ++i) {
    if (!(values[i] > 0.0f)) coefs[i] *= options.clip_slope;
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
