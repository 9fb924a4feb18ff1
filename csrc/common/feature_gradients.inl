// Gradients of feature rows: added to the output in slices of columns, and taken through the L2 normalisation.
namespace crossret {
namespace CROSSRET_ISA {

// gradients (rows of the side × dim, contiguous) += the item's slice [k0, k0 + columns), row stride kSlice.
static void add_slice(const Side& side, int64_t item, int64_t k0, int64_t columns, const float* slice,
                      float* gradients) {
  for (int64_t r = 0; r < side.lengths[item]; ++r) {
    float* out = gradients + (side.starts[item] + r) * side.dim + k0;
    for (int64_t j = 0; j < columns; j += V::width) {
      const int64_t n = columns - j;
      V::store(out + j, V::add(V::load(out + j, n), V::load(slice + r * kSlice + j, n)), n);
    }
  }
}

// out[j] += factor · row[j], row given by its side.
static void add_scaled_row(const Side& side, int64_t row, int64_t k0, int64_t columns, float factor, float* out) {
  const void* data = side.row(row);
  const F scale = V::set(factor * row_scale(side, row));
  for (int64_t j = 0; j < columns; j += V::width) {
    const F x = load_features(data, side.dtype, k0 + j, columns - j);
    V::store(out + j, V::fma(scale, x, V::load(out + j)));
  }
}

// From the gradient of unit rows x / ‖x‖ to that of x, for rows [first, last): (g − x̂ (x̂ · g)) / ‖x‖.
static void unnormalize_gradients(const Side& side, int64_t first, int64_t last, float* gradients) {
  for (int64_t row = first; row < last; ++row) {
    const void* data = side.row(row);
    float* g = gradients + row * side.dim;
    const F scale = V::set(row_scale(side, row));
    F dot = V::zero();
    for (int64_t k = 0; k < side.dim; k += V::width) {
      const int64_t n = side.dim - k;
      dot = V::fma(V::mul(load_features(data, side.dtype, k, n), scale), V::load(g + k, n), dot);
    }
    const F along = V::set(V::reduce_add(dot));
    for (int64_t k = 0; k < side.dim; k += V::width) {
      const int64_t n = side.dim - k;
      const F unit = V::mul(load_features(data, side.dtype, k, n), scale);
      V::store(g + k, V::mul(V::sub(V::load(g + k, n), V::mul(along, unit)), scale), n);
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
