// Pooling of one pair's queries into its score (SCAN Eqs. 5–8), and its gradient.
#pragma once
#include "pairs/operands.h"
#include "simd/math.inl"

namespace crossret {
namespace CROSSRET_ISA {

static float pool(const float* values, int64_t n, Pooling pooling, float lambda_lse) {
  if (pooling == Pooling::max) return max_of(values, n);
  F sum = V::zero();
  if (pooling == Pooling::lse) {
    const float best = max_of(values, n);
    const F lambda = V::set(lambda_lse), shift = V::set(best);
    for (int64_t j = 0; j < n; j += V::width) {
      sum = V::add(sum, V::keep_first(exp(V::mul(lambda, V::sub(V::load(values + j, n - j), shift))), n - j));
    }
    return best + __builtin_logf(V::reduce_add(sum)) / lambda_lse;
  }
  for (int64_t j = 0; j < n; j += V::width) sum = V::add(sum, V::load(values + j, n - j));
  return pooling == Pooling::avg ? V::reduce_add(sum) / static_cast<float>(n) : V::reduce_add(sum);
}

// grads[i] = grad · ∂pool/∂values[i]; the first of equal maxima takes all.
static void pool_gradient(const float* values, int64_t n, Pooling pooling, float lambda_lse, float grad, float* grads) {
  if (pooling == Pooling::max) {
    const float best = max_of(values, n);
    bool taken = false;
    for (int64_t i = 0; i < n; ++i) {
      const bool here = !taken && !(values[i] != best);
      grads[i] = here ? grad : 0.0f;
      taken = taken || here;
    }
    return;
  }
  if (pooling == Pooling::lse) {
    const F lambda = V::set(lambda_lse), shift = V::set(max_of(values, n));
    F sum = V::zero();
    for (int64_t j = 0; j < n; j += V::width) {
      const F e = V::keep_first(exp(V::mul(lambda, V::sub(V::load(values + j, n - j), shift))), n - j);
      V::store(grads + j, e, n - j);
      sum = V::add(sum, e);
    }
    const F factor = V::set(grad / V::reduce_add(sum));
    for (int64_t j = 0; j < n; j += V::width) {
      V::store(grads + j, V::mul(V::load(grads + j, n - j), factor), n - j);
    }
    return;
  }
  const float each = pooling == Pooling::avg ? grad / static_cast<float>(n) : grad;
  for (int64_t i = 0; i < n; ++i) grads[i] = each;
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
