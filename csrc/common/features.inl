// Feature rows of any dtype, brought into the layouts that the block product reads.
namespace crossret {
namespace CROSSRET_ISA {

static inline F load_features(const void* row, Dtype dtype, int64_t k, int64_t n) {
  switch (dtype) {
    case Dtype::bfloat16:
      return V::load_bf16(static_cast<const uint16_t*>(row) + k, n);
    case Dtype::float16:
      return V::load_f16(static_cast<const uint16_t*>(row) + k, n);
    default:
      return V::load(static_cast<const float*>(row) + k, n);
  }
}

// Calls write(k, x, n) for a row's features x = row[k … k + width), n of which are there, and returns the norm of what
// it gives back. Four vectors at once: a sum waits for itself.
template <Dtype dtype, class Write>
static inline float norm_of_written(const void* row, int64_t dim, const Write& write) {
  F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t k = 0;
  for (; k + 4 * V::width <= dim; k += 4 * V::width) {
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
  switch (dtype) {
    case Dtype::bfloat16:
      return norm_of_written<Dtype::bfloat16>(row, dim, write);
    case Dtype::float16:
      return norm_of_written<Dtype::float16>(row, dim, write);
    default:
      return norm_of_written<Dtype::float32>(row, dim, write);
  }
}

struct Unchanged {
  F operator()(int64_t, F x, int64_t) const { return x; }
};

// ‖row‖₂
static float row_norm(const void* row, Dtype dtype, int64_t dim) {
  return norm_of_written(row, dtype, dim, Unchanged{});
}

// What rows [first, last) are divided by to be normalised: their norm, infinity for zero rows, which so stay zero and
// get no gradient.
static void row_norms(const Side& side, int64_t first, int64_t last, float* norms) {
  for (int64_t row = first; row < last; ++row) {
    const float norm = row_norm(side.row(row), side.dtype, side.dim);
    norms[row] = norm != 0.0f ? norm : __builtin_inff();
  }
}

static inline float row_scale(const Side& side, int64_t row) { return side.norms ? 1.0f / side.norms[row] : 1.0f; }

// Copies a row to float32, normalised where the side is, and returns the norm of the copy.
static float copy_row(const Side& side, int64_t row, float* out) {
  if (side.norms == nullptr) {
    return norm_of_written(side.row(row), side.dtype, side.dim, [out](int64_t k, F x, int64_t n) {
      V::store(out + k, x, n);
      return x;
    });
  }
  // Divided, as PyTorch does: a product with 1 / ‖row‖ would not give parallel rows the same direction.
  const float norm = side.norms[row];
  return norm_of_written(side.row(row), side.dtype, side.dim, [out, norm](int64_t k, F x, int64_t n) {
    const F unit = V::div(x, V::set(norm));
    V::store(out + k, unit, n);
    return unit;
  });
}

// Copies a row of bfloat16 as it is, with a zero behind an odd last one.
static void copy_pairs(const Side& side, int64_t row, float* out) {
  __builtin_memcpy(out, side.row(row), 2 * side.dim);
  if (side.dim % 2 != 0) __builtin_memset(reinterpret_cast<char*>(out) + 2 * side.dim, 0, 2);
}

// What a row of bfloat16 is multiplied by so that its norm lies in [1, 2): a power of two, which changes no digit, and
// 0 where the row counts as zero. Products of rows as they are could leave the range of float32.
static float unit_power(float norm) {
  uint32_t bits;
  __builtin_memcpy(&bits, &norm, sizeof bits);
  if ((bits & 0x7F800000u) == 0x7F800000u) return norm == norm ? 0.0f : norm;
  bits &= 0x7F800000u;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return 1.0f / power;
}

// Multiplies every bfloat16 of a copied row by a power of two.
static void scale_pairs(float* row, int64_t elements, float power) {
  for (int64_t k = 0; k < elements; ++k) {
    uint32_t pair;
    __builtin_memcpy(&pair, row + k, sizeof pair);
    const uint32_t bits[2] = {pair << 16, pair & 0xFFFF0000u};
    float values[2];
    __builtin_memcpy(values, bits, sizeof values);
    values[0] *= power;
    values[1] *= power;
    uint32_t scaled[2];
    __builtin_memcpy(scaled, values, sizeof scaled);
    pair = scaled[0] >> 16 | (scaled[1] & 0xFFFF0000u);
    __builtin_memcpy(row + k, &pair, sizeof pair);
  }
}

// Whether rows are copied as pairs of bfloat16 and multiplied as such; otherwise they are brought to float32.
static inline bool keeps_pairs(const Side& side) { return V::bf16_dots && side.dtype == Dtype::bfloat16; }

// 32-bit elements of a copied row.
static inline int64_t row_elements(const Side& side) { return keeps_pairs(side) ? (side.dim + 1) / 2 : side.dim; }

// Rows as products read them. Normalised pairs are brought to a norm in [1, 2) only, for bfloat16 does not hold the
// quotient: their products are multiplied by the rows' scales.
struct CopiedRows {
  float* data;
  int64_t ld;     // pad_row(elements)
  int64_t depth;  // elements
  bool pairs;
  float* scales;  // of each row; null where there is nothing to multiply by

  CopiedRows from(int64_t row) const { return {data + row * ld, ld, depth, pairs, scales ? scales + row : nullptr}; }
};

static CopiedRows take_rows(const Side& side, int64_t rows, Workspace& memory) {
  const int64_t depth = row_elements(side);
  const bool pairs = keeps_pairs(side);
  float* data = memory.floats(rows * pad_row(depth));
  return {data, pad_row(depth), depth, pairs, pairs && side.norms ? memory.floats(rows + V::width) : nullptr};
}

// The rows of one item, and their norms.
static void copy_item(const Side& side, int64_t item, const CopiedRows& out, float* norms) {
  const int64_t start = side.starts[item];
  for (int64_t r = 0; r < side.lengths[item]; ++r) {
    float* row = out.data + r * out.ld;
    if (out.pairs) {
      copy_pairs(side, start + r, row);
      if (out.scales) {
        const float power = unit_power(side.norms[start + r]);
        scale_pairs(row, out.depth, power);
        out.scales[r] = power != 0.0f ? row_scale(side, start + r) / power : 0.0f;
      }
      norms[r] = row_norm(row, side.dtype, side.dim) * (out.scales ? out.scales[r] : 1.0f);
    } else {
      norms[r] = copy_row(side, start + r, row);
    }
  }
}

constexpr int64_t kPanel = 2 * V::width;  // columns of a panel

// Panels of the product's right-hand side: columns in groups of kPanel, each group k-major: [group][k][kPanel].
static inline float* panel_column(float* panels, int64_t column, int64_t depth) {
  return panels + column / kPanel * kPanel * depth + column % kPanel;
}

// Writes rows [0, n) of `rows` (stride ld) as the columns of panels `depth` deep: a transpose in registers. Columns up
// to the next whole vector become zero.
static void transpose_to_panels(const float* rows, int64_t ld, int64_t n, int64_t depth, float* panels) {
  for (int64_t r = 0; r < n; r += V::width) {
    float* out = panel_column(panels, r, depth);
    const int64_t valid_rows = n - r < V::width ? n - r : V::width;
    for (int64_t k = 0; k < depth; k += V::width) {
      F square[V::width];
      for (int i = 0; i < V::width; ++i) {
        square[i] = i < valid_rows ? V::load(rows + (r + i) * ld + k, depth - k) : V::zero();
      }
      V::transpose(square);
      const int64_t valid = depth - k < V::width ? depth - k : V::width;
      for (int64_t i = 0; i < valid; ++i) V::store(out + (k + i) * kPanel, square[i]);
    }
  }
}

// Copies columns [k0, k0 + columns) of an item's rows to panels as deep as the item is long: no transpose.
static void item_to_panels(const Side& side, int64_t item, int64_t k0, int64_t columns, float* panels) {
  const int64_t start = side.starts[item], n = side.lengths[item];
  for (int64_t r = 0; r < n; ++r) {
    const void* data = side.row(start + r);
    const F factor = V::set(row_scale(side, start + r));
    for (int64_t j = 0; j < columns; j += V::width) {
      const F x = load_features(data, side.dtype, k0 + j, columns - j);
      V::store(panel_column(panels, j, n) + r * kPanel, V::mul(x, factor));
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
