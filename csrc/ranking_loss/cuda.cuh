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
#include <type_traits>

#include "ranking_loss/hinges.cuh"

namespace crossret {
namespace gpu {

constexpr int kFinishSlots = 8;  // that share the parts of a positive
constexpr int kFinishThreads = kFinishSlots * kWarp;
constexpr int kSumThreads = 256;

// How the scores are cut into tiles.
struct LossPlan {
  int warps, rows;                  // of a tile
  int row_tiles, column_tiles;      // the grid of both passes: rows, which may be more, along x
  int64_t row_parts, column_parts;  // statistics that the forward pass keeps: of rows, of columns

  constexpr int threads() const { return warps * kWarp; }
};

// Tiles of at least one row, as large as leave each of `multiprocessors` two of them, if the scores suffice.
constexpr LossPlan plan_loss(int n_rows, int n_columns, int multiprocessors) {
  const auto tiles_of = [](int n, int size) { return (n + size - 1) / size; };
  const auto tiles = [&](int warps, int rows) {
    return int64_t{tiles_of(n_columns, warps * kWarpColumns)} * tiles_of(n_rows, rows);
  };
  int warps = kMostWarps, rows = kMostRows;
  while (warps > 1 && (warps / 2) * kWarpColumns >= n_columns) warps /= 2;
  while (rows > kStep && tiles(warps, rows) < 2 * int64_t{multiprocessors}) rows /= 2;
  while (warps > 1 && tiles(warps, rows) < 2 * int64_t{multiprocessors}) warps /= 2;
  const int column_tiles = tiles_of(n_columns, warps * kWarpColumns), row_tiles = tiles_of(n_rows, rows);
  return {warps, rows, row_tiles, column_tiles, int64_t{column_tiles} * n_rows, int64_t{row_tiles} * n_rows};
}

// Statistics of a tile: of its rows over its columns at rows + (column tile, row), of the columns that have positives
// over its rows at columns + (row tile, positive).
template <class T, Negatives negatives, int factors, bool with_ids>
CROSSRET_KERNEL(kTileThreads, 2)
hinge_statistics(CROSSRET_PARAMETER LossProblem<T> problem, Global<Statistic<negatives>> rows,
                 Global<Statistic<negatives>> columns) {
  CROSSRET_SHARED(float, thresholds, kMostRows);
  CROSSRET_SHARED(int64_t, row_ids, with_ids ? 2 * kMostRows : 1);
  CROSSRET_SHARED(Statistic<negatives>, of_rows, kMostWarps * kMostRows);
  const Slope slope{factors, problem.slope};
  const int thread = thread_index(), lane = thread % kWarp, warp = thread / kWarp;
  const int first = block_x() * problem.tile_rows, left = problem.n_rows - first;
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
    if constexpr (with_ids) drop_equals(row_ids, r, some, ids, scores);
    const auto threshold = [&](int i) -> float { return i < some ? static_cast<float>(thresholds[r + i]) : 0.0f; };
    Statistic<negatives> of_row;
    const auto measure = [&](auto masked) {
      constexpr bool some_none = decltype(masked)::value;
      if (some_positive) measure_columns<negatives, some_none>(scores, column_thresholds, row, of_columns, slope);
      // Hinges of rows take the scores' registers.
      of_row = measure_rows<negatives, some_none>(scores, threshold, own, lane, slope);
    };
    // Most warps meet no positive, no edge and no equal ids.
    if (all(scores.negative == ~0u)) {
      measure(std::false_type{});
    } else {
      measure(std::true_type{});
    }
    if (lane % (kWarp / kStep) == 0) of_rows[warp * kMostRows + r + row_of(lane)] = of_row;
  }

#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    if (!has_positive(problem, own[k])) continue;
    store(columns, int64_t{block_x()} * problem.n_rows + own[k] - problem.offset, of_columns[k]);
  }
  sync_block();
  for (int r = thread; r < height; r += block_threads()) {
    Statistic<negatives> sum = of_rows[r];
    for (int w = 1; w < block_threads() / kWarp; ++w) merge(sum, of_rows[w * kMostRows + r], slope);
    store(rows, int64_t{block_y()} * problem.n_rows + first + r, sum);
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

// ∂loss/∂hinge times a gradient, of a hinge's row or column; of no hinge 0, whatever the gradient.
template <Negatives negatives>
CROSSRET_DEVICE float pull(float hinge, float grad, float scale, const Slope& slope) {
  if constexpr (negatives == Negatives::softmax) {
    // loss / M is a norm of hinges / M, so that M cancels: (h / loss)ᵖ⁻¹
    const float ratios[1] = {ratio(hinge, scale, slope)};
    float powers[1];
    power(ratios, slope, powers);
    grad *= powers[0];
  }
  return hinge == 0.0f ? 0.0f : grad;
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

// That fit a multiprocessor: registers that three leave hold neither ids nor logarithms.
template <Negatives negatives, int factors, bool with_ids>
constexpr int kGradientBlocks = with_ids || (negatives == Negatives::softmax && factors == 0) ? 2 : 3;

// The gradient of a tile of scores, rows of which lie without gaps. The hardest are known by their places: neither
// scores nor ids are read.
template <class T, Negatives negatives, int factors, bool with_ids>
CROSSRET_KERNEL(kTileThreads, (kGradientBlocks<negatives, factors, with_ids>))
score_gradients(CROSSRET_PARAMETER LossProblem<T> problem, CROSSRET_PARAMETER LossGradient given, Global<T> out) {
  constexpr bool hardest = negatives == Negatives::hardest, softmax = negatives == Negatives::softmax;
  static_assert(!(hardest && with_ids), "ids are not read");
  CROSSRET_SHARED(float, grads, kMostRows);
  CROSSRET_SHARED(float, keys, kMostRows);
  CROSSRET_SHARED(float, of_positives, kMostRows);
  CROSSRET_SHARED(float, thresholds, hardest ? 1 : kMostRows);
  CROSSRET_SHARED(int64_t, row_ids, with_ids ? 2 * kMostRows : 1);
  const Slope slope{factors, problem.slope};
  const int thread = thread_index(), n_rows = problem.n_rows;
  const int first = block_x() * problem.tile_rows, left = n_rows - first;
  const int height = left < problem.tile_rows ? left : problem.tile_rows;
  const Global<const float> row_keys = given.statistics, row_totals = row_keys + n_rows;
  const Global<const float> column_keys = row_totals + n_rows, column_totals = column_keys + n_rows;
  const auto key_of = [&](float key) { return softmax ? scale_of(key, slope) : key; };
  for (int r = thread; r < height; r += block_threads()) {
    const int i = first + r;
    const float grad = load(given.grads, i * given.stride) * given.weight;
    const float total = load(row_totals, i) + load(column_totals, i);
    grads[r] = grad;
    keys[r] = key_of(load(row_keys, i));
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
  bool some_positive = false;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const bool positive = has_positive(problem, own[k]);
    const int i = positive ? own[k] - problem.offset : 0;
    some_positive = some_positive || positive;
    own_grads[k] = positive ? load(given.grads, i * given.stride) * given.weight : 0.0f;
    own_keys[k] = key_of(positive ? load(column_keys, i) : -1.0f);
    own_thresholds[k] = positive && !hardest ? threshold_of(problem, i) : -INFINITY;  // beside which no hinge is
  }
  int64_t ids[2][kVector] = {};
  if constexpr (with_ids) load_ids(problem, own, ids);
  sync_block();

  for (int r = 0; r < height; r += kStep) {
    const int row = first + r, some = height - r;
    Scores scores{};
    if constexpr (!hardest) {
      load_scores(problem, own, row, some, scores);
      scores.negative = negatives_of(problem, own, row, some);
    }
    if constexpr (with_ids) drop_equals(row_ids, r, some, ids, scores);
    const auto differentiate = [&](auto masked) {
      constexpr bool some_none = decltype(masked)::value;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        if (some_none && i >= some) continue;
        const float grad = grads[r + i], key = keys[r + i];
        float made[kVector];
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          if constexpr (hardest) {
            made[k] = static_cast<float>(own[k]) == key ? grad : 0.0f;
          } else {
            made[k] = pull<negatives>(hinge_of<some_none>(thresholds[r + i], scores, i, k), grad, key, slope);
          }
        }
        if (some_positive) {
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            if constexpr (hardest) {
              if (static_cast<float>(row + i) == own_keys[k]) made[k] += own_grads[k];
            } else {
              const float hinge = hinge_of<some_none>(own_thresholds[k], scores, i, k);
              made[k] += pull<negatives>(hinge, own_grads[k], own_keys[k], slope);
            }
          }
        }
        if constexpr (some_none) {
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            if (own[k] - problem.offset == row + i) made[k] = of_positives[r + i];
          }
        }
        store_row(problem, own, out + int64_t{row + i} * problem.n_columns, made);
      }
    };
    // Most warps meet no positive, no edge and no equal ids. Of the hardest there is little to do.
    if (!hardest && all(scores.negative == ~0u)) {
      differentiate(std::false_type{});
    } else {
      differentiate(std::true_type{});
    }
  }
}

}  // namespace gpu
}  // namespace crossret
