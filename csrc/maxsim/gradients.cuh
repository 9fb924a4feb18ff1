// Sum-Max's gradients in CUDA, from the place of every query's best context.
//
// A query's gradient is a weighted sum of its best contexts, and a context's of the queries that took it; both gather
// rows of features, one for each query and item of contexts, so that either side costs n_queries · n_contexts · D
// elements read through the L2. Of the queries that took one of a block's contexts a list is made in shared memory, in
// their order, which every warp looks through for its own contexts. Where few rows have long sums, runs of a sum have
// blocks of their own and are added afterwards: every sum has one order, and nothing is added atomically. Where
// similarities are cosines features count by x / ‖x‖: what of the gradient points along x, which is the sum of its
// similarities by their weights, is taken out.
#pragma once
#include "maxsim/gpu.h"
#include "maxsim/rows.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

constexpr int kGradientThreads = 256, kGradientWarps = kGradientThreads / kWarp;
static_assert(kGradientColumns == 4 * kWarp, "a lane has four columns");
constexpr int kNormRows = kGradientWarps;

// What gradients are made of: of one side, `own`, from the rows of the other.
template <class T>
struct GradientProblem {
  Rows<T> own, others;
  Global<const float> grads;  // of scores
  Global<const int> indices;  // what queries found, index_context apart for items of contexts or pairs
  Global<const float> maxima;
  // Of an item of queries, where what they have found starts, and of what is found, the item; where tables tell. Else
  // an item has query_slots places.
  Global<const int> starts, holders;
  Global<const int64_t> pairs, order, begins;  // listed: their order by own items, whose begin at begins
  Global<T> out;
  Global<float> runs, alongs;  // what runs of sums leave: (runs, rows, D), (runs, rows)
  int64_t grad_context, grad_query, index_context;
  int first_own, item_blocks, block_rows, n_runs;   // the first block's item; blocks of an item; rows of one; of a sum
  int first_item, n_items, n_queries, query_slots;  // items of contexts; places for what is found of queries
  int context_column, pieces;  // of listed pairs: the column of contexts; pieces of 32 queries of the longest item
  bool listed, average, normalize, add;
  bool fours;  // whether rows of either side begin at multiples of four elements

  CROSSRET_DEVICE int start_of(int item) const { return query_slots > 0 ? item * query_slots : load(starts, item); }
};

// Four columns of a lane, of `dim` in a row that begins at `begin`; zeros behind them. `fours` says that rows begin at
// multiples of four elements.
template <class T>
CROSSRET_DEVICE void load_columns(Global<const T> from, int64_t begin, int dim, int column, bool fours, float (&x)[4]) {
  if (fours && column + 4 <= dim) {
    const Four<T> four = load(Global<const Four<T>>(from + (begin + column)), 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = widened(four.at[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = column + k < dim ? widened(load(from, begin + column + k)) : 0.0f;
}

// Stores four columns of a lane, of `dim` in a row that begins at `begin`; rows follow one another.
template <class T>
CROSSRET_DEVICE void store_columns(Global<T> to, int64_t begin, int dim, int column, const float (&x)[4]) {
  Four<T> made;
#pragma unroll
  for (int k = 0; k < 4; ++k) narrow(x[k], made.at[k]);
  if (dim % 4 == 0 && column < dim) return store(Global<Four<T>>(to + (begin + column)), 0, made);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (column + k < dim) store(to, begin + column + k, made.at[k]);
  }
}

// A row's gradient in four columns of a lane, in place or beside what an earlier part has left there.
template <class T>
CROSSRET_DEVICE void store_gradient(const GradientProblem<T>& problem, int row, int64_t begin, int column,
                                    float (&total)[4], float along) {
  if (problem.normalize) {
    const float scale = load(problem.own.scales, row);
    float x[4];
    load_columns(problem.own.features, begin, problem.own.dim, column, problem.fours, x);
#pragma unroll
    for (int k = 0; k < 4; ++k) total[k] = (total[k] - x[k] * scale * along) * scale;
  }
  const int64_t at = int64_t{row} * problem.own.dim;
  if (problem.add) {
    float before[4];
    load_columns(Global<const T>(problem.out), at, problem.own.dim, column, problem.own.dim % 4 == 0, before);
#pragma unroll
    for (int k = 0; k < 4; ++k) total[k] += before[k];
  }
  store_columns(problem.out, at, problem.own.dim, column, total);
}

// The same, or of one of several runs its share of the sum.
template <class T>
CROSSRET_DEVICE void leave(const GradientProblem<T>& problem, int run, int row, int64_t begin, int column,
                           float (&total)[4], float along) {
  if (problem.n_runs == 1) return store_gradient(problem, row, begin, column, total, along);
  const int64_t number = int64_t{run} * problem.own.n_rows + row;
  store_columns(problem.runs, number * problem.own.dim, problem.own.dim, column, total);
  if (problem.normalize && column == 0) store(problem.alongs, number, along);
}

// A block's rows, none of one that is behind its item's end, and its share of their sums: blockIdx is (block of rows,
// columns · runs).
struct GradientBlock {
  int64_t begin;
  int row, height, item, start, length;  // of the first row, its number and its place in the item; rows of that
  int column, run;                       // of a lane; of the block

  template <class T>
  CROSSRET_DEVICE static GradientBlock of(const GradientProblem<T>& problem) {
    const int item = problem.first_own + block_x() / problem.item_blocks;
    const int start = block_x() % problem.item_blocks * problem.block_rows;
    const ItemRows rows = problem.own.item(item);
    const int left = rows.length - start;
    return {rows.begin + start * problem.own.row_stride,
            rows.first + start,
            left < problem.block_rows ? left : problem.block_rows,
            item,
            start,
            rows.length,
            block_y() / problem.n_runs * kGradientColumns + thread_index() % kWarp * 4,
            block_y() % problem.n_runs};
  }
};

// One of the runs that a sum is shared out into.
struct Run {
  int64_t begin, end;

  CROSSRET_DEVICE static Run of(int64_t begin, int64_t end, int run, int n_runs) {
    const int64_t length = (end - begin + n_runs - 1) / n_runs, first = begin + run * length;
    return {first, first + length < end ? first + length : end};
  }
};

// A row that is gathered: where it begins, its weight, and what the sum along x gets of it.
struct Gathered {
  int64_t begin;
  float weight, share;
};

// Adds four columns of the gathered rows that lanes name.
template <class T>
CROSSRET_DEVICE void gather(const Rows<T>& side, const Gathered& mine, bool taken, int column, bool fours,
                            float (&total)[4], float& along) {
  for (uint32_t lanes = ballot(taken); lanes != 0; lanes &= lanes - 1) {
    const int lane = first_one(lanes);
    const int64_t begin = shuffle(mine.begin, lane);
    const float weight = shuffle(mine.weight, lane);
    along += shuffle(mine.share, lane);
    float x[4];
    load_columns(side.features, begin, side.dim, column, fours, x);
#pragma unroll
    for (int k = 0; k < 4; ++k) total[k] += weight * x[k];
  }
}

// Of a block of queries: over n_items items of contexts from first_item on or, where listed, over the item's pairs. A
// warp has every eighth row.
template <class T>
CROSSRET_KERNEL(kGradientThreads, 2)
query_gradients(CROSSRET_PARAMETER GradientProblem<T> problem) {
  const GradientBlock block = GradientBlock::of(problem);
  const int lane = thread_index() % kWarp;
  const Run run = problem.listed ? Run::of(load(problem.begins, block.item), load(problem.begins, block.item + 1),
                                           block.run, problem.n_runs)
                                 : Run::of(0, problem.n_items, block.run, problem.n_runs);
  const int start = block.start + (problem.listed ? 0 : problem.start_of(block.item));
  for (int slot = thread_index() / kWarp; slot < block.height; slot += kGradientWarps) {
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f}, along = 0.0f;
    for (int64_t first = run.begin; first < run.end; first += kWarp) {
      Gathered mine{0, 0.0f, 0.0f};
      bool taken = false;
      if (first + lane < run.end) {
        const int64_t local = problem.listed ? load(problem.order, first + lane) : first + lane;
        const int64_t cell = local * problem.index_context + start + slot;
        const int best = load(problem.indices, cell);
        taken = best >= 0;
        if (taken) {
          const int item = problem.listed ? static_cast<int>(load(problem.pairs, 2 * local + problem.context_column))
                                          : problem.first_item + static_cast<int>(local);
          const ItemRows rows = problem.others.item(item);
          mine.begin = rows.begin + best * problem.others.row_stride;
          mine.weight =
              load(problem.grads, problem.listed ? local * problem.grad_context
                                                 : item * problem.grad_context + block.item * problem.grad_query);
          if (problem.normalize) {
            mine.share = mine.weight * load(problem.maxima, cell);
            mine.weight *= load(problem.others.scales, rows.first + best);
          }
        }
      }
      gather(problem.others, mine, taken, block.column, problem.fours, total, along);
    }
    if (problem.average) {
      const auto count = static_cast<float>(block.length);
#pragma unroll
      for (int k = 0; k < 4; ++k) total[k] /= count;
      along /= count;
    }
    leave(problem, block.run, block.row + slot, block.begin + slot * problem.own.row_stride, block.column, total,
          along);
  }
}

// Of a block of contexts: over all queries or, where listed, over those of the item's pairs, 32 of one pair at a time.
template <class T>
CROSSRET_KERNEL(kGradientThreads, 2)
context_gradients(CROSSRET_PARAMETER GradientProblem<T> problem) {
  CROSSRET_SHARED(int64_t, begins, kGradientThreads);
  CROSSRET_SHARED(float, weights, kGradientThreads);
  CROSSRET_SHARED(float, shares, kGradientThreads);
  CROSSRET_SHARED(int, places, kGradientThreads);
  CROSSRET_SHARED(int, counts, kGradientWarps);
  constexpr int warp_rows = kMostBlockRows / kGradientWarps;
  const GradientBlock block = GradientBlock::of(problem);
  if (block.height <= 0) return;
  const int lane = thread_index() % kWarp, warp = thread_index() / kWarp;
  const int64_t first_pair = problem.listed ? load(problem.begins, block.item) : 0;
  const int64_t n_units = problem.listed ? (load(problem.begins, block.item + 1) - first_pair) * problem.pieces
                                         : (problem.n_queries + kWarp - 1) / kWarp;
  const Run run = Run::of(0, n_units, block.run, problem.n_runs);
  float totals[warp_rows][4], along[warp_rows];
#pragma unroll
  for (int i = 0; i < warp_rows; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) totals[i][k] = 0.0f;
    along[i] = 0.0f;
  }
  for (int64_t first = run.begin; first < run.end; first += kGradientWarps) {
    const int64_t unit = first + warp;
    Gathered mine{0, 0.0f, 0.0f};
    int place = -1;
    if (unit < run.end) {
      int item = 0, query = 0;
      int64_t cell = -1, grad = 0;
      if (problem.listed) {
        const int64_t local = load(problem.order, first_pair + unit / problem.pieces);
        item = static_cast<int>(load(problem.pairs, 2 * local + 1 - problem.context_column));
        query = static_cast<int>(unit % problem.pieces) * kWarp + lane;
        cell = local * problem.index_context + query;
        grad = local * problem.grad_context;
      } else if (unit * kWarp + lane < problem.n_queries) {
        const int number = static_cast<int>(unit) * kWarp + lane;
        item = problem.query_slots > 0 ? number / problem.query_slots : load(problem.holders, number);
        query = number - problem.start_of(item);
        cell = (block.item - problem.first_item) * problem.index_context + number;
        grad = block.item * problem.grad_context + item * problem.grad_query;
      }
      const ItemRows rows = problem.others.item(item);
      const int best = cell < 0 || query >= rows.length ? -1 : load(problem.indices, cell) - block.start;
      if (best >= 0 && best < block.height) {
        place = best;
        mine.begin = rows.begin + query * problem.others.row_stride;
        mine.weight = load(problem.grads, grad);
        if (problem.average) mine.weight /= static_cast<float>(rows.length);
        if (problem.normalize) {
          mine.share = mine.weight * load(problem.maxima, cell);
          mine.weight *= load(problem.others.scales, rows.first + query);
        }
      }
    }
    const uint32_t taken = ballot(place >= 0);
    if (lane == 0) counts[warp] = count_ones(taken);
    sync_block();
    int before = 0, all = 0;
    for (int w = 0; w < kGradientWarps; ++w) {
      const int count = counts[w];
      if (w < warp) before += count;
      all += count;
    }
    if (place >= 0) {
      const int at = before + count_ones(taken & ((1u << lane) - 1));
      begins[at] = mine.begin;
      weights[at] = mine.weight;
      shares[at] = mine.share;
      places[at] = place;
    }
    sync_block();
    for (int at = 0; at < all; at += kWarp) {
      const bool some = at + lane < all;
      const int theirs = some ? places[at + lane] : -1;
      const Gathered listed{some ? int64_t{begins[at + lane]} : 0, some ? float{weights[at + lane]} : 0.0f,
                            some ? float{shares[at + lane]} : 0.0f};
#pragma unroll
      for (int i = 0; i < warp_rows; ++i) {
        gather(problem.others, listed, theirs == warp + i * kGradientWarps, block.column, problem.fours, totals[i],
               along[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < warp_rows; ++i) {
    const int slot = warp + i * kGradientWarps;
    if (slot >= block.height) continue;
    leave(problem, block.run, block.row + slot, block.begin + slot * problem.own.row_stride, block.column, totals[i],
          along[i]);
  }
}

// Rows' gradients from what the runs of their sums have left: a warp has every eighth row of a block of rows.
template <class T>
CROSSRET_KERNEL(kGradientThreads, 2)
sum_of_runs(CROSSRET_PARAMETER GradientProblem<T> problem) {
  const GradientBlock block = GradientBlock::of(problem);
  const int column = block_y() * kGradientColumns + thread_index() % kWarp * 4;
  for (int slot = thread_index() / kWarp; slot < block.height; slot += kGradientWarps) {
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f}, along = 0.0f;
    for (int run = 0; run < problem.n_runs; ++run) {
      const int64_t number = int64_t{run} * problem.own.n_rows + block.row + slot;
      const int dim = problem.own.dim;
      float part[4];
      load_columns(Global<const float>(problem.runs), number * dim, dim, column, dim % 4 == 0, part);
#pragma unroll
      for (int k = 0; k < 4; ++k) total[k] += part[k];
      if (problem.normalize) along += load(Global<const float>(problem.alongs), number);
    }
    store_gradient(problem, block.row + slot, block.begin + slot * problem.own.row_stride, column, total, along);
  }
}

// 1 / ‖x‖ of every row of a side: 0 where it is not finite, scores are NaN there by similarities, and where its inverse
// may not be. A warp has a row.
template <class T>
CROSSRET_KERNEL(kGradientThreads, 2)
inverse_norms(CROSSRET_PARAMETER Rows<T> side, Global<float> scales, int n_rows) {
  const int row = block_x() * kNormRows + thread_index() / kWarp, lane = thread_index() % kWarp;
  if (row >= n_rows) return;
  const int64_t begin = side.begin(row);
  float largest = 0.0f;
  for (int d = lane; d < side.dim; d += kWarp)
    largest = max_or_nan(largest, fabsf(widened(load(side.features, begin + d))));
#pragma unroll
  for (int near = kWarp / 2; near > 0; near /= 2) largest = max_or_nan(largest, shuffle_xor(largest, near));
  const float scale = largest > 0 ? largest : 1.0f;  // so that squares neither overflow nor vanish
  float squares = 0.0f;
  for (int d = lane; d < side.dim; d += kWarp) {
    const float x = widened(load(side.features, begin + d)) / scale;
    squares += x * x;
  }
#pragma unroll
  for (int near = kWarp / 2; near > 0; near /= 2) squares += shuffle_xor(squares, near);
  const float norm = scale * sqrtf(squares);
  const bool usable = norm >= 1.17549435e-38f && norm < float_of(0x7F800000);
  if (lane == 0) store(scales, row, usable ? 1.0f / norm : 0.0f);
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
