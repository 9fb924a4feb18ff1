// Hinges of a step of scores in CUDA, a thread's four columns of eight rows, and statistics of them.
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
constexpr int kNowhere = 0x7FFFFFFF;

// p − 1: a product of so many factors, which a kernel is compiled for; by logarithms where they are 0.
struct Slope {
  int factors;
  float value;
};

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
  float slope;  // p − 1
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
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (slope.factors == 0) {
      powers[i] = values[i] == 0.0f ? 0.0f : exp2f(log2f(values[i]) * slope.value);
      continue;
    }
    powers[i] = 1.0f;
    float square = values[i];
#pragma unroll
    for (int bits = slope.factors; bits != 0; bits >>= 1) {
      if ((bits & 1) != 0) powers[i] *= square;
      square *= square;
    }
  }
}

// What hinges are brought to ratios by: its inverse for products, itself where a large power would show how an inverse
// is rounded. Values below the normal range are beside nothing.
CROSSRET_DEVICE float scale_of(float value, const Slope& slope) {
  const float least = 1.17549435e-38f, bounded = value < least ? least : value;
  return slope.factors != 0 ? 1.0f / bounded : bounded;
}

// h / what the scale is of; where powers may be large at most 1, but for NaN.
CROSSRET_DEVICE float ratio(float hinge, float scale, const Slope& slope) {
  if (slope.factors != 0) return hinge * scale;
  const float quotient = hinge / scale;
  return quotient > 1.0f ? 1.0f : quotient;
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
CROSSRET_DEVICE int gather_counts(const uint32_t (&counts)[kStep / 4], int lane) {
  static_assert(kStep == 8 && kWarpColumns < 256, "two numbers, which a warp's columns do not overflow");
  const bool upper = (lane & kWarp / 2) != 0;
  uint32_t sum = (upper ? counts[1] : counts[0]) + shuffle_xor(upper ? counts[0] : counts[1], kWarp / 2);
#pragma unroll
  for (int bit = kWarp / 4; bit > 0; bit /= 2) sum += shuffle_xor(sum, bit);
  return static_cast<int>(sum >> (row_of(lane) % 4 * 8) & 255);
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
  const int start = block_y() * block_threads() * kVector + warp * kWarpColumns;
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
CROSSRET_DEVICE void add(Statistic<Negatives::hardest>& kept, const float (&hinges)[n], const Place& place) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int bits = bits_of(hinges[i]);
    if (bits > kept.most) kept = {bits, place(i)};
  }
}
template <int n, class Place>
CROSSRET_DEVICE void add(Statistic<Negatives::sum>& kept, const float (&hinges)[n], const Place&) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    kept.sum += hinges[i];
    if (hinges[i] != 0.0f) kept.count += 1.0f;
  }
}
// To a statistic of a scale that is at least the hinges.
template <int n>
CROSSRET_DEVICE void add_powers(float& powers, float& slopes, const float (&hinges)[n], float scale,
                                const Slope& slope) {
  float ratios[n], made[n];
#pragma unroll
  for (int i = 0; i < n; ++i) ratios[i] = ratio(hinges[i], scale, slope);
  power(ratios, slope, made);
#pragma unroll
  for (int i = 0; i < n; ++i) {
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
template <int n>
CROSSRET_DEVICE void add(Statistic<Negatives::softmax>& kept, const float (&hinges)[n], const Slope& slope) {
  const int most = most_of(hinges);
  if (most > kept.most) rescale(kept, most, slope);
  add_powers(kept.powers, kept.slopes, hinges, scale_of(float_of(kept.most), slope), slope);
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
    const float scale = scale_of(float_of(own), slope);
    Statistic<Negatives::sum> sums[kStep];
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
      hinges_of(r, hinges);
      sums[r] = {0.0f, 0.0f};
      add_powers(sums[r].sum, sums[r].count, hinges, shuffle(scale, r * (kWarp / kStep)), slope);
    }
    const Statistic<Negatives::sum> sum = gather_rows(sums, lane, slope);
    return {own, sum.sum, sum.count};
  } else if constexpr (negatives == Negatives::sum) {
    // Counts in few registers and shuffles.
    float sums[kStep];
    uint32_t counts[kStep / 4] = {};
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
      hinges_of(r, hinges);
      sums[r] = 0.0f;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        sums[r] += hinges[k];
        if (hinges[k] != 0.0f) counts[r / 4] += 1u << (r % 4 * 8);
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
      add(rows[r], hinges, [&](int k) { return columns[k]; });
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
    if constexpr (negatives == Negatives::softmax) {
      add(of_columns[k], hinges, slope);
    } else {
      add(of_columns[k], hinges, [=](int r) { return row + r; });
    }
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

// Of a tile's rows from the r-th on, whose ids of either kind lie kMostRows apart: no negatives where ids are equal.
template <class Ids>
CROSSRET_DEVICE void drop_equals(Ids& row_ids, int r, int some, const int64_t (&ids)[2][kVector], Scores& scores) {
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

}  // namespace gpu
}  // namespace crossret
