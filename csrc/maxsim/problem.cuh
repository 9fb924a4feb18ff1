// What a search for best contexts is given, and the shape of the blocks that make it.
#pragma once
#include "maxsim/rows.cuh"
#include "pairs/side.h"

namespace crossret {
namespace gpu {
namespace maxsim {

// What is stored of a search.
enum : int { kScores = 1, kMaxima = 2, kIndices = 4, kWideIndices = 8 };

// An item of a group of contexts, and its number, −1 for none: its rows are then the first item's.
struct ContextItem : ItemRows {
  int number;

  CROSSRET_DEVICE int last() const { return length > 0 ? length - 1 : 0; }
};

// Tiles of queries against groups of contexts.
template <class T>
struct Search {
  Rows<T> queries, contexts;
  // Items of tiles of queries (tiles, queries of a tile), and of groups of contexts (groups, 1 << bits), −1 for none;
  // where tables tell. Else successive ones are taken.
  Global<const int> items, groups;
  bool planned;
  // Where pairs are listed: of tiles, the item of contexts, −1 for no tile; of slots, rows, −1 for none, and cells.
  Global<const int> tile_contexts, rows;
  Global<const int64_t> cells;
  bool listed;
  // (items of contexts, queries' items); what is found of a query stands index_context apart for items of contexts,
  // from starts of its item on, or query_stride apart for items of queries.
  Global<float> scores, maxima;
  Global<int> indices;
  Global<int64_t> wide_indices;
  Global<const int> starts;
  bool by_starts;
  int stored;
  int64_t score_context, score_query, index_context, query_stride;
  int first_item, n_items, first_group, n_groups, run_groups, bits;
  int n_queries, n_tiles, tile_items, n_runs;  // items of queries, and of a tile
  Pooling pooling;
  bool normalize;
  int resident_rows;  // of queries, which stay in shared memory; 0 where they come with every step

  CROSSRET_DEVICE ContextItem context(int group, int place) const {
    const int number = number_of((group << bits) + place);
    return {contexts.item(number < 0 ? 0 : number), number};
  }

  // In which so many columns pass a group: of one item, or with its longest first; of others the longest is not looked
  // for, one of many is about as long as any may be.
  CROSSRET_DEVICE int steps(int group, int columns) const {
    const int longest = planned || bits == 0 ? context(group, 0).length : contexts.most;
    const int rows_of_step = columns >> bits;
    return longest > 0 ? (longest + rows_of_step - 1) / rows_of_step : 1;
  }

  // The item that has this place in a tile of queries, −1 for none.
  CROSSRET_DEVICE int query_item(int tile, int place, int tile_rows) const {
    if (planned) return load(items, int64_t{tile} * tile_rows + place);
    const int item = tile * tile_items + place;
    return place < tile_items && item < n_queries ? item : -1;
  }

  // From where on maxima and places of an item of contexts stand.
  CROSSRET_DEVICE int64_t first_cell(const ContextItem& context) const {
    return listed ? 0 : (context.number - first_item) * index_context;
  }

 private:
  CROSSRET_DEVICE int number_of(int place) const {
    if (planned) return load(groups, (int64_t{first_group} << bits) + place);
    return place < n_items ? first_item + place : -1;
  }
};

// How a block searches: its tile, n8 columns of a warp that a lane keeps maxima of, blocks of a multiprocessor.
template <class Tile_, int kept_tiles_, int blocks_>
struct SearchShape {
  using Tile = Tile_;
  static constexpr int kept_tiles = kept_tiles_, blocks = blocks_;
  static constexpr int warp_columns = 8 * Tile::column_tiles, warp_kept = 8 * kept_tiles;
  static constexpr int kept = warp_kept * Tile::column_warps, depth = Tile::column_tiles / kept_tiles;
  static constexpr int found_columns = 8 * Tile::column_warps;  // that scores are made of at a time
  // Shared memory, in bytes: where rows of queries begin, and their cells; the slots' borders of items, and numbers of
  // rows; what pieces of an item have come to; scales; what was found; then stages.
  static constexpr int offsets = 0, cells = offsets + 8 * Tile::rows, borders = cells + 8 * Tile::rows,
                       numbers = borders + 4 * Tile::rows + 16, pools = numbers + 4 * Tile::rows;
  static constexpr int query_scales = pools + 4 * kept, context_scales = query_scales + 4 * Tile::rows;
  static constexpr int found = context_scales + 4 * Tile::columns;
  static constexpr int stages = (found + 4 * Tile::rows * found_columns + 127) / 128 * 128;

  static_assert(Tile::rows == Tile::threads, "each thread has a slot");
  static_assert(Tile::column_warps <= 2, "columns of two warps are brought together");
  static_assert(Tile::column_tiles % kept_tiles == 0, "columns pass in whole turns");

  // Of a launch, for rows of so many bytes.
  static constexpr int64_t bytes(int64_t row_bytes, int resident_rows) {
    const int64_t count = (row_bytes + Tile::stage_bytes - 1) / Tile::stage_bytes;
    const int64_t rows = Tile::stages * (Tile::columns + (resident_rows == 0 ? Tile::rows : 0));
    return stages + (rows + count * resident_rows) * Tile::stage_bytes;
  }
};

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
