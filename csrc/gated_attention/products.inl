// Gated attention: products with W, in float32 or in pairs of bfloat16, and how their operands lie.
namespace crossret {
namespace CROSSRET_ISA {

// Calls use(p, vectors, columns) for every panel of so many columns, of which it has `columns` in one or two vectors:
// the second is not computed where it is empty.
template <class Use>
static inline void each_gated_panel(int64_t columns, const Use& use) {
  for (int64_t p = 0; p * kPanel < columns; ++p) {
    const int64_t left = columns - p * kPanel < kPanel ? columns - p * kPanel : kPanel;
    use(p, left > V::width ? 2 : 1, left);
  }
}

// As products are to have it where they take bfloat16 and no pairs of it.
static inline F gated_rounded(const GatedAttentionCall& call, F x) {
  return call.bfloat16 && !V::bf16_dots ? dense_rounded<DenseElements::rounded>(x) : x;
}

// `n` numbers, from a vector on, to a row of floats or of bfloat16.
static inline void gated_store(const GatedAttentionCall& call, const Layout& layout, float* row, int64_t at, F x,
                               int64_t n) {
  if (layout.pairs()) return V::store_bf16(reinterpret_cast<uint16_t*>(row) + at, x, n);
  V::store(row + at, gated_rounded(call, x), n);
}

// Panels of floats, `rows` deep, as a product with rows of this layout reads them: themselves, or packed.
static const float* gated_operand(const GatedAttentionCall& call, const Layout& layout, const float* panels,
                                  int64_t rows, int64_t columns, float* packed) {
  if (!call.bfloat16) return panels;
  each_gated_panel(columns, [&](int64_t p, int64_t vectors, int64_t) {
    const float* const from = panels + p * rows * kPanel;
    float* const to = packed + p * layout.depth * kPanel;
    if (layout.pairs()) return pair_rows(from, kPanel, rows, vectors * V::width, layout.depth, to);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < vectors * V::width; j += V::width) {
        V::store(to + r * kPanel + j, gated_rounded(call, V::load(from + r * kPanel + j)));
      }
    }
  });
  return packed;
}

template <class Epilogue>
struct Below {
  const Epilogue& epilogue;
  int64_t first;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
    epilogue.take(first + m, n, sums);
  }
};

// A tile of rows after the other, each against all panels: the rows come from far away, and so only once.
template <class Epilogue>
static void gated_multiply(const Layout& layout, int64_t rows, int64_t columns, const float* data, const float* panels,
                           const Epilogue& epilogue) {
#if defined(CROSSRET_AMX)
  constexpr int64_t most = 2 * Tiles::rows;
#else
  constexpr int64_t most = V::tile_rows;
#endif
  for (int64_t m = 0, tiles = (rows + most - 1) / most; tiles > 0; --tiles) {
    const int64_t even = (rows - m + tiles - 1) / tiles, height = most == V::tile_rows ? even
                                                                  : rows - m < most    ? rows - m
                                                                                       : most;
    const float* const at = data + m * layout.ld;
    const int64_t next = tiles > 1 ? height * layout.ld * static_cast<int64_t>(sizeof(float)) : 0;
    multiply_rows(layout, 0, layout.depth, height, columns, at, layout.ld, panels,
                  {reinterpret_cast<const char*>(at + height * layout.ld), next}, Below<Epilogue>{epilogue, m});
    m += height;
  }
}

// Some rows of W, as they are and, where it is wanted, of its transpose.
static void gated_copy_weights(const GatedAttentionCall& call, const GatedWeights& of, int64_t side, int64_t part) {
  const int64_t hidden = call.sides[side].hidden;
  const float* const weight = call.sides[side].weight;
  const auto copy = [&](int64_t rows, int64_t columns, int64_t row, int64_t column, float* out) {
    const Layout layout = product_layout(call.bfloat16, columns);
    const int64_t first = part * kGatedRows, end = first + kGatedRows < rows ? first + kGatedRows : rows;
    const int64_t width = layout.pairs() ? 2 * layout.depth : layout.depth;
    for (int64_t r = first; r < end; r += V::width) {
      const int64_t height = end - r < V::width ? end - r : V::width;
      for (int64_t k = 0; k < width; k += V::width) {
        const int64_t there = columns - k, n = width - k;
        F square[V::width];
        if (column == 1) {
          for (int64_t i = 0; i < height; ++i)
            square[i] = there > 0 ? V::load(weight + (r + i) * row + k, there) : V::zero();
        } else {
          for (int64_t i = 0; i < V::width; ++i) {
            square[i] = i < there ? V::load(weight + (k + i) * column + r, height) : V::zero();
          }
          V::transpose(square);
        }
        for (int64_t i = 0; i < height; ++i) gated_store(call, layout, out + (r + i) * layout.ld, k, square[i], n);
      }
    }
  };
  copy(hidden, call.gate, call.gate, 1, of.weights[side]);
  if (of.turned[side] != nullptr) copy(call.gate, hidden, 1, call.gate, of.turned[side]);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
