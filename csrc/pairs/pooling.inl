// Pooling of one pair's queries into its score (SCAN Eqs. 5–8), and its gradient.
#pragma once
#include "pairs/operands.h"
#include "simd/math.inl"

namespace crossret {
namespace CROSSRET_ISA {

// The logit t = λ (x − greatest) of "softmax": from −100 on, so that no t exp(t) is ∞ × 0.
static F pooling_logit(F difference, float lambda) {
  return V::max(V::set(-100.0f), V::mul(V::set(lambda), difference));
}

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
  if (pooling == Pooling::softmax) {
    const float best = max_of(values, n);
    F weighted = V::zero();
    for (int64_t j = 0; j < n; j += V::width) {
      const F difference = V::sub(V::load(values + j, n - j), V::set(best));
      const F e = V::keep_first(exp(pooling_logit(difference, lambda_lse)), n - j);
      sum = V::add(sum, e);
      weighted = V::add(weighted, V::mul(e, difference));
    }
    return best + V::reduce_add(weighted) / V::reduce_add(sum);
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
  if (pooling == Pooling::softmax) {  // p_i (1 + t_i − Σ p t)
    const F best = V::set(max_of(values, n));
    F sum = V::zero(), weighted = V::zero();
    for (int64_t j = 0; j < n; j += V::width) {
      const F t = pooling_logit(V::sub(V::load(values + j, n - j), best), lambda_lse);
      const F e = V::keep_first(exp(t), n - j);
      sum = V::add(sum, e);
      weighted = V::add(weighted, V::mul(e, t));
    }
    const float total = V::reduce_add(sum);
    const F factor = V::set(grad / total), mean = V::set(1.0f - V::reduce_add(weighted) / total);
    for (int64_t j = 0; j < n; j += V::width) {
      const F t = pooling_logit(V::sub(V::load(values + j, n - j), best), lambda_lse);
      V::store(grads + j, V::mul(V::mul(exp(t), factor), V::add(mean, t)), n - j);
    }
    return;
  }
  const float each = pooling == Pooling::avg ? grad / static_cast<float>(n) : grad;
  for (int64_t i = 0; i < n; ++i) grads[i] = each;
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
