// The block product, the GEMM core of every kernel: C (M × N) (+)= A (M × K) · B (K × N), accumulators in registers.
namespace crossret {
namespace CROSSRET_ISA {

// What products multiply: 32-bit elements, each one float …
struct Floats {
  static constexpr int parts = 1;
  static F multiply_add(F a, F b, F sum) { return V::fma(a, b, sum); }
  static F part(F x, int) { return x; }
};

// … or two neighbouring bfloat16 of a row, multiplied and added up at once where the processor can.
template <class Vec>
struct Bfloat16Pairs {
  static constexpr int parts = 2;
  static F multiply_add(F a, F b, F sum) { return Vec::dot_pairs(a, b, sum); }
  static F part(F x, int i) { return i == 0 ? Vec::first_of_pairs(x) : Vec::second_of_pairs(x); }
};

// Calls work with the kind of element.
template <class Work>
static inline void with_elements(bool pairs, const Work& work) {
  if constexpr (V::bf16_dots) {
    if (pairs) return work(Bfloat16Pairs<V>{});
  }
  work(Floats{});
}

// A matrix by strides, so that it may be read transposed.
struct Strided {
  const float* data;
  int64_t row;
  int64_t k;
};

// Adds A · B to the sums of one register tile.
template <class Element, int MR, int NV>
static inline __attribute__((always_inline)) void add_to_tile(F (&sums)[MR][NV], int64_t depth, Strided a,
                                                              const float* b, int64_t b_k) {
  // Four rows to a base pointer: twelve pointers would not fit the registers.
  const float* a0 = a.data;
  const float* a4 = MR > 4 ? a.data + 4 * a.row : a0;
  const float* a8 = MR > 8 ? a.data + 8 * a.row : a0;
  const int64_t two = 2 * a.row, three = 3 * a.row;
  for (int64_t k = 0; k < depth; ++k) {
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

template <int MR, int NV>
static inline __attribute__((always_inline)) void clear_tile(F (&sums)[MR][NV]) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) sums[i][j] = V::zero();
  }
}

template <int MR, int NV>
static inline __attribute__((always_inline)) void store_tile(const F (&sums)[MR][NV], float* c, int64_t ldc,
                                                             bool accumulate) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      float* out = c + i * ldc + j * V::width;
      V::store(out, accumulate ? V::add(V::load(out), sums[i][j]) : sums[i][j]);
    }
  }
}

// Calls work.tile<MR, NV>(m, n) for so many rows, up to MR.
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

// Rows in as few tiles as hold them, all of nearly one height: thirteen are 7 + 6, for a tile of one row would wait for
// its own sums.
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
// whole vectors; the last panel is half as wide where that suffices.
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

// Each cell is one chain of multiply-adds over k in order, whatever the tile's shape, added to what C holds at the end:
// results do not depend on how rows and columns are cut into tiles.
template <class Element>
struct Product {
  int64_t depth;
  Strided a;
  const float* b;
  int64_t b_panel, b_k;
  float* c;
  int64_t ldc;
  bool accumulate;

  template <int MR, int NV>
  __attribute__((noinline)) void tile(int64_t m, int64_t n) const {
    F sums[MR][NV];
    clear_tile(sums);
    add_to_tile<Element>(sums, depth, {a.data + m * a.row, a.row, a.k}, b + n / kPanel * b_panel, b_k);
    store_tile(sums, c + m * ldc + n, ldc, accumulate);
  }
};

// B by panels of kPanel columns: panel p at b + p * b_panel, its row k at + k * b_k. N is rounded up to whole vectors,
// so B, and C with row stride ldc, must reach that far.
template <class Element = Floats>
static void block_product(int64_t rows, int64_t columns, int64_t depth, Strided a, const float* b, int64_t b_panel,
                          int64_t b_k, float* c, int64_t ldc, bool accumulate) {
  for_each_tile(rows, columns, Product<Element>{depth, a, b, b_panel, b_k, c, ldc, accumulate});
}

// The same with B in packed panels `depth` deep, cut into slices of k so that a panel's slice stays in the second cache
// while every row passes over it. Shorter slices would fit the first cache, and lose more by going over C again.
template <class Element>
static void packed_product(int64_t rows, int64_t columns, int64_t depth, Strided a, const float* b, float* c,
                           int64_t ldc) {
  constexpr int64_t slice = 1024;
  for (int64_t k = 0; k < depth; k += slice) {
    const int64_t part = depth - k < slice ? depth - k : slice;
    block_product<Element>(rows, columns, part, {a.data + k * a.k, a.row, a.k}, b + k * kPanel, depth * kPanel, kPanel,
                           c, ldc, k > 0);
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
