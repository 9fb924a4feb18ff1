// Feature rows of any dtype, brought into the layouts that products read.
#pragma once
#include "pairs/operands.h"
#include "simd/math.inl"

namespace crossret {
namespace CROSSRET_ISA {

static inline F load_features(const void* row, Dtype dtype, int64_t k, int64_t n) {
  if (dtype == Dtype::bfloat16) return V::load_bf16(static_cast<const uint16_t*>(row) + k, n);
  if (dtype == Dtype::float16) return V::load_f16(static_cast<const uint16_t*>(row) + k, n);
  return V::load(static_cast<const float*>(row) + k, n);
}

// Calls write(k, x, n) for every vector x of a row's features, n of them valid, and returns the norm of the vectors
// that it returns, in four independent sums.
template <Dtype dtype, class Write>
static inline float norm_of_written(const void* row, int64_t dim, const Write& write) {
  F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t k = 0;
  for (; k + 4 * V::width <= dim; k += 4 * V::width) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int64_t at = k + j * V::width;
      const F x = write(at, load_features(row, dtype, at, V::width), V::width);
      sums[j] = V::fma(x, x, sums[j]);
    }
  }
  for (; k < dim; k += V::width) {
    const F x = write(k, load_features(row, dtype, k, dim - k), dim - k);
    sums[0] = V::fma(x, x, sums[0]);
  }
  return __builtin_sqrtf(V::reduce_add(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3]))));
}

template <class Write>
static inline float norm_of_written(const void* row, Dtype dtype, int64_t dim, const Write& write) {
  if (dtype == Dtype::bfloat16) return norm_of_written<Dtype::bfloat16>(row, dim, write);
  if (dtype == Dtype::float16) return norm_of_written<Dtype::float16>(row, dim, write);
  return norm_of_written<Dtype::float32>(row, dim, write);
}

// A named function: GCC compiles what a lambda without captures converts to for the wrong processor.
struct Unchanged {
  F operator()(int64_t, F x, int64_t) const { return x; }
};

// ‖row‖₂
static float row_norm(const void* row, Dtype dtype, int64_t dim) {
  return norm_of_written(row, dtype, dim, Unchanged{});
}

// Divisors of the rows of an item: their norms, infinity for zero rows, which then stay zero and get no gradient.
static void row_norms(const RaggedView& side, int64_t item, float* norms) {
  for (int64_t r = 0; r < side.length(item); ++r) {
    const float norm = row_norm(side.row(item, r), side.dtype, side.dim);
    norms[side.items[item].first + r] = norm != 0.0f ? norm : __builtin_inff();
  }
}

static inline float row_scale(const RaggedView& side, int64_t item, int64_t r) {
  return side.norms ? 1.0f / side.norm(item, r) : 1.0f;
}

// Copies rows to float32, four vectors at once, so that loads do not wait for stores.
template <Dtype dtype>
static inline void widen_rows(const RaggedView& side, int64_t item, int64_t first, int64_t rows, float* out,
                              int64_t ld) {
  for (int64_t r = first; r < first + rows; ++r, out += ld) {
    const void* const row = side.row(item, r);
    int64_t k = 0;
    for (; k + 4 * V::width <= side.dim; k += 4 * V::width) {
      F x[4];
      for (int j = 0; j < 4; ++j) x[j] = load_features(row, dtype, k + j * V::width, V::width);
      for (int j = 0; j < 4; ++j) V::store(out + k + j * V::width, x[j]);
    }
    for (; k < side.dim; k += V::width) {
      V::store(out + k, load_features(row, dtype, k, side.dim - k), side.dim - k);
    }
  }
}

static void widen_rows(const RaggedView& side, int64_t item, int64_t first, int64_t rows, float* out, int64_t ld) {
  if (side.dtype == Dtype::bfloat16) return widen_rows<Dtype::bfloat16>(side, item, first, rows, out, ld);
  if (side.dtype == Dtype::float16) return widen_rows<Dtype::float16>(side, item, first, rows, out, ld);
  widen_rows<Dtype::float32>(side, item, first, rows, out, ld);
}

// Copies a row to float32, normalised where the side is, and returns the norm of the copy.
static float copy_floats(const RaggedView& side, int64_t item, int64_t r, float* out) {
  const void* row = side.row(item, r);
  if (side.norms == nullptr) {
    return norm_of_written(row, side.dtype, side.dim, [out](int64_t k, F x, int64_t n) {
      V::store(out + k, x, n);
      return x;
    });
  }
  // Divided, as PyTorch does: multiplying by 1 / ‖row‖ would not give parallel rows the same direction.
  const float norm = side.norm(item, r);
  return norm_of_written(row, side.dtype, side.dim, [out, norm](int64_t k, F x, int64_t n) {
    const F unit = V::div(x, V::set(norm));
    V::store(out + k, unit, n);
    return unit;
  });
}

// The power of two that brings a row of bfloat16 to a norm in [1, 2) without rounding, so that products stay in the
// range of float32; 0 where the row counts as zero.
static float unit_power(float norm) {
  uint32_t bits;
  __builtin_memcpy(&bits, &norm, sizeof bits);
  if ((bits & 0x7F800000u) == 0x7F800000u) return norm == norm ? 0.0f : norm;
  bits &= 0x7F800000u;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return 1.0f / power;
}

// Copies a row of bfloat16 times a power of two and returns the norm of the copy.
static float copy_pairs(const RaggedView& side, int64_t item, int64_t r, float power, uint16_t* out) {
  const F factor = V::set(power);
  return norm_of_written(side.row(item, r), Dtype::bfloat16, side.dim, [out, factor](int64_t k, F x, int64_t n) {
    const F scaled = V::mul(x, factor);
    V::store_bf16(out + k, scaled, n);
    return scaled;
  });
}

// Copies the bfloat16 halves of a row of float32 and returns its norm. x = high + low + rest, |low| ≤ 2⁻⁸ |x| and
// |rest| ≤ 2⁻¹⁷ |x|: the three products of halves but low · low miss a · b by at most
// (2⁻¹⁶ + 2 · 2⁻¹⁷) |a b| = 2⁻¹⁵ |a b|.
static float copy_halves(const RaggedView& side, int64_t item, int64_t r, uint16_t* high, uint16_t* low) {
  const float norm = side.norms ? side.norm(item, r) : 1.0f;
  return norm_of_written(side.row(item, r), side.dtype, side.dim, [=](int64_t k, F x, int64_t n) {
    const F unit = side.norms ? V::div(x, V::set(norm)) : x;
    V::store_bf16(high + k, unit, n);
    // The low half of infinity is 0, not infinity − infinity.
    const F rest = V::sub(unit, V::load_bf16(high + k, n));
    V::store_bf16(low + k, V::select(V::nonzero(V::sub(unit, unit)), V::zero(), rest), n);
    return unit;
  });
}

#if !defined(CROSSRET_AMX)
struct Tiles {  // of an instruction set without AMX
  static constexpr bool present = false;
  static constexpr int64_t rows = 1, depth = 1;
  Tiles() {}
};
#endif

// Pairs of bfloat16 that hold `depth` features, padded to whole tiles.
static inline int64_t paired_depth(int64_t depth) { return round_up((depth + 1) / 2, Tiles::depth); }

// Layout of rows of `depth` features whose products take floats, or bfloat16.
static inline Layout product_layout(bool bfloat16, int64_t depth) {
  const bool pairs = bfloat16 && V::bf16_dots;
  if (pairs) depth = paired_depth(depth);
  return {pairs ? Elements::pairs : Elements::floats, depth, pad_row(depth), false, false};
}

// Layout of a side's rows. Normalised rows of bfloat16 are brought to a norm in [1, 2) only, as the quotient would be
// rounded: scales multiply their products.
static Layout layout_of(const RaggedView& side, bool is_context, bool split) {
  Layout layout = product_layout(side.dtype == Dtype::bfloat16, side.dim);
  if (layout.pairs()) {
    layout.scaled = side.norms != nullptr;
  } else if (Tiles::present && split && side.dtype == Dtype::float32) {
    const int64_t depth = paired_depth(3 * round_up(side.dim, 2));
    layout = {is_context ? Elements::split_context : Elements::split_query, depth, pad_row(depth), false, false};
  }
  layout.copied = Tiles::present && layout.pairs();  // tiles always read sixteen rows
  return layout;
}

// Copies rows of bfloat16, with zeros behind each up to the layout's depth.
static void copy_as_pairs(const Layout& layout, const RaggedView& side, int64_t item, int64_t first, int64_t rows,
                          float* out) {
  for (int64_t r = first; r < first + rows; ++r, out += layout.ld) {
    const uint16_t* const row = static_cast<const uint16_t*>(side.row(item, r));
    uint16_t* const bits = reinterpret_cast<uint16_t*>(out);
    __builtin_memcpy(bits, row, 2 * side.dim);
    __builtin_memset(bits + side.dim, 0, 2 * (2 * layout.depth - side.dim));
  }
}

// Copies a row into its layout, zeros behind it, and returns its norm; `scale` receives the factor of its products.
static float copy_row(const Layout& layout, const RaggedView& side, int64_t item, int64_t r, float* out, float* scale) {
  if (layout.kind == Elements::floats) {
    const float norm = copy_floats(side, item, r, out);
    for (int64_t k = side.dim; k < layout.depth; ++k) out[k] = 0.0f;
    return norm;
  }
  const int64_t half = round_up(side.dim, 2), end = 2 * layout.depth;  // elements of 16 bits
  uint16_t* const bits = reinterpret_cast<uint16_t*>(out);
  if (layout.kind == Elements::pairs) {
    __builtin_memset(bits + side.dim, 0, 2 * (end - side.dim));
    if (!layout.scaled) return copy_pairs(side, item, r, 1.0f, bits);
    const float power = unit_power(side.norm(item, r));
    *scale = power != 0.0f ? row_scale(side, item, r) / power : 0.0f;
    return copy_pairs(side, item, r, power, bits) * *scale;
  }
  __builtin_memset(bits + 3 * half, 0, 2 * (end - 3 * half));
  for (int part = 0; part < 3 && half != side.dim; ++part) bits[part * half + side.dim] = 0;
  const bool is_context = layout.kind == Elements::split_context;
  uint16_t* const low = bits + (is_context ? 2 : 1) * half;
  const float norm = copy_halves(side, item, r, bits, low);
  __builtin_memcpy(bits + (is_context ? 1 : 2) * half, bits, 2 * side.dim);
  return norm;
}

// Pairs of bfloat16, each a rounded number of `first` and one of `second`, where products take pairs; else `first`.
template <class Vec = V>
static inline F pair_of(F first, [[maybe_unused]] F second) {
  if constexpr (Vec::bf16_dots) return Vec::pair(first, second);
  return first;
}

constexpr int64_t kPanel = 2 * V::width;  // columns of a panel

// First element of a column in panels, (panels, depth, kPanel): the right-hand side of products.
static inline float* panel_column(float* panels, int64_t column, int64_t depth) {
  return panels + column / kPanel * kPanel * depth + column % kPanel;
}

// Writes n rows (row stride ld) of `depth` numbers as columns (row stride ld_out), transposed in registers. Columns
// from n up to `width`, which is less than a vector away, become zero.
static void transpose(const float* rows, int64_t ld, int64_t n, int64_t depth, float* out, int64_t ld_out,
                      int64_t width) {
  for (int64_t r = 0; r < n; r += V::width) {
    for (int64_t k = 0; k < depth; k += V::width) {
      F square[V::width];
      for (int i = 0; i < V::width; ++i) {
        square[i] = r + i < n ? V::load(rows + (r + i) * ld + k, depth - k) : V::zero();
      }
      V::transpose(square);
      const int64_t valid = depth - k < V::width ? depth - k : V::width;
      for (int64_t i = 0; i < valid; ++i) V::store(out + (k + i) * ld_out + r, square[i], width - r);
    }
  }
}

// Writes n rows (row stride ld) as the columns of panels `depth` deep. Columns up to a whole vector become zero.
static void transpose_to_panels(const float* rows, int64_t ld, int64_t n, int64_t depth, float* panels) {
  for (int64_t r = 0; r < n; r += kPanel) {
    const int64_t columns = n - r < kPanel ? n - r : kPanel;
    transpose(rows + r * ld, ld, columns, depth, panel_column(panels, r, depth), kPanel, round_up(columns, V::width));
  }
}

// Copies columns [k0, k0 + columns) of an item's rows to panels as deep as the item is long, without a transpose. Later
// rows, and those of item `after`, are prefetched: a part of a row is too short for the hardware prefetcher.
static void item_to_panels(const RaggedView& side, int64_t item, int64_t after, int64_t k0, int64_t columns,
                           float* panels) {
  constexpr int64_t ahead = 4, line = 64;
  const int64_t n = side.length(item), size = side.element_bytes();
  for (int64_t r = 0; r < n; ++r) {
    const bool within = r + ahead < n;
    const int64_t of = within ? item : after, next = within ? r + ahead : r + ahead - n;
    if (next < side.length(of)) {
      const char* const row = static_cast<const char*>(side.row(of, next)) + k0 * size;
      for (int64_t at = 0; at < columns * size; at += line) __builtin_prefetch(row + at, 0, 2);
    }
    const void* data = side.row(item, r);
    const F factor = V::set(row_scale(side, item, r));
    for (int64_t j = 0; j < columns; j += V::width) {
      const F x = load_features(data, side.dtype, k0 + j, columns - j);
      V::store(panel_column(panels, j, n) + r * kPanel, V::mul(x, factor));
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
