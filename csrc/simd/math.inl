// Functions of vectors: exp, clip, sums of rows.
#pragma once

namespace crossret {
namespace CROSSRET_ISA {

using V = Vector;
using F = Vector::F;

// e^(x − n ln 2) − 1, n the integer nearest to x / ln 2.
static inline F exp_rest(F x, F n) {
  F r = V::fma(n, V::set(-0.693359375f), x);  // ln 2 in two parts, the first exact in the product
  r = V::fma(n, V::set(2.12194440e-4f), r);
  F y = V::set(1.9875691500e-4f);
  y = V::fma(y, r, V::set(1.3981999507e-3f));
  y = V::fma(y, r, V::set(8.3334519073e-3f));
  y = V::fma(y, r, V::set(4.1665795894e-2f));
  y = V::fma(y, r, V::set(1.6666665459e-1f));
  y = V::fma(y, r, V::set(5.0000001201e-1f));
  return V::fma(V::mul(r, r), y, r);
}

static inline F exp_power(F x) { return V::round(V::mul(x, V::set(1.44269504f))); }

// max and min return their second operand for NaN, so NaN passes both.
static inline F between(float least, float most, F x) { return V::min(V::set(most), V::max(V::set(least), x)); }

// Within 2 ulp wherever the result is a normal number; NaN stays NaN.
static inline F exp(F x) {
  x = between(-104.0f, 88.7228f, x);
  const F n = exp_power(x);
  return V::scale2(V::add(exp_rest(x, n), V::set(1.0f)), n);
}

// Leaky clip: x above zero, slope · x elsewhere; slope 1 is the identity.
static inline F clip(F x, F slope) { return V::select(V::less(V::zero(), x), x, V::mul(x, slope)); }

// Named: GCC compiles the function that a lambda without captures converts to for the wrong processor.
struct Add {
  F operator()(F a, F b) const { return V::add(a, b); }
};

// (Σ r[0], Σ r[1], …): the sums of `width` vectors as one vector. Overwrites r.
static inline F sum_rows(F* r) { return V::reduce_rows(r, Add{}); }

static inline float max_of(const float* x, int64_t n) {
  float best = x[0];
  for (int64_t i = 1; i < n; ++i) best = x[i] > best || x[i] != x[i] ? x[i] : best;
  return best;
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
