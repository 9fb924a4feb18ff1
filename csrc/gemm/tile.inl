// The GEMM core of every kernel: A (M × K) · B (K × N) in register tiles, which an epilogue takes from registers.
#pragma once
#include "gemm/rows.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Arithmetic of 32-bit elements: floats.
struct Floats {
  static F multiply_add(F a, F b, F sum) { return V::fma(a, b, sum); }
};

// Pairs of neighbouring bfloat16 of a row, by the processor's dot products.
template <class Vec>
struct Bfloat16Pairs {
  static F multiply_add(F a, F b, F sum) { return Vec::dot_pairs(a, b, sum); }
};

// The left-hand side, with any strides.
struct Left {
  const float* data;
  int64_t row;
  int64_t k;
};

// Memory that is read after a product and prefetched evenly during it: the hardware prefetcher does not follow several
// rows read side by side.
struct Ahead {
  const char* data;
  int64_t bytes;
  bool again = false;  // whether it is fetched once for every panel, to stay in the first cache

  // Share `number` of `count` even ones.
  Ahead share(int64_t count, int64_t number = 0) const { return {data + bytes / count * number, bytes / count, again}; }
};

// The right-hand side by panels of kPanel columns: panel p at data + p * panel, its row k at + k * k.
struct Right {
  const float* data;
  int64_t panel;
  int64_t k;
};

// Extent of k for a tile of rows [m, m + rows): all of it, or the nonzero part of a triangular matrix.
struct AllOf {
  int64_t depth;
  int64_t begin(int64_t) const { return 0; }
  int64_t end(int64_t, int64_t) const { return depth; }
};
struct UpperTriangle {
  int64_t depth;
  int64_t begin(int64_t m) const { return m; }
  int64_t end(int64_t, int64_t) const { return depth; }
};
struct LowerTriangle {
  int64_t depth;
  int64_t begin(int64_t) const { return 0; }
  int64_t end(int64_t m, int64_t rows) const { return m + rows < depth ? m + rows : depth; }
};

template <int MR, int NV>
static inline __attribute__((always_inline)) void clear_tile(F (&sums)[MR][NV]) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) sums[i][j] = V::zero();
  }
}

// Adds A · B to the sums of one register tile. Each cell is one chain of multiply-adds over k in order, so that results
// do not depend on how rows and columns are cut into tiles.
template <class Element, bool kAhead, int MR, int NV>
static inline __attribute__((always_inline)) void add_to_tile(F (&sums)[MR][NV], int64_t depth, Left a, const float* b,
                                                              int64_t b_k, Ahead ahead) {
  // One base pointer for four rows: twelve would not fit the registers.
  const float* a0 = a.data;
  const float* a4 = MR > 4 ? a.data + 4 * a.row : a0;
  const float* a8 = MR > 8 ? a.data + 8 * a.row : a0;
  const int64_t two = 2 * a.row, three = 3 * a.row;
  const Ahead step = kAhead ? ahead.share(depth) : ahead;
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (kAhead) {
      __builtin_prefetch(ahead.data, 0, 2);
      ahead.data += step.bytes;
    }
    F columns[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) columns[j] = V::load(b + j * V::width);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const float* base = i < 4 ? a0 : i < 8 ? a4 : a8;
      const int64_t offset = i % 4 == 0 ? 0 : i % 4 == 1 ? a.row : i % 4 == 2 ? two : three;
      const F value = V::set(base[offset]);
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) sums[i][j] = Element::multiply_add(value, columns[j], sums[i][j]);
    }
    a0 += a.k;
    a4 += a.k;
    a8 += a.k;
    b += b_k;
  }
}

// Calls work.tile<rows, NV>(m, n), rows up to MR.
template <int MR, int NV, class Work>
static inline void tile_of(int64_t rows, int64_t m, int64_t n, const Work& work) {
  if constexpr (MR > 0) {
    if (rows == MR) {
      work.template tile<MR, NV>(m, n);
    } else {
      tile_of<MR - 1, NV>(rows, m, n, work);
    }
  }
}

// Rows in as few tiles as hold them, of nearly one height: 13 are 7 + 6, as a tile of one row waits for its own sums.
template <int NV, class Work>
static void panel(int64_t rows, int64_t n, const Work& work) {
  int64_t m = 0;
  for (int64_t tiles = (rows + V::tile_rows - 1) / V::tile_rows; tiles > 0; --tiles) {
    const int64_t height = (rows - m + tiles - 1) / tiles;
    tile_of<V::tile_rows, NV>(height, m, n, work);
    m += height;
  }
}

// Calls work.tile<MR, NV>(m, n) for register tiles that cover rows × columns, panel by panel. Columns are rounded up to
// whole vectors; the last panel has one vector where that suffices.
template <class Work>
static void for_each_tile(int64_t rows, int64_t columns, const Work& work) {
  for (int64_t n = 0; n < columns; n += kPanel) {
    if (columns - n > V::width) {
      panel<2>(rows, n, work);
    } else {
      panel<1>(rows, n, work);
    }
  }
}

template <class Element, bool kAhead, class Extent, class Epilogue>
struct TileProduct {
  Extent extent;
  Left a;
  Right b;
  Ahead ahead;    // the share of one row of one panel
  int64_t panel;  // shares from panel to panel
  const Epilogue& epilogue;

  template <int MR, int NV>
  __attribute__((noinline)) void tile(int64_t m, int64_t n) const {
    const int64_t begin = extent.begin(m), depth = extent.end(m, MR) - begin;
    F sums[MR][NV];
    clear_tile(sums);
    add_to_tile<Element, kAhead>(sums, depth, {a.data + m * a.row + begin * a.k, a.row, a.k},
                                 b.data + n / kPanel * b.panel + begin * b.k, b.k,
                                 {ahead.data + (n / kPanel * panel + m) * ahead.bytes, MR * ahead.bytes});
    epilogue.take(m, n, sums);
  }
};

// Passes A · B tile by tile to epilogue.take(m, n, F (&)[MR][NV]). B must have columns up to a whole vector.
template <class Element = Floats, class Extent, class Epilogue>
static void multiply(int64_t rows, int64_t columns, Extent extent, Left a, Right b, const Epilogue& epilogue) {
  for_each_tile(rows, columns, TileProduct<Element, false, Extent, Epilogue>{extent, a, b, {}, 0, epilogue});
}

// Epilogue: C = or += product, row stride ld, columns up to whole vectors.
struct Store {
  float* c;
  int64_t ld;
  bool accumulate;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        float* out = c + (m + i) * ld + n + j * V::width;
        V::store(out, accumulate ? V::add(V::load(out), sums[i][j]) : sums[i][j]);
      }
    }
  }
};

#if defined(CROSSRET_AMX)
// Products of pairs of bfloat16 by tiles of AMX, 16 × 16, two by two at a time, as loading a tile takes as long as
// multiplying it. Rows of A are read up to a multiple of sixteen; depth is whole tiles. Tile loads wait for memory,
// which `Ahead` hides.
template <class Epilogue>
struct FromMemory {
  const float* c;
  int64_t first_row, first_column;
  const Epilogue& epilogue;

  template <int MR, int NV>
  void tile(int64_t m, int64_t n) const {
    F sums[MR][NV];
    for (int i = 0; i < MR; ++i) {
      for (int j = 0; j < NV; ++j) sums[i][j] = V::load(c + (m + i) * kPanel + n + j * V::width);
    }
    epilogue.take(first_row + m, first_column + n, sums);
  }
};

template <bool two_rows, bool two_columns>
static void multiply_four(int64_t depth, const float* a, int64_t lda, const float* b, float* c, Ahead ahead) {
  constexpr int64_t side = Tiles::rows, row_bytes = kPanel * sizeof(float);
  const char* const end = ahead.data + ahead.bytes;
  const int64_t lines = ahead.bytes * Tiles::depth / (64 * depth) + 1;  // cache lines to fetch a step
  Tiles::zero<0>();
  if constexpr (two_columns) Tiles::zero<1>();
  if constexpr (two_rows) Tiles::zero<2>();
  if constexpr (two_rows && two_columns) Tiles::zero<3>();
  for (int64_t k = 0; k < depth; k += Tiles::depth) {
    for (int64_t line = 0; line < lines && ahead.data < end; ++line, ahead.data += 64) {
      __builtin_prefetch(ahead.data, 0, 2);
    }
    Tiles::load<4>(a + k, lda * 4);
    Tiles::load<6>(b + k * kPanel, row_bytes);
    Tiles::multiply<0, 4, 6>();
    if constexpr (two_columns) {
      Tiles::load<7>(b + k * kPanel + Tiles::columns, row_bytes);
      Tiles::multiply<1, 4, 7>();
    }
    if constexpr (two_rows) {
      Tiles::load<5>(a + side * lda + k, lda * 4);
      Tiles::multiply<2, 5, 6>();
      if constexpr (two_columns) Tiles::multiply<3, 5, 7>();
    }
  }
  Tiles::store<0>(c, row_bytes);
  if constexpr (two_columns) Tiles::store<1>(c + Tiles::columns, row_bytes);
  if constexpr (two_rows) Tiles::store<2>(c + side * kPanel, row_bytes);
  if constexpr (two_rows && two_columns) Tiles::store<3>(c + side * kPanel + Tiles::columns, row_bytes);
}

template <class Epilogue>
static void multiply_by_tiles(int64_t rows, int64_t columns, int64_t depth, Left a, Right b, Ahead ahead,
                              int64_t rows_ahead, const Epilogue& epilogue) {
  constexpr int64_t high = 2 * Tiles::rows;
  static_assert(kPanel == 2 * Tiles::columns, "a panel is two tiles wide");
  alignas(64) float c[high * kPanel];
  for (int64_t n = 0; n < columns; n += kPanel) {
    const float* panel = b.data + n / kPanel * b.panel;
    const int64_t width = columns - n < kPanel ? columns - n : kPanel;
    for (int64_t m = 0; m < rows; m += high) {
      const int64_t height = rows - m < high ? rows - m : high;
      const auto product = height > Tiles::rows
                               ? (width > Tiles::columns ? multiply_four<true, true> : multiply_four<true, false>)
                               : (width > Tiles::columns ? multiply_four<false, true> : multiply_four<false, false>);
      product(depth, a.data + m * a.row, a.row, panel, c,
              {ahead.data + (n / kPanel * rows_ahead + m) * ahead.bytes, height * ahead.bytes});
      for_each_tile(height, width, FromMemory<Epilogue>{c, m, n, epilogue});
    }
  }
}
#endif

// The product of floats, or of pairs of bfloat16: `a` then has contiguous rows, readable in whole tiles.
template <class Epilogue>
static void multiply_either(bool pairs, int64_t rows, int64_t columns, int64_t depth, Left a, Right b,
                            const Epilogue& epilogue) {
#if defined(CROSSRET_AMX)
  if (pairs) return multiply_by_tiles(rows, columns, depth, a, b, {}, 0, epilogue);
#else
  if constexpr (V::bf16_dots) {
    if (pairs) return multiply<Bfloat16Pairs<V>>(rows, columns, AllOf{depth}, a, b, epilogue);
  }
#endif
  multiply(rows, columns, AllOf{depth}, a, b, epilogue);
}

// The product of rows, elements [k, k + depth), with packed panels in the same layout.
template <class Epilogue>
static void multiply_rows(const Layout& layout, int64_t k, int64_t depth, int64_t rows, int64_t columns,
                          const float* data, int64_t ld, const float* panels, Ahead ahead, const Epilogue& epilogue) {
  const Left a{data + k, ld, 1};
  const Right b{panels + k * kPanel, layout.depth * kPanel, kPanel};
  const Ahead each = ahead.share(ahead.again ? rows : rows * ((columns + kPanel - 1) / kPanel));
  const int64_t panel = ahead.again ? 0 : rows;
#if defined(CROSSRET_AMX)
  if (layout.pairs()) return multiply_by_tiles(rows, columns, depth, a, b, each, panel, epilogue);
#else
  if constexpr (V::bf16_dots) {
    using Product = TileProduct<Bfloat16Pairs<V>, true, AllOf, Epilogue>;
    if (layout.pairs()) return for_each_tile(rows, columns, Product{{depth}, a, b, each, panel, epilogue});
  }
#endif
  for_each_tile(rows, columns, TileProduct<Floats, true, AllOf, Epilogue>{{depth}, a, b, each, panel, epilogue});
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
