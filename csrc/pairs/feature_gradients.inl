// Gradients of feature rows: summed in slices of columns, taken through the L2 normalisation, rounded.
#pragma once
#include "gemm/rows.inl"

namespace crossret {
namespace CROSSRET_ISA {

// sums (rows of the item, dim) += the item's slice of columns [k0, k0 + columns), row stride kSlice.
static void add_slice(const RaggedView& side, int64_t item, int64_t k0, int64_t columns, const float* slice,
                      float* sums) {
  for (int64_t r = 0; r < side.length(item); ++r) {
    float* out = sums + r * side.dim + k0;
    for (int64_t j = 0; j < columns; j += V::width) {
      const int64_t n = columns - j;
      V::store(out + j, V::add(V::load(out + j, n), V::load(slice + r * kSlice + j, n)), n);
    }
  }
}

// out[j] += factor · row[k0 + j], the row normalised where its side is.
static void add_scaled_row(const RaggedView& side, int64_t item, int64_t r, int64_t k0, int64_t columns, float factor,
                           float* out) {
  const void* data = side.row(item, r);
  const F scale = V::set(factor * row_scale(side, item, r));
  for (int64_t j = 0; j < columns; j += V::width) {
    const F x = load_features(data, side.dtype, k0 + j, columns - j);
    V::store(out + j, V::fma(scale, x, V::load(out + j)));
  }
}

static inline void store_features(void* row, Dtype dtype, int64_t k, F v, int64_t n) {
  if (dtype == Dtype::bfloat16) return V::store_bf16(static_cast<uint16_t*>(row) + k, v, n);
  if (dtype == Dtype::float16) return V::store_f16(static_cast<uint16_t*>(row) + k, v, n);
  V::store(static_cast<float*>(row) + k, v, n);
}

// Stores one row's summed gradient in the features' dtype; `out` may be `sum`. Where the side is normalised, the sum g
// is the gradient of x̂ = x / ‖x‖, and that of x is (g − x̂ (x̂ · g)) / ‖x‖.
static void finish_gradient(const RaggedView& side, int64_t item, int64_t r, const float* sum, void* out) {
  const void* data = side.row(item, r);
  const F scale = V::set(row_scale(side, item, r));
  F dot = V::zero();
  for (int64_t k = 0; side.norms != nullptr && k < side.dim; k += V::width) {
    const int64_t n = side.dim - k;
    dot = V::fma(V::mul(load_features(data, side.dtype, k, n), scale), V::load(sum + k, n), dot);
  }
  const F along = V::set(V::reduce_add(dot));
  for (int64_t k = 0; k < side.dim; k += V::width) {
    const int64_t n = side.dim - k;
    F g = V::load(sum + k, n);
    if (side.norms != nullptr) {
      const F unit = V::mul(load_features(data, side.dtype, k, n), scale);
      g = V::mul(V::sub(g, V::mul(along, unit)), scale);
    }
    store_features(out, side.dtype, k, g, n);
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
