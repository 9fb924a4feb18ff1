// Dot products of rows with rows in place, a tile of rows of either side at a time. Nothing is packed nor padded to a
// panel, which pays where one side is too short to repay packing the other; sums across lanes cost time where features
// are few.
#pragma once
#include "gemm/tile.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Precision of the sums.
struct SinglePrecision {
  using Sum = F;
  using Loaded = F;
  using Total = float;
  static constexpr int lanes = V::width;
  static Sum zero() { return V::zero(); }
  static Loaded load(const float* p, int64_t n) { return V::load(p, n); }
  static Sum multiply_add(Loaded a, Loaded b, Sum sum) { return V::fma(a, b, sum); }
  static void totals(Sum* sums, Total* out) { V::store(out, sum_rows(sums)); }  // of `lanes` sums
};

// Pairs of bfloat16, summed in float32.
template <class Vec>
struct PairedPrecision : SinglePrecision {
  static Sum multiply_add(Loaded a, Loaded b, Sum sum) { return Vec::dot_pairs(a, b, sum); }
};

struct DoublePrecision {
  struct Loaded {
    V::Double low, high;
  };
  using Sum = V::Double;
  using Total = double;
  static constexpr int lanes = 1;
  static Sum zero() { return V::zero_double(); }
  static Loaded load(const float* p, int64_t n) {
    const F x = V::load(p, n);
    return {V::low(x), V::high(x)};
  }
  static Sum multiply_add(const Loaded& a, const Loaded& b, Sum sum) {
    return V::fma(a.low, b.low, V::fma(a.high, b.high, sum));
  }
  static void totals(Sum* sums, Total* out) { *out = V::reduce_add(*sums); }
};

// Rows and columns of a tile: its sums, all columns and one row fit the registers.
constexpr int kDotRows = 4;
constexpr int kDotColumns = V::tile_rows > 6 ? 4 : 3;

template <class Precision, int A, int B>
static inline __attribute__((always_inline)) void add_dots(const float* const (&a)[A], const float* const (&b)[B],
                                                           int64_t k, int64_t n,
                                                           typename Precision::Sum (&sums)[A * B]) {
  typename Precision::Loaded right[B];
#pragma GCC unroll 4
  for (int y = 0; y < B; ++y) right[y] = Precision::load(b[y] + k, n);
#pragma GCC unroll 4
  for (int x = 0; x < A; ++x) {
    const auto left = Precision::load(a[x] + k, n);
#pragma GCC unroll 4
    for (int y = 0; y < B; ++y) sums[x * B + y] = Precision::multiply_add(left, right[y], sums[x * B + y]);
  }
}

template <class Precision, int A, int B, class Out>
static __attribute__((noinline)) void dot_tile(const float* const* rows, const float* const* columns, int64_t depth,
                                               Ahead ahead, Out* out, int64_t ld) {
  constexpr int lanes = Precision::lanes, padded = (A * B + lanes - 1) / lanes * lanes;
  const float *a[A], *b[B];
  for (int x = 0; x < A; ++x) a[x] = rows[x];
  for (int y = 0; y < B; ++y) b[y] = columns[y];
  typename Precision::Sum sums[A * B];
#pragma GCC unroll 16
  for (int i = 0; i < A * B; ++i) sums[i] = Precision::zero();
  const int64_t whole = depth / V::width * V::width, step = ahead.bytes * V::width / depth;
  for (int64_t k = 0; k < whole; k += V::width, ahead.data += step) {
    __builtin_prefetch(ahead.data, 0, 2);
    add_dots<Precision, A, B>(a, b, k, V::width, sums);
  }
  if (whole < depth) add_dots<Precision, A, B>(a, b, whole, depth - whole, sums);
  typename Precision::Sum spread[padded];
#pragma GCC unroll 16
  for (int i = 0; i < padded; ++i) spread[i] = i < A * B ? sums[i] : Precision::zero();
  alignas(64) typename Precision::Total totals[padded];
  for (int i = 0; i < padded; i += lanes) Precision::totals(spread + i, totals + i);
  for (int x = 0; x < A; ++x) {
    for (int y = 0; y < B; ++y) out[x * ld + y] = totals[x * B + y];
  }
}

template <class Precision, int A, int B, class Out>
static void dot_tile_of(int64_t n_rows, int64_t n_columns, const float* const* rows, const float* const* columns,
                        int64_t depth, Ahead ahead, Out* out, int64_t ld) {
  if constexpr (A == 0 || B == 0) {
    return;
  } else if (n_rows < A) {
    dot_tile_of<Precision, A - 1, B>(n_rows, n_columns, rows, columns, depth, ahead, out, ld);
  } else if (n_columns < B) {
    dot_tile_of<Precision, A, B - 1>(n_rows, n_columns, rows, columns, depth, ahead, out, ld);
  } else {
    dot_tile<Precision, A, B>(rows, columns, depth, ahead, out, ld);
  }
}

// A side in tiles of nearly one size.
struct DotTiles {
  int64_t rows, count;
  int64_t begin(int64_t tile) const { return rows * tile / count; }
};

// out = rows · columnsᵀ, row stride ld. The side that comes from memory, the rows with `by_rows`, is read once, and its
// next tile, at last `ahead`, prefetched; the other is read again for every tile.
template <class Precision, class Out>
static void multiply_dots(const float* const* rows, int64_t n_rows, const float* const* columns, int64_t n_columns,
                          int64_t depth, bool by_rows, Ahead ahead, Out* out, int64_t ld) {
  const DotTiles down{n_rows, (n_rows + kDotRows - 1) / kDotRows};
  const DotTiles across{n_columns, (n_columns + kDotColumns - 1) / kDotColumns};
  const DotTiles &outer = by_rows ? down : across, &inner = by_rows ? across : down;
  for (int64_t o = 0; o < outer.count; ++o) {
    const int64_t end = outer.begin(o + 1), bytes = (end - outer.begin(o)) * depth * 4;
    const float* const* const streamed = by_rows ? rows : columns;
    const Ahead next = end < outer.rows ? Ahead{reinterpret_cast<const char*>(streamed[end]), bytes} : ahead;
    for (int64_t i = 0; i < inner.count; ++i) {
      const int64_t x = by_rows ? o : i, y = by_rows ? i : o;
      const int64_t m = down.begin(x), n = across.begin(y);
      dot_tile_of<Precision, kDotRows, kDotColumns>(down.begin(x + 1) - m, across.begin(y + 1) - n, rows + m,
                                                    columns + n, depth, next.share(inner.count, i), out + m * ld + n,
                                                    ld);
    }
  }
}

// Dot products of floats or of pairs of bfloat16, without prefetching.
template <class Out>
static void multiply_either_dots(bool pairs, const float* const* rows, int64_t n_rows, const float* const* columns,
                                 int64_t n_columns, int64_t depth, Out* out, int64_t ld) {
  const Ahead none{reinterpret_cast<const char*>(rows[0]), 0};
  if constexpr (V::bf16_dots) {
    using Pairs = PairedPrecision<V>;
    if (pairs) return multiply_dots<Pairs>(rows, n_rows, columns, n_columns, depth, true, none, out, ld);
  }
  multiply_dots<SinglePrecision>(rows, n_rows, columns, n_columns, depth, true, none, out, ld);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
