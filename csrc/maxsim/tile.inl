// The register tile of Sum-Max: similarities of some contexts with a panel of queries, reduced to the largest of each
// query before they leave the registers.
namespace crossret {
namespace CROSSRET_ISA {

// Contexts in memory.
struct ContextRows {
  const float* data;
  int64_t stride;     // elements
  const char* ahead;  // what will be read after these rows: as many bytes a row of them are fetched while it is used
  int64_t ahead_row;

  ContextRows from(int64_t row) const { return {data + row * stride, stride, ahead + row * ahead_row, ahead_row}; }
};

// The largest similarity of each query of NV vectors so far, and which context has it: the first of equals, or the
// first NaN.
template <int NV>
struct Best {
  F value[NV];
  F index[NV];
};

// sums[i][j] = context i · queries of vector j. Each element is one chain of multiply-adds over k in order,
// whatever the tile's shape: results do not depend on how contexts and queries are cut into tiles.
template <class Element, int MR, int NV>
[[gnu::always_inline]] static inline void multiply(int64_t depth, const ContextRows& contexts, const float* panel,
                                                   F (&sums)[MR][NV]) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) sums[i][j] = V::zero();
  }
  // Four rows to a base pointer: twelve pointers would not fit the registers.
  const int64_t stride = contexts.stride, offsets[4] = {0, stride, 2 * stride, 3 * stride};
  const float* rows[3] = {contexts.data, contexts.data + (MR > 4 ? 4 * stride : 0),
                          contexts.data + (MR > 8 ? 8 * stride : 0)};
  // Of several rows read side by side the processor foresees none.
  const char* ahead = contexts.ahead;
  const int64_t ahead_step = contexts.ahead_row * MR / depth;
  for (int64_t k = 0; k < depth; ++k) {
    __builtin_prefetch(ahead, 0, 3);
    ahead += ahead_step;
    F queries[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) queries[j] = V::load(panel + j * V::width);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const F context = V::set(rows[i / 4][offsets[i % 4]]);
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) sums[i][j] = Element::multiply_add(context, queries[j], sums[i][j]);
    }
    ++rows[0];
    ++rows[1];
    ++rows[2];
    panel += kPanel;
  }
}

// Takes MR contexts, the first of which is number `first`, into the best of NV vectors of queries.
template <class Element, int MR, int NV, bool kIndex>
static void tile_best(int64_t depth, const ContextRows& contexts, const float* panel, int64_t first, Best<NV>& best) {
  F sums[MR][NV];
  multiply<Element, MR, NV>(depth, contexts, panel, sums);
  if constexpr (kIndex) {
    F number = V::set(static_cast<float>(first));
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        const F x = sums[i][j];
        const V::Mask known = V::is_nan(best.value[j]);
        const V::Mask larger = V::either(V::less(best.value[j], x), V::is_nan(x));
        best.value[j] = V::select(known, best.value[j], V::select(larger, x, best.value[j]));
        best.index[j] = V::select(known, best.index[j], V::select(larger, number, best.index[j]));
      }
      number = V::add(number, V::set(1.0f));
    }
  } else {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      // max drops a NaN in its first operand: whether there is one is asked apart, two similarities at a time.
      V::Mask nan = V::is_nan(best.value[j]);
#pragma GCC unroll 16
      for (int i = 0; i < MR; i += 2) nan = V::either(nan, V::unordered(sums[i][j], sums[i + 1 < MR ? i + 1 : i][j]));
#pragma GCC unroll 4
      for (int step = 1; step < MR; step *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i + step < MR; i += 2 * step) sums[i][j] = V::max(sums[i][j], sums[i + step][j]);
      }
      best.value[j] = V::select(nan, V::set(__builtin_nanf("")), V::max(sums[0][j], best.value[j]));
    }
  }
}

// The same for any number of contexts up to MR.
template <class Element, int MR, int NV, bool kIndex>
static inline void tile_of(int64_t count, int64_t depth, const ContextRows& contexts, const float* panel, int64_t first,
                           Best<NV>& best) {
  if constexpr (MR > 0) {
    if (count == MR) {
      tile_best<Element, MR, NV, kIndex>(depth, contexts, panel, first, best);
    } else {
      tile_of<Element, MR - 1, NV, kIndex>(count, depth, contexts, panel, first, best);
    }
  }
}

// Any number of contexts, in tiles of equal height, or as near as can be: a last tile of one row would leave the
// multipliers idle.
template <class Element, int NV, bool kIndex>
static void rows_best(int64_t count, int64_t depth, const ContextRows& contexts, const float* panel, Best<NV>& best) {
  const int64_t tiles = (count + V::tile_rows - 1) / V::tile_rows;
  const int64_t height = count / tiles, higher = count % tiles;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t n = height + (t < higher ? 1 : 0);
    tile_of<Element, V::tile_rows, NV, kIndex>(n, depth, contexts.from(row), panel, row, best);
    row += n;
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
