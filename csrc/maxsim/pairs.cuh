// Listed pairs of Sum-Max in CUDA: tiles of the queries of pairs that share an item of contexts, and what becomes of
// what their queries have found. Pairs' scores are sums in the order of queries, whatever tiles they were found in.
#pragma once
#include "maxsim/found.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

constexpr int kPairThreads = 256, kPairWarps = kPairThreads / kWarp;

// Pairs (image, caption), and their order by items of contexts; without an order each has tiles of its own.
struct ListedPairs {
  Global<const int64_t> pairs, order;
  // In order: rows of queries up to each pair's end. Of items of contexts: rows and tiles of all up to its end.
  Global<const int64_t> row_ends, item_rows, item_tiles;
  bool ordered;
  int n_pairs, n_contexts, context_column, tiles_of_pair;

  CROSSRET_DEVICE int context(int64_t pair) const { return static_cast<int>(load(pairs, 2 * pair + context_column)); }
  CROSSRET_DEVICE int query(int64_t pair) const { return static_cast<int>(load(pairs, 2 * pair + 1 - context_column)); }
};

// How many of `count` ascending numbers are not above x.
CROSSRET_DEVICE int not_above(Global<const int64_t> numbers, int count, int64_t x) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (load(numbers, middle) <= x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

struct ListedTiles {
  Global<int> rows, contexts;  // (tiles, rows of a tile), −1 where there is none; (tiles,), −1 for no tile
  Global<int64_t> cells;
  int n_tiles;
};

// A thread has a slot of a tile; a block has `tile_rows` threads. What is found of pair p's queries stands from
// p · pitch on.
CROSSRET_KERNEL(kPairThreads, 2)
list_tiles(CROSSRET_PARAMETER ListedPairs listed, Items queries, ListedTiles tiles, int64_t pitch) {
  const int slot = thread_index(), height = block_threads(), tile = block_x();
  int64_t pair = -1, place = 0;
  int context = -1;
  if (listed.ordered) {
    context = not_above(listed.item_tiles, listed.n_contexts, tile);
    if (context < listed.n_contexts) {
      const int first_tile = context > 0 ? static_cast<int>(load(listed.item_tiles, context - 1)) : 0;
      const int64_t first = context > 0 ? load(listed.item_rows, context - 1) : 0;
      const int64_t row = first + (tile - first_tile) * int64_t{height} + slot;
      if (row < load(listed.item_rows, context)) {
        const int number = not_above(listed.row_ends, listed.n_pairs, row);
        pair = load(listed.order, number);
        place = row - (number > 0 ? load(listed.row_ends, number - 1) : 0);
      }
    } else {
      context = -1;
    }
  } else {
    const int number = tile / listed.tiles_of_pair;
    const int length = queries.item(listed.query(number)).length, first = tile % listed.tiles_of_pair * height;
    if (first < length) context = listed.context(number);
    if (first + slot < length) pair = number, place = first + slot;
  }
  const int64_t at = int64_t{tile} * height + slot;
  store(tiles.rows, at, pair < 0 ? -1 : queries.item(listed.query(pair)).first + static_cast<int>(place));
  store(tiles.cells, at, pair * pitch + place);
  if (slot == 0) store(tiles.contexts, tile, context);
}

// Scores of listed pairs from what their queries have found: a warp has a pair.
CROSSRET_KERNEL(kPairThreads, 2)
pool_pairs(CROSSRET_PARAMETER ListedPairs listed, Items queries, Global<const float> maxima, Global<float> scores,
           int64_t pitch, Pooling pooling) {
  const int pair = block_x() * kPairWarps + thread_index() / kWarp;
  if (pair >= listed.n_pairs) return;
  const int length = queries.item(listed.query(pair)).length;
  float score = nothing_pooled(pooling);
  for (int place = thread_index() % kWarp; place < length; place += kWarp) {
    score = pool(pooling, score, load(maxima, pair * pitch + place));
  }
#pragma unroll
  for (int near = kWarp / 2; near > 0; near /= 2) score = pool(pooling, score, shuffle_xor(score, near));
  if (pooling == Pooling::avg) score /= static_cast<float>(length);
  if (thread_index() % kWarp == 0) store(scores, pair, score);
}

// Forgets what all queries of an item have found but the first of the best: a warp has an item of contexts, or a listed
// pair, and an item of queries.
CROSSRET_KERNEL(kPairThreads, 2)
keep_best_query(CROSSRET_PARAMETER ListedPairs listed, Items queries, Global<const int> starts, int64_t query_stride,
                Global<const float> maxima, Global<int> indices, int64_t pitch, int n_rows, int n_queries) {
  const int64_t number = int64_t{block_x()} * kPairWarps + thread_index() / kWarp;
  if (number >= int64_t{n_rows} * n_queries) return;
  const int64_t row = number / n_queries;
  const int item = listed.n_pairs > 0 ? listed.query(row) : static_cast<int>(number % n_queries);
  const int64_t first = row * pitch + (listed.n_pairs > 0 ? 0
                                       : query_stride > 0 ? item * query_stride
                                                          : int64_t{load(starts, item)});
  const int length = queries.item(item).length, lane = thread_index() % kWarp;
  int best = static_cast<int>(0x80000000), best_place = 0x7FFFFFFF;
  const auto take = [&](int order, int place) {
    if (order > best || (order == best && place < best_place)) best = order, best_place = place;
  };
  for (int place = lane; place < length; place += kWarp) take(ordered(load(maxima, first + place)), place);
#pragma unroll
  for (int near = kWarp / 2; near > 0; near /= 2) {
    const int order = shuffle_xor(best, near), place = shuffle_xor(best_place, near);
    take(order, place);
  }
  for (int place = lane; place < length; place += kWarp) {
    if (place != best_place) store(indices, first + place, -1);
  }
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
