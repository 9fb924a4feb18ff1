// What becomes of what a block has found of a group of contexts: scores of pairs, or every query's maxima and places.
#pragma once
#include "maxsim/best.cuh"
#include "maxsim/query_tile.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

CROSSRET_DEVICE float nothing_pooled(Pooling pooling) { return pooling == Pooling::max ? -INFINITY : 0.0f; }
CROSSRET_DEVICE float pool(Pooling pooling, float a, float b) {
  return pooling == Pooling::max ? max_or_nan(a, b) : a + b;
}

// Of value(row), in four parts, whose reads are under way together.
template <class Value>
CROSSRET_DEVICE float pool_rows(Pooling pooling, int begin, int end, const Value& value) {
  const float none = nothing_pooled(pooling);
  float parts[4] = {none, none, none, none};
  int row = begin;
  for (; row + 4 <= end; row += 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[i] = pool(pooling, parts[i], value(row + i));
  }
  for (; row < end; ++row) parts[0] = pool(pooling, parts[0], value(row));
  return pool(pooling, pool(pooling, parts[0], parts[1]), pool(pooling, parts[2], parts[3]));
}

// A score for each item of the tile and of the group or, where those are wanted, every query's maxima.
template <class Shape, class T>
CROSSRET_DEVICE void store_found(const Search<T>& search, const TileOfQueries<Shape>& tile, int group, int piece,
                                 const Best<Shape, false>& best) {
  using Tile = typename Shape::Tile;
  const int lane = thread_index() % kWarp, warp = thread_index() / kWarp, abreast = 1 << search.bits;
  const int live = abreast < 8 ? abreast : 8;  // columns of eight
  const bool joined = Tile::column_warps == 2 && abreast <= Shape::warp_kept;
  const int items = joined ? live : live * Tile::column_warps;
  const int first_row = Accumulators<Tile>::first_row(warp);
  const Shared<float> found = shared_at<float>(Shape::found), pools = shared_at<float>(Shape::pools);
#pragma unroll
  for (int k = 0; k < Shape::kept_tiles; ++k) {
    if (k > 0 && abreast <= 8 * k) break;
    sync_block();  // what was found before has been read
    if (first_row < tile.used(piece)) {
      best.each_of(k, [&](int i, int h, int, int e) {
        const int column = 2 * (lane % 4) + e, row = first_row + 16 * i + 8 * h + lane / 4;
        if (column >= live) return;
        found[row * Shape::found_columns + warp / Tile::row_warps * 8 + column] = best.at[i][h][k][e];
      });
    }
    sync_block();
    const bool pooled = (search.stored & kScores) != 0;
    const int count = pooled ? tile.owners() : tile.used(piece);
    for (int at = thread_index(); at < count * items; at += Tile::threads) {
      const int owner = at / items, column = at % items;  // the slot itself where maxima are stored
      const int number = joined || column < 8 ? 8 * k + column : Shape::warp_kept + 8 * k + column - 8;
      const ContextItem context = search.context(group, number);
      if (context.number < 0) continue;
      const auto value = [&](int row) -> float {
        const float one = found[row * Shape::found_columns + column];
        return joined ? max_or_nan(one, found[row * Shape::found_columns + 8 + column]) : one;
      };
      if (!pooled) {
        store(search.maxima, search.first_cell(context) + tile.cell(owner, piece), value(owner));
        continue;
      }
      float score = pool_rows(search.pooling, tile.begin(owner), tile.end(owner, piece), value);
      if (piece > 0) score = pool(search.pooling, pools[number], score);
      if (piece + 1 < tile.pieces) {
        pools[number] = score;  // of the one item; the thread is the same for every piece
        continue;
      }
      const int item = search.query_item(tile.tile, owner, Tile::rows);
      if (search.pooling == Pooling::avg) score /= static_cast<float>(search.queries.item(item).length);
      store(search.scores, context.number * search.score_context + item * search.score_query, score);
    }
  }
}

// The place of every query's best context of each item of the group, and the maximum beside it.
template <class Shape, class T>
CROSSRET_DEVICE void store_found(const Search<T>& search, const TileOfQueries<Shape>& tile, int group, int piece,
                                 const Best<Shape, true>& best) {
  using Tile = typename Shape::Tile;
  static_assert(Tile::column_warps == 1, "a warp has all columns of its rows");
  const int first_row = Accumulators<Tile>::own_row(), used = tile.used(piece);
#pragma unroll
  for (int k = 0; k < Shape::kept_tiles; ++k) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int number = 8 * k + 2 * (thread_index() % 4) + e;
      if (number >= 1 << search.bits) continue;
      const ContextItem context = search.context(group, number);
      if (context.number < 0) continue;
      const int64_t first = search.first_cell(context);
      const int last = context.length - 1;
      best.each_row([&](int i, int h) {
        const int row = first_row + 16 * i + 8 * h;
        if (row >= used) return;
        const int64_t cell = first + tile.cell(row, piece);
        const int turn = best.turns[i][h][k][e], place = turn < last ? turn : last;
        if ((search.stored & kMaxima) != 0) store(search.maxima, cell, best.at[i][h][k][e]);
        if ((search.stored & kIndices) != 0) store(search.indices, cell, place);
        if ((search.stored & kWideIndices) != 0) store(search.wide_indices, cell, int64_t{place});
      });
    }
  }
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
