// Launches of Sum-Max's search for the best contexts.
#include <type_traits>

#include "cuda/told.h"
#include "maxsim/cuda_sides.cuh"
#include "maxsim/pairs.cuh"
#include "maxsim/search.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

namespace {

template <int row_warps, int column_warps, int row_tiles, int column_tiles>
using Tile = TileShape<row_warps, column_warps, row_tiles, column_tiles, 64, 4>;

using Usual = SearchShape<Tile<4, 1, 2, 8>, 4, 3>;
// More cells for each byte of features, where scores take little but products.
using Wide = SearchShape<Tile<4, 2, 4, 8>, 2, 1>;

static_assert(Usual::Tile::rows == kTileRows[static_cast<int>(Tiles::usual)], "as tables are made");
static_assert(Wide::Tile::rows == kTileRows[static_cast<int>(Tiles::wide)], "as tables are made");
static_assert(Usual::kept == Wide::kept, "groups of contexts are made for both");

ListedPairs listed_of(const PairsCall& call, const Stream& stream) {
  ListedPairs listed{};
  if (call.pairs == nullptr) return listed;
  listed.pairs = input<int64_t>(stream, "pairs", call.pairs, 2 * call.count);
  listed.ordered = call.row_ends != nullptr;
  if (listed.ordered) {
    listed.order = input<int64_t>(stream, "order", call.order, call.count);
    listed.row_ends = input<int64_t>(stream, "ends of rows", call.row_ends, call.count);
    listed.item_rows = input<int64_t>(stream, "rows of items", call.item_rows, call.n_contexts);
    listed.item_tiles = input<int64_t>(stream, "tiles of items", call.item_tiles, call.n_contexts);
  }
  listed.n_pairs = static_cast<int>(call.count), listed.n_contexts = static_cast<int>(call.n_contexts);
  listed.context_column = call.context_column;
  return listed;
}

// What a search stores where pairs are listed, and the tiles that it finds it by.
struct ListedScratch {
  int64_t n_tiles, n_maxima;
  int64_t *cells, bytes;
  int *rows, *contexts;
  float* maxima;

  static ListedScratch of(const SearchCall& call, void* memory) {
    const int64_t height = kTileRows[static_cast<int>(call.tiles)];
    ListedScratch made{};
    // No more than this where they are ordered: a tile for each item is part empty.
    made.n_tiles = call.listed.row_ends != nullptr ? call.listed.count * call.pitch / height + call.listed.n_contexts
                                                   : call.listed.count * call.tiles_of_pair;
    made.n_maxima = call.scores != nullptr ? call.listed.count * call.pitch : 0;
    made.cells = static_cast<int64_t*>(memory);
    made.rows = reinterpret_cast<int*>(made.cells + made.n_tiles * height);
    made.contexts = made.rows + made.n_tiles * height;
    made.maxima = reinterpret_cast<float*>(made.contexts + made.n_tiles);
    made.bytes = made.n_tiles * (height * (8 + 4) + 4) + made.n_maxima * 4;
    return made;
  }
};

template <class Shape, class Arithmetic, bool index>
void launch_search(const Search<typename Features<Arithmetic>::Element>& search, int64_t blocks, const Stream& stream) {
  using T = typename Features<Arithmetic>::Element;
  const int64_t row_bytes = search.contexts.dim * static_cast<int64_t>(sizeof(T));
  launch("best_contexts", best_contexts<Shape, Arithmetic, index>,
         {blocks, 1, Shape::Tile::threads, Shape::bytes(row_bytes, search.resident_rows)}, stream, search);
}

template <class Arithmetic>
void launch_search(const SearchCall& call, const Search<typename Features<Arithmetic>::Element>& search, int64_t blocks,
                   const Stream& stream) {
  constexpr bool narrow = sizeof(typename Features<Arithmetic>::Element) == 2;
  if (call.index) return launch_search<Usual, Arithmetic, true>(search, blocks, stream);
  if constexpr (narrow) {
    if (call.tiles == Tiles::wide) return launch_search<Wide, Arithmetic, false>(search, blocks, stream);
  }
  launch_search<Usual, Arithmetic, false>(search, blocks, stream);
}

}  // namespace

std::string constants() {
  return told("maxsim_tile_rows", {Usual::Tile::rows, Wide::Tile::rows}) +
         told("maxsim_tile_columns", {Usual::Tile::columns, Wide::Tile::columns}) +
         told("maxsim_warp_rows", {16 * Usual::Tile::row_tiles, 16 * Wide::Tile::row_tiles}) +
         told("maxsim_kept_columns", {Usual::kept}) + told("maxsim_stage_bytes", {Usual::Tile::stage_bytes}) +
         told("maxsim_stages", {Usual::Tile::stages}) +
         told("maxsim_wide_shared_bytes",
              {Wide::bytes(Wide::Tile::stages * Wide::Tile::stage_bytes, Wide::Tile::rows)}) +
         told("maxsim_gradient_columns", {kGradientColumns});
}

int64_t search_scratch(const SearchCall& call) {
  return call.listed.pairs != nullptr ? ListedScratch::of(call, nullptr).bytes : 0;
}

void search_best_contexts(const SearchCall& call, const Stream& stream, void* scratch) {
  const bool listed = call.listed.pairs != nullptr;
  ListedPairs pairs = listed_of(call.listed, stream);
  pairs.tiles_of_pair = static_cast<int>(call.tiles_of_pair);
  by_dtype(call.queries.dtype, [&](auto element) {
    using T = decltype(element);
    Search<T> search{};
    search.queries = rows_of<T>(call.queries, stream), search.contexts = rows_of<T>(call.contexts, stream);
    search.planned = call.groups != nullptr;
    if (search.planned) {
      search.groups = input<int>(stream, "groups", call.groups, call.n_groups_in_all << call.bits);
      search.items = input<int>(stream, "items", call.items, call.n_tiles * kTileRows[static_cast<int>(call.tiles)]);
    }
    search.bits = static_cast<int>(call.bits);
    search.pooling = call.pooling, search.normalize = call.normalize, search.listed = listed;
    search.resident_rows = static_cast<int>(call.resident_rows);
    search.index_context = call.index_context, search.query_stride = call.query_stride;
    search.first_item = static_cast<int>(call.first_item), search.n_items = static_cast<int>(call.count);
    search.n_queries = static_cast<int>(call.queries.n_items);
    if (call.indices != nullptr) search.indices = updated<int>(stream, "indices", call.indices, call.n_found);
    if (call.wide_indices != nullptr) {
      search.wide_indices = updated<int64_t>(stream, "indices", call.wide_indices, call.n_found);
    }
    if (call.maxima != nullptr) search.maxima = output<float>(stream, "maxima", call.maxima, call.n_found);
    if (call.scores != nullptr) search.scores = output<float>(stream, "scores", call.scores, call.n_scores);
    search.stored = (call.scores != nullptr ? kScores : 0) | (call.maxima != nullptr ? kMaxima : 0) |
                    (call.indices != nullptr ? kIndices : 0) | (call.wide_indices != nullptr ? kWideIndices : 0);
    search.score_context = call.score_context, search.score_query = call.score_query;
    search.by_starts = call.starts != nullptr;
    if (search.by_starts) search.starts = input<int>(stream, "starts", call.starts, call.queries.n_items);
    int64_t blocks = call.n_tiles * call.n_runs;
    const ListedScratch made = listed ? ListedScratch::of(call, scratch) : ListedScratch{};
    if (listed) {
      const int height = kTileRows[static_cast<int>(call.tiles)];
      blocks = made.n_tiles;
      const ListedTiles tiles{output<int>(stream, "rows", made.rows, blocks * height),
                              output<int>(stream, "contexts", made.contexts, blocks),
                              output<int64_t>(stream, "cells", made.cells, blocks * height), static_cast<int>(blocks)};
      launch("list_tiles", list_tiles, {blocks, 1, height}, stream, pairs, search.queries, tiles, call.pitch);
      search.rows = tiles.rows, search.tile_contexts = tiles.contexts, search.cells = tiles.cells;
      if (call.scores != nullptr) {
        search.maxima = output<float>(stream, "maxima", made.maxima, made.n_maxima);
        search.stored = kMaxima;
      }
    } else {
      search.first_group = static_cast<int>(call.first_group), search.n_groups = static_cast<int>(call.n_groups);
      search.run_groups = static_cast<int>(call.run_groups);
      search.n_tiles = static_cast<int>(call.n_tiles), search.tile_items = static_cast<int>(call.tile_items);
      search.n_runs = static_cast<int>(call.n_runs);
    }
    if constexpr (std::is_same_v<T, float>) {
      if (call.tf32) {
        launch_search<TFloat32>(call, search, blocks, stream);
      } else {
        launch_search<Ieee>(call, search, blocks, stream);
      }
    } else {
      launch_search<T>(call, search, blocks, stream);
    }
    if (listed && call.scores != nullptr) {
      launch("pool_pairs", pool_pairs, {parts_of(call.listed.count, kPairWarps), 1, kPairThreads}, stream, pairs,
             search.queries, search.maxima, search.scores, call.pitch, call.pooling);
    }
    if (call.index && call.pooling == Pooling::max) {
      const int64_t n_rows = listed ? call.listed.count : call.count, n_queries = listed ? 1 : call.queries.n_items;
      launch("keep_best_query", keep_best_query, {parts_of(n_rows * n_queries, kPairWarps), 1, kPairThreads}, stream,
             pairs, search.queries, search.starts, call.query_stride, search.maxima, search.indices, call.index_context,
             static_cast<int>(n_rows), static_cast<int>(n_queries));
    }
  });
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
