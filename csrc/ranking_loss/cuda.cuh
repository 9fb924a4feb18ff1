// Ranking losses (SCAN Eqs. 11 and 12, HAN Eq. 4) in CUDA: statistics of hinges in one pass over the scores, losses of
// those, and the scores' gradient in one more pass.
//
// Bytes for n_rows × n_columns scores of e bytes, by tiles of 128 rows and 1,024 columns and k = 8 bytes of statistics,
// 12 by softmax. Forward reads e a score; it writes and reads again k / 128 a score of columns and k / 1,024 of rows,
// 3.5 % of float32 scores, 5.3 % by softmax; positives, ids and losses are of n and not of n². Backward writes e a
// score and, but for the hardest, reads e: of those the two places a positive tell all of the gradient. So 8,192²
// float32 scores cost 268 MB forward and, for the hardest, 268 MB backward; no score is read twice in either pass.
//
// A thread owns four columns and walks down its tile in steps of eight rows, of which all loads are under way at once:
// statistics of columns stay in registers until the tile ends. Those of a step's rows are brought together across a
// warp by halves, nine exchanges for eight rows, across the warps of a block once a tile, in shared memory. Nothing is
// added atomically, and the order of all sums is fixed by the sizes alone.
#pragma once
#include "cuda/device.cuh"
#include "ranking_loss/problem.h"

namespace crossret {
namespace gpu {

constexpr int kVector = 4;                      // columns of a thread
constexpr int kStep = 8;                        // rows at once
constexpr int kWarpColumns = kWarp * kVector;   // of a tile one warp wide
constexpr int kMostWarps = 8, kMostRows = 128;  // of a tile
constexpr int kTileThreads = kMostWarps * kWarp;
constexpr int kFinishSlots = 8;  // that share the parts of a positive
constexpr int kFinishThreads = kFinishSlots * kWarp;
constexpr int kSumThreads = 256;
constexpr int kNowhere = 0x7FFFFFFF;

// How the scores are cut into tiles.
struct LossPlan {
  int warps, rows;                  // of a tile
  int column_tiles, row_tiles;      // the grid of both passes
  int64_t row_parts, column_parts;  // statistics that the forward pass keeps: of rows, of columns

  int threads() const { return warps * kWarp; }
};

// Tiles as large as leave each of `multiprocessors` two of them, if the scores suffice.
inline LossPlan plan_loss(int n_rows, int n_columns, int multiprocessors) {
  const auto tiles_of = [](int n, int size) { return (n + size - 1) / size; };
  const auto tiles = [&](int warps, int rows) {
    return int64_t{tiles_of(n_columns, warps * kWarpColumns)} * tiles_of(n_rows, rows);
  };
  int warps = kMostWarps, rows = kMostRows;
  while (warps > 1 && (warps / 2) * kWarpColumns >= n_columns) warps /= 2;
  while (rows > kStep && tiles(warps, rows) < 2 * int64_t{multiprocessors}) rows /= 2;
  while (warps > 1 && tiles(warps, rows) < 2 * int64_t{multiprocessors}) warps /= 2;
  const int column_tiles = tiles_of(n_columns, warps * kWarpColumns), row_tiles = tiles_of(n_rows, rows);
  return {warps, rows, column_tiles, row_tiles, int64_t{column_tiles} * n_rows, int64_t{row_tiles} * n_rows};
}

// p − 1: a product of `whole` factors where that is a whole number below 64, which then is not negative.
struct Slope {
  int whole;
  float value;
};

inline Slope slope_of(double order) {
  // From 2⁴⁰ on, powers of float32 below 1 are 0 and their order does not show.
  const double slope = order - 1 < 0x1p40 ? order - 1 : 0x1p40;
  const bool product = slope < 64 && slope == static_cast<int>(slope);
  return {product ? static_cast<int>(slope) : -1, static_cast<float>(slope)};
}

// Whether every fourth element of every row, from the first on, lies where four can be accessed at once.
template <class T>
bool in_fours(const T* first, int64_t row_stride) {
  return reinterpret_cast<uintptr_t>(first) % sizeof(Four<T>) == 0 && row_stride % kVector == 0;
}

// As `RankingLossCall` has it, but for hinges: their thresholds are read off the scores.
template <class T>
struct LossProblem {
  Global<const T> scores;
  int64_t row_stride;  // elements
  int n_rows, n_columns, offset;
  int tile_rows;  // a multiple of kStep
  float margin;
  Slope slope;
  // Two ids of every column, twice the same where there is one kind; null where all differ.
  Global<const int64_t> ids[2];
  bool aligned;  // the scores, and the gradient where it is written: `in_fours`
};

// Hinges of one row or column. Orders of hinges are those of their bits, as none is negative; NaN is greatest.
template <Negatives negatives>
struct Statistic;

// The greatest hinge and the first of its places.
template <>
struct Statistic<Negatives::hardest> {
  int most, place;
};

template <>
struct Statistic<Negatives::sum> {
  float sum, count;
};

// The greatest hinge M, Σ (h / M)ᵖ and Σ (h / M)ᵖ⁻¹.
template <>
struct Statistic<Negatives::softmax> {
  int most;
  float powers, slopes;
};

template <Negatives negatives>
CROSSRET_DEVICE Statistic<negatives> no_hinges() {
  if constexpr (negatives == Negatives::hardest) {
    return {0, kNowhere};
  } else if constexpr (negatives == Negatives::sum) {
    return {0.0f, 0.0f};
  } else {
    return {0, 0.0f, 0.0f};
  }
}

// values[i] to the power of the slope; all are at most 1.
template <int n>
CROSSRET_DEVICE void power(const float (&values)[n], const Slope& slope, float (&powers)[n]) {
  if (slope.whole >= 0) {
    float squares[n];
#pragma unroll
    for (int i = 0; i < n; ++i) powers[i] = 1.0f, squares[i] = values[i];
#pragma unroll 1
    for (int bits = slope.whole; bits != 0; bits >>= 1) {
      const bool factor = (bits & 1) != 0;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        powers[i] *= factor ? squares[i] : 1.0f;
        squares[i] *= squares[i];
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) powers[i] = values[i] == 0.0f ? 0.0f : exp2f(log2f(values[i]) * slope.value);
  }
}

// What hinges are divided by; those below the normal range are beside nothing.
struct Scale {
  float value, inverse;
};

CROSSRET_DEVICE Scale scale_of(float value) {
  const float least = 1.17549435e-38f, bounded = value < least ? least : value;
  return {bounded, 1.0f / bounded};
}

// h / scale, at most 1 but for NaN. Large powers show how an inverse is rounded: equals are to have a quotient of 1.
CROSSRET_DEVICE float ratio(float hinge, const Scale& scale, const Slope& slope) {
  const float quotient = slope.whole >= 0 ? hinge * scale.inverse : hinge / scale.value;
  return hinge == 0.0f ? 0.0f : quotient > 1.0f ? 1.0f : quotient;
}

// To a greater scale, by quotients, as there is one after the other: roundings of inverses would add up.
CROSSRET_DEVICE void rescale(Statistic<Negatives::softmax>& kept, int most, const Slope& slope) {
  const float values[1] = {kept.most == 0 ? 0.0f : float_of(kept.most) / float_of(most)};
  float powers[1];
  power(values, slope, powers);
  kept.most = most;
  kept.powers *= powers[0] * values[0];
  kept.slopes *= powers[0];
}

// The same whichever comes first.
CROSSRET_DEVICE void merge(Statistic<Negatives::hardest>& kept, Statistic<Negatives::hardest> other, const Slope&) {
  if (other.most > kept.most || (other.most == kept.most && other.place < kept.place)) kept = other;
}
CROSSRET_DEVICE void merge(Statistic<Negatives::sum>& kept, Statistic<Negatives::sum> other, const Slope&) {
  kept.sum += other.sum;
  kept.count += other.count;
}
CROSSRET_DEVICE void merge(Statistic<Negatives::softmax>& kept, Statistic<Negatives::softmax> other,
                           const Slope& slope) {
  const int most = other.most > kept.most ? other.most : kept.most;
  rescale(kept, most, slope);
  rescale(other, most, slope);
  kept.powers += other.powers;
  kept.slopes += other.slopes;
}

CROSSRET_DEVICE Statistic<Negatives::hardest> of_lane(const Statistic<Negatives::hardest>& mine, int mask) {
  return {shuffle_xor(mine.most, mask), shuffle_xor(mine.place, mask)};
}
CROSSRET_DEVICE Statistic<Negatives::sum> of_lane(const Statistic<Negatives::sum>& mine, int mask) {
  return {shuffle_xor(mine.sum, mask), shuffle_xor(mine.count, mask)};
}
CROSSRET_DEVICE int of_lane(int mine, int mask) { return shuffle_xor(mine, mask); }
CROSSRET_DEVICE float of_lane(float mine, int mask) { return shuffle_xor(mine, mask); }

CROSSRET_DEVICE void merge(int& most, int other, const Slope&) { most = other > most ? other : most; }
CROSSRET_DEVICE void merge(float& sum, float other, const Slope&) { sum += other; }

// The row of a step that a lane has in the end.
CROSSRET_DEVICE int row_of(int lane) { return lane / (kWarp / kStep); }

// Brings all lanes' statistics of a step's rows together: lanes give away the half of the rows that is not theirs.
template <class S>
CROSSRET_DEVICE S gather_rows(S (&rows)[kStep], int lane, const Slope& slope) {
  static_assert(kStep == 8, "three halvings");
#pragma unroll
  for (int halving = 0; halving < 3; ++halving) {
    const int half = kStep >> (halving + 1), bit = kWarp >> (halving + 1);
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int r = 0; r < kStep / 2; ++r) {
      if (r >= half) continue;
      const S given = upper ? rows[r] : rows[r + half];
      S kept = upper ? rows[r + half] : rows[r];
      merge(kept, of_lane(given, bit), slope);
      rows[r] = kept;
    }
  }
  merge(rows[0], of_lane(rows[0], 2), slope);
  merge(rows[0], of_lane(rows[0], 1), slope);
  return rows[0];
}

// The same of counts up to kVector in each lane, four rows of a step in a number, eight bits each.
CROSSRET_DEVICE int gather_counts(const int (&counts)[kStep / 4], int lane) {
  static_assert(kStep == 8 && kWarpColumns < 256, "two numbers, which a warp's columns do not overflow");
  const bool upper = (lane & kWarp / 2) != 0;
  int sum = (upper ? counts[1] : counts[0]) + shuffle_xor(upper ? counts[0] : counts[1], kWarp / 2);
#pragma unroll
  for (int bit = kWarp / 4; bit > 0; bit /= 2) sum += shuffle_xor(sum, bit);
  return sum >> (row_of(lane) % 4 * 8) & 255;
}

// The columns of a thread: four in a row where vectors can be loaded, else 32 apart, so that a warp's lie in a row.
template <class T>
struct Columns {
  int first, step;
  bool inside;  // all of them

  CROSSRET_DEVICE int operator[](int k) const { return first + k * step; }
};

template <class T>
CROSSRET_DEVICE Columns<T> own_columns(const LossProblem<T>& problem) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const int start = block_x() * block_threads() * kVector + warp * kWarpColumns;
  const int step = problem.aligned ? 1 : kWarp, first = start + (problem.aligned ? lane * kVector : lane);
  return {first, step, first + (kVector - 1) * step < problem.n_columns};
}

// Scores of a step, and which of them are negatives: bits, kVector a row.
struct Scores {
  float at[kStep][kVector];
  uint32_t negative;
};
static_assert(kStep * kVector == 32, "a bit a score");

template <class T>
CROSSRET_DEVICE void load_scores(const LossProblem<T>& problem, const Columns<T>& columns, int row, int rows,
                                 Scores& scores) {
  T loaded[kStep][kVector];
  Global<const T> from = problem.scores + (row * problem.row_stride + columns.first);
  if (problem.aligned && columns.inside && rows >= kStep) {
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
      const Four<T> four = load(Global<const Four<T>>(from), 0);
#pragma unroll
      for (int k = 0; k < kVector; ++k) loaded[r][k] = four.at[k];
      from = from + problem.row_stride;
    }
  } else {
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        loaded[r][k] = r < rows && columns[k] < problem.n_columns ? load(from, k * columns.step) : T{};
      }
      from = from + problem.row_stride;
    }
  }
#pragma unroll
  for (int r = 0; r < kStep; ++r) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) scores.at[r][k] = widened(loaded[r][k]);
  }
}

// Without ids: all that is there but the positives.
template <class T>
CROSSRET_DEVICE uint32_t negatives_of(const LossProblem<T>& problem, const Columns<T>& columns, int row, int rows) {
  uint32_t negative = rows >= kStep ? ~0u : (1u << rows * kVector) - 1;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const uint32_t column = 0x11111111u << k;
    const int positive = columns[k] - problem.offset - row;
    if (columns[k] >= problem.n_columns) negative &= ~column;
    if (positive >= 0 && positive < kStep) negative &= ~(1u << (positive * kVector + k));
  }
  return negative;
}

// The hinge of a threshold and a score; 0 where they are no negatives.
template <bool masked>
CROSSRET_DEVICE float hinge_of(float threshold, const Scores& scores, int r, int k) {
  const float hinge = max_or_nan(threshold + scores.at[r][k], 0.0f);
  if constexpr (!masked) return hinge;
  return (scores.negative >> (r * kVector + k) & 1) != 0 ? hinge : 0.0f;
}

// A step's hinges of n rows or columns with one threshold, to their statistics. place(i) are their places.
template <int n, class Place>
CROSSRET_DEVICE void add(Statistic<Negatives::hardest>& kept, const float (&hinges)[n], const Slope&,
                         const Place& place) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int bits = bits_of(hinges[i]);
    if (bits > kept.most) kept = {bits, place(i)};
  }
}
template <int n, class Place>
CROSSRET_DEVICE void add(Statistic<Negatives::sum>& kept, const float (&hinges)[n], const Slope&, const Place&) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    kept.sum += hinges[i];
    if (hinges[i] != 0.0f) kept.count += 1.0f;
  }
}
// To a statistic of a scale that is at least the hinges.
template <int n>
CROSSRET_DEVICE void add_powers(float& powers, float& slopes, const float (&hinges)[n], const Scale& scale,
                                const Slope& slope) {
  float ratios[n], made[n];
#pragma unroll
  for (int i = 0; i < n; ++i) ratios[i] = ratio(hinges[i], scale, slope);
  power(ratios, slope, made);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (hinges[i] == 0.0f) made[i] = 0.0f;
    powers += made[i] * ratios[i];
    slopes += made[i];
  }
}
template <int n>
CROSSRET_DEVICE int most_of(const float (&hinges)[n]) {
  int most = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int bits = bits_of(hinges[i]);
    most = bits > most ? bits : most;
  }
  return most;
}
template <int n, class Place>
CROSSRET_DEVICE void add(Statistic<Negatives::softmax>& kept, const float (&hinges)[n], const Slope& slope,
                         const Place&) {
  const int most = most_of(hinges);
  if (most > kept.most) rescale(kept, most, slope);
  if (most > 0) add_powers(kept.powers, kept.slopes, hinges, scale_of(float_of(kept.most)), slope);
}

// A step's statistics of the row that a lane has, over the columns of the warp.
template <Negatives negatives, bool masked, class Threshold, class T>
CROSSRET_DEVICE Statistic<negatives> measure_rows(const Scores& scores, const Threshold& threshold,
                                                  const Columns<T>& columns, int lane, const Slope& slope) {
  const auto hinges_of = [&](int r, float (&hinges)[kVector]) {
    const float of_row = threshold(r);
#pragma unroll
    for (int k = 0; k < kVector; ++k) hinges[k] = hinge_of<masked>(of_row, scores, r, k);
  };
  float hinges[kVector];
  if constexpr (negatives == Negatives::softmax) {
    // One scale for all lanes, so that they only add.
    int most[kStep];
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
      hinges_of(r, hinges);
      most[r] = most_of(hinges);
    }
    const int own = gather_rows(most, lane, slope);
    Statistic<Negatives::sum> sums[kStep];
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
      hinges_of(r, hinges);
      sums[r] = {0.0f, 0.0f};
      const Scale scale = scale_of(float_of(shuffle(own, r * (kWarp / kStep))));
      add_powers(sums[r].sum, sums[r].count, hinges, scale, slope);
    }
    const Statistic<Negatives::sum> sum = gather_rows(sums, lane, slope);
    return {own, sum.sum, sum.count};
  } else if constexpr (negatives == Negatives::sum) {
    // Counts in few registers and shuffles.
    float sums[kStep];
    int counts[kStep / 4] = {};
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
      hinges_of(r, hinges);
      sums[r] = 0.0f;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        sums[r] += hinges[k];
        if (hinges[k] != 0.0f) counts[r / 4] += 1 << (r % 4 * 8);
      }
    }
    const float sum = gather_rows(sums, lane, slope);
    return {sum, static_cast<float>(gather_counts(counts, lane))};
  } else {
    Statistic<negatives> rows[kStep];
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
      rows[r] = no_hinges<negatives>();
      hinges_of(r, hinges);
      add(rows[r], hinges, slope, [&](int k) { return columns[k]; });
    }
    return gather_rows(rows, lane, slope);
  }
}

template <Negatives negatives, bool masked>
CROSSRET_DEVICE void measure_columns(const Scores& scores, const float (&thresholds)[kVector], int row,
                                     Statistic<negatives> (&of_columns)[kVector], const Slope& slope) {
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    float hinges[kStep];
#pragma unroll
    for (int r = 0; r < kStep; ++r) hinges[r] = hinge_of<masked>(thresholds[k], scores, r, k);
    add(of_columns[k], hinges, slope, [=](int r) { return row + r; });
  }
}

// α − S of the positive of a row.
template <class T>
CROSSRET_DEVICE float threshold_of(const LossProblem<T>& problem, int row) {
  return problem.margin - widened(load(problem.scores + row * problem.row_stride, row + problem.offset));
}

template <class T>
CROSSRET_DEVICE bool has_positive(const LossProblem<T>& problem, int column) {
  return column >= problem.offset && column < problem.offset + problem.n_rows;
}

// Ids of a thread's columns.
template <class T>
CROSSRET_DEVICE void load_ids(const LossProblem<T>& problem, const Columns<T>& columns, int64_t (&ids)[2][kVector]) {
#pragma unroll
  for (int kind = 0; kind < 2; ++kind) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      ids[kind][k] = columns[k] < problem.n_columns ? load(problem.ids[kind], columns[k]) : 0;
    }
  }
}

// Statistics of a tile: of its rows over its columns at rows + (column tile, row), of the columns that have positives
// over its rows at columns + (row tile, positive).
template <class T, Negatives negatives, bool with_ids>
CROSSRET_KERNEL(kTileThreads, 2)
hinge_statistics(CROSSRET_PARAMETER LossProblem<T> problem, Global<Statistic<negatives>> rows,
                 Global<Statistic<negatives>> columns) {
  CROSSRET_SHARED(float, thresholds, kMostRows);
  CROSSRET_SHARED(int64_t, row_ids, with_ids ? 2 * kMostRows : 1);
  CROSSRET_SHARED(Statistic<negatives>, of_rows, kMostWarps * kMostRows);
  const int thread = thread_index(), lane = thread % kWarp, warp = thread / kWarp;
  const int first = block_y() * problem.tile_rows, left = problem.n_rows - first;
  const int height = left < problem.tile_rows ? left : problem.tile_rows;
  for (int r = thread; r < height; r += block_threads()) {
    thresholds[r] = threshold_of(problem, first + r);
    if constexpr (with_ids) {
      for (int kind = 0; kind < 2; ++kind) {
        row_ids[kind * kMostRows + r] = load(problem.ids[kind], first + r + problem.offset);
      }
    }
  }
  const Columns<T> own = own_columns(problem);
  float column_thresholds[kVector];
  Statistic<negatives> of_columns[kVector];
  bool some_positive = false;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const bool positive = has_positive(problem, own[k]);
    some_positive = some_positive || positive;
    column_thresholds[k] = positive ? threshold_of(problem, own[k] - problem.offset) : 0.0f;
    of_columns[k] = no_hinges<negatives>();
  }
  int64_t ids[2][kVector] = {};
  if constexpr (with_ids) load_ids(problem, own, ids);
  sync_block();

  for (int r = 0; r < height; r += kStep) {
    const int row = first + r, some = height - r;
    Scores scores;
    load_scores(problem, own, row, some, scores);
    scores.negative = negatives_of(problem, own, row, some);
    if constexpr (with_ids) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        if (i >= some) continue;
        const int64_t mine[2] = {row_ids[r + i], row_ids[kMostRows + r + i]};
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          if (mine[0] == ids[0][k] || mine[1] == ids[1][k]) scores.negative &= ~(1u << (i * kVector + k));
        }
      }
    }
    const auto threshold = [&](int i) -> float { return i < some ? static_cast<float>(thresholds[r + i]) : 0.0f; };
    Statistic<negatives> of_row;
    // Most warps meet no positive, no edge and no equal ids; beside powers a mask costs little.
    if (negatives != Negatives::softmax && all(scores.negative == ~0u)) {
      of_row = measure_rows<negatives, false>(scores, threshold, own, lane, problem.slope);
      if (some_positive) measure_columns<negatives, false>(scores, column_thresholds, row, of_columns, problem.slope);
    } else {
      of_row = measure_rows<negatives, true>(scores, threshold, own, lane, problem.slope);
      if (some_positive) measure_columns<negatives, true>(scores, column_thresholds, row, of_columns, problem.slope);
    }
    if (lane % (kWarp / kStep) == 0) of_rows[warp * kMostRows + r + row_of(lane)] = of_row;
  }

#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    if (!has_positive(problem, own[k])) continue;
    store(columns, int64_t{block_y()} * problem.n_rows + own[k] - problem.offset, of_columns[k]);
  }
  sync_block();
  for (int r = thread; r < height; r += block_threads()) {
    Statistic<negatives> sum = of_rows[r];
    for (int w = 1; w < block_threads() / kWarp; ++w) merge(sum, of_rows[w * kMostRows + r], problem.slope);
    store(rows, int64_t{block_x()} * problem.n_rows + first + r, sum);
  }
}

// The loss of a row or column; its key and its total as `HingeGradients` has them.
struct Finished {
  float loss, key, total;
};

CROSSRET_DEVICE Finished finished(const Statistic<Negatives::hardest>& all, float) {
  const bool nothing = all.most == 0;
  return {float_of(all.most), nothing ? -1.0f : static_cast<float>(all.place), nothing ? 0.0f : 1.0f};
}
CROSSRET_DEVICE Finished finished(const Statistic<Negatives::sum>& all, float) {
  return {all.sum, all.count, all.count};
}
CROSSRET_DEVICE Finished finished(const Statistic<Negatives::softmax>& all, float order) {
  if (all.most == 0) return {0.0f, 0.0f, 0.0f};
  // Σ (h / loss)ᵖ⁻¹ of Σ (h / M)ᵖ⁻¹, as loss / M is the root and its p-th power the powers.
  const float root = exp2f(log2f(all.powers) / order), loss = float_of(all.most) * root;
  return {loss, loss, all.slopes * root / all.powers};
}

// What the parts of tiles make of every positive: its loss, and (4, n_rows) keys and totals of rows, then of columns.
struct LossOutput {
  Global<float> losses, statistics;
};

// A block has 32 positives, of which each of its warps takes every eighth part.
template <Negatives negatives>
CROSSRET_KERNEL(kFinishThreads, 2)
losses_of_statistics(Global<const Statistic<negatives>> rows, Global<const Statistic<negatives>> columns,
                     LossOutput output, int n_rows, int column_tiles, int row_tiles, Slope slope, float order) {
  CROSSRET_SHARED(Statistic<negatives>, of_rows, kFinishThreads);
  CROSSRET_SHARED(Statistic<negatives>, of_columns, kFinishThreads);
  const int slot = thread_index() / kWarp, positive = block_x() * kWarp + thread_index() % kWarp;
  const auto gathered = [&](Global<const Statistic<negatives>> parts, int count) {
    Statistic<negatives> sum = no_hinges<negatives>();
    for (int part = slot; part < count; part += kFinishSlots) {
      merge(sum, load(parts, int64_t{part} * n_rows + positive), slope);
    }
    return sum;
  };
  if (positive < n_rows) {
    of_rows[thread_index()] = gathered(rows, column_tiles);
    of_columns[thread_index()] = gathered(columns, row_tiles);
  }
  sync_block();
  if (slot != 0 || positive >= n_rows) return;
  Statistic<negatives> row = of_rows[thread_index()], column = of_columns[thread_index()];
  for (int other = 1; other < kFinishSlots; ++other) {
    merge(row, of_rows[other * kWarp + thread_index()], slope);
    merge(column, of_columns[other * kWarp + thread_index()], slope);
  }
  const Finished of_row = finished(row, order), of_column = finished(column, order);
  store(output.losses, positive, of_row.loss + of_column.loss);
  const Global<float> at = output.statistics + positive;
  store(at, 0, of_row.key);
  store(at, n_rows, of_row.total);
  store(at, int64_t{2} * n_rows, of_column.key);
  store(at, int64_t{3} * n_rows, of_column.total);
}

// The sum of all losses, or their mean, by one block.
CROSSRET_KERNEL(kSumThreads, 1)
sum_losses(Global<const float> losses, Global<float> loss, int n_rows, bool mean) {
  CROSSRET_SHARED(double, sums, kSumThreads);
  const int thread = thread_index();
  double sum = 0;
  for (int i = thread; i < n_rows; i += kSumThreads) sum += static_cast<double>(load(losses, i));
  sums[thread] = sum;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    sync_block();
    if (thread < half) sums[thread] = sums[thread] + sums[thread + half];
  }
  if (thread == 0) store(loss, 0, static_cast<float>(mean && n_rows > 0 ? sums[0] / n_rows : double{sums[0]}));
}

// ∂L/∂ the losses, `stride` apart, times a weight; and what the forward pass made of every positive.
struct LossGradient {
  Global<const float> grads;
  int64_t stride;
  float weight;
  Global<const float> statistics;
};

// ∂loss/∂hinge times a gradient, of each hinge's row or column; of no hinge 0, whatever the gradient.
CROSSRET_DEVICE void pull(const float (&hinges)[kVector], const float (&grads)[kVector], const Scale (&keys)[kVector],
                          const Slope& slope, float (&made)[kVector]) {
  float ratios[kVector];
  // loss / M is a norm of hinges / M, so that M cancels: (h / loss)ᵖ⁻¹
#pragma unroll
  for (int k = 0; k < kVector; ++k) ratios[k] = ratio(hinges[k], keys[k], slope);
  power(ratios, slope, made);
#pragma unroll
  for (int k = 0; k < kVector; ++k) made[k] = hinges[k] == 0.0f ? 0.0f : grads[k] * made[k];
}

template <class T>
CROSSRET_DEVICE void store_row(const LossProblem<T>& problem, const Columns<T>& columns, Global<T> to,
                               const float (&values)[kVector]) {
  Four<T> four;
#pragma unroll
  for (int k = 0; k < kVector; ++k) narrow(values[k], four.at[k]);
  if (problem.aligned && columns.inside) {
    store(Global<Four<T>>(to + columns.first), 0, four);
    return;
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    if (columns[k] < problem.n_columns) store(to, columns[k], four.at[k]);
  }
}

// The gradient of a tile of scores, rows of which are `out_stride` apart. The hardest are known by their places:
// neither scores nor ids are read.
template <class T, Negatives negatives, bool with_ids>
CROSSRET_KERNEL(kTileThreads, 2)
score_gradients(CROSSRET_PARAMETER LossProblem<T> problem, CROSSRET_PARAMETER LossGradient given, Global<T> out,
                int64_t out_stride) {
  constexpr bool hardest = negatives == Negatives::hardest, softmax = negatives == Negatives::softmax;
  static_assert(!(hardest && with_ids), "ids are not read");
  CROSSRET_SHARED(float, grads, kMostRows);
  CROSSRET_SHARED(float, keys, kMostRows);
  CROSSRET_SHARED(float, of_positives, kMostRows);
  CROSSRET_SHARED(float, thresholds, hardest ? 1 : kMostRows);
  CROSSRET_SHARED(int64_t, row_ids, with_ids ? 2 * kMostRows : 1);
  const int thread = thread_index(), n_rows = problem.n_rows;
  const int first = block_y() * problem.tile_rows, left = n_rows - first;
  const int height = left < problem.tile_rows ? left : problem.tile_rows;
  const Global<const float> row_keys = given.statistics, row_totals = row_keys + n_rows;
  const Global<const float> column_keys = row_totals + n_rows, column_totals = column_keys + n_rows;
  for (int r = thread; r < height; r += block_threads()) {
    const int i = first + r;
    const float grad = load(given.grads, i * given.stride) * given.weight;
    const float total = load(row_totals, i) + load(column_totals, i);
    grads[r] = grad;
    keys[r] = load(row_keys, i);
    of_positives[r] = total != 0.0f ? 0.0f - grad * total : 0.0f;
    if constexpr (!hardest) thresholds[r] = threshold_of(problem, i);
    if constexpr (with_ids) {
      for (int kind = 0; kind < 2; ++kind) {
        row_ids[kind * kMostRows + r] = load(problem.ids[kind], i + problem.offset);
      }
    }
  }
  const Columns<T> own = own_columns(problem);
  float own_grads[kVector], own_keys[kVector], own_thresholds[kVector];
  Scale own_scales[kVector];
  bool some_positive = false;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const bool positive = has_positive(problem, own[k]);
    const int i = positive ? own[k] - problem.offset : 0;
    some_positive = some_positive || positive;
    own_grads[k] = positive ? load(given.grads, i * given.stride) * given.weight : 0.0f;
    own_keys[k] = positive ? load(column_keys, i) : -1.0f;
    own_thresholds[k] = positive && !hardest ? threshold_of(problem, i) : 0.0f;
    if constexpr (softmax) own_scales[k] = scale_of(own_keys[k]);
  }
  int64_t ids[2][kVector] = {};
  if constexpr (with_ids) load_ids(problem, own, ids);
  sync_block();

  for (int r = 0; r < height; r += kStep) {
    const int row = first + r, some = height - r;
    Scores scores;
    if constexpr (!hardest) {
      load_scores(problem, own, row, some, scores);
      scores.negative = negatives_of(problem, own, row, some);
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (i >= some) continue;
      const float grad = grads[r + i], key = keys[r + i];
      float made[kVector];
      if constexpr (hardest) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          made[k] = static_cast<float>(own[k]) == key ? grad : 0.0f;
          if (static_cast<float>(row + i) == own_keys[k]) made[k] += own_grads[k];
        }
      } else {
        if constexpr (with_ids) {
          const int64_t mine[2] = {row_ids[r + i], row_ids[kMostRows + r + i]};
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            if (mine[0] == ids[0][k] || mine[1] == ids[1][k]) scores.negative &= ~(1u << (i * kVector + k));
          }
        }
        const float threshold = thresholds[r + i];
        float of_row[kVector], of_column[kVector];
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float hinge = hinge_of<true>(own_thresholds[k], scores, i, k);
          of_row[k] = hinge_of<true>(threshold, scores, i, k);
          of_column[k] = has_positive(problem, own[k]) ? hinge : 0.0f;
        }
        if constexpr (softmax) {
          const Scale scale = scale_of(key);
          const float row_grads[kVector] = {grad, grad, grad, grad};
          const Scale row_scales[kVector] = {scale, scale, scale, scale};
          pull(of_row, row_grads, row_scales, problem.slope, made);
          if (some_positive) {
            float more[kVector];
            pull(of_column, own_grads, own_scales, problem.slope, more);
#pragma unroll
            for (int k = 0; k < kVector; ++k) made[k] += more[k];
          }
        } else {
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            made[k] = of_row[k] == 0.0f ? 0.0f : grad;
            if (of_column[k] != 0.0f) made[k] += own_grads[k];
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (own[k] - problem.offset == row + i) made[k] = of_positives[r + i];
      }
      store_row(problem, own, out + (row + i) * out_stride, made);
    }
  }
}

}  // namespace gpu
}  // namespace crossret
