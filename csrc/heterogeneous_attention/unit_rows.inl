// Layer normalisation and division by the L2 norm of rows, and their gradients.
#pragma once
#include "heterogeneous_attention/products.inl"

namespace crossret {
namespace CROSSRET_ISA {

// term(k, sum) chained over the vectors of a row, in four independent sums.
template <class Term>
static inline float sum_along(int64_t dim, const Term& term) {
  F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t k = 0;
  for (; k + 4 * V::width <= dim; k += 4 * V::width) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] = term(k + j * V::width, sums[j]);
  }
  for (; k < dim; k += V::width) sums[0] = term(k, sums[0]);
  return V::reduce_add(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
}

constexpr float kLayerNormEps = 1e-5f;

// Statistics of a row: its mean, 1 / its standard deviation, and 1 / ‖its normalisation‖, 0 for a zero one.
struct RowForm {
  float mean, scale, inverse;
};

// Rows normalised by the layer and divided by their norm. `out` may be `rows`; `pairs` receives them as pairs of
// bfloat16, where products take these; `nonzero` their norms, 1 or 0; `forms`, unless null, their statistics.
static void unit_rows(const HeterogeneousCall& call, const float* rows, int64_t n, int64_t ld, float* out, float* pairs,
                      float* nonzero, RowForm* forms) {
  const int64_t dim = call.dim;
  const float share = 1.0f / static_cast<float>(dim);
  for (int64_t r = 0; r < n; ++r, rows += ld, out += ld) {
    const float mean = sum_along(dim, [&](int64_t k, F sum) { return V::add(sum, V::load(rows + k)); }) * share;
    const float square = sum_along(dim, [&](int64_t k, F sum) {  // without the zeros behind the row
      const F x = V::keep_first(V::sub(V::load(rows + k), V::set(mean)), dim - k);
      return V::fma(x, x, sum);
    });
    const float scale = 1.0f / __builtin_sqrtf(square * share + kLayerNormEps);
    const float length = __builtin_sqrtf(sum_along(dim, [&](int64_t k, F sum) {
      const F x = V::mul(V::sub(V::load(rows + k), V::set(mean)), V::set(scale));
      const F y = V::fma(x, V::load(call.norm_weight + k, dim - k), V::load(call.norm_bias + k, dim - k));
      V::store(out + k, y);
      return V::fma(y, y, sum);
    }));
    const float inverse = length != 0.0f ? 1.0f / length : 0.0f;
    for (int64_t k = 0; k < dim; k += V::width) {
      const F x = V::mul(V::load(out + k), V::set(inverse));
      V::store(out + k, x);
      if (layered_pairs(call)) V::store_bf16(reinterpret_cast<uint16_t*>(pairs) + k, x, V::width);
    }
    for (int64_t k = round_up(dim, V::width); k < 2 * layered_depth(call, dim) && layered_pairs(call); k += V::width) {
      V::store_bf16(reinterpret_cast<uint16_t*>(pairs) + k, V::zero(), V::width);
    }
    pairs += unit_pair_row(call);
    nonzero[r] = inverse != 0.0f ? 1.0f : 0.0f;
    if (forms != nullptr) forms[r] = {mean, scale, inverse};
  }
}

// ∂L/∂rows in place of ∂L/∂units; `norms` (2, dim) gain the gradients of the layer normalisation's weight and bias.
static void unit_row_gradients(const HeterogeneousCall& call, const float* rows, const float* units,
                               const RowForm* forms, int64_t n, int64_t ld, float* grads, float* norms) {
  const int64_t dim = call.dim;
  const float share = 1.0f / static_cast<float>(dim);
  for (int64_t r = 0; r < n; ++r, rows += ld, units += ld, grads += ld) {
    const float along =
        sum_along(dim, [&](int64_t k, F sum) { return V::fma(V::load(units + k), V::load(grads + k), sum); });
    const F back = V::set(-along), inverse = V::set(forms[r].inverse);
    const F mean = V::set(forms[r].mean), scale = V::set(forms[r].scale);
    F products[2] = {V::zero(), V::zero()};
    const F shift = V::set(share * sum_along(dim, [&](int64_t k, F sum) {
                             const int64_t left = dim - k;
                             const F dy = V::mul(V::fma(V::load(units + k), back, V::load(grads + k)), inverse);
                             const F x = V::mul(V::sub(V::load(rows + k), mean), scale),
                                     dx = V::mul(dy, V::load(call.norm_weight + k, left));
                             V::store(norms + k, V::fma(dy, x, V::load(norms + k, left)), left);
                             V::store(norms + dim + k, V::add(dy, V::load(norms + dim + k, left)), left);
                             products[k / V::width % 2] = V::fma(dx, x, products[k / V::width % 2]);
                             V::store(grads + k, dx);
                             return V::add(sum, dx);
                           }));
    const F tilt = V::set(V::reduce_add(V::add(products[0], products[1])) * share);
    for (int64_t k = 0; k < dim; k += V::width) {
      const F x = V::mul(V::sub(V::load(rows + k), mean), scale);
      V::store(grads + k, V::mul(scale, V::sub(V::sub(V::load(grads + k), shift), V::mul(x, tilt))));
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
