// Sum-Max (SCAN Eqs. 9 and 10; MaxSim of ColBERT and ColPali) in CUDA: the best context of every query, scores of
// those.
//
// A block holds a tile of queries, whole items or a long one's next piece, while groups of items of contexts pass it, a
// step of columns at a time (`tables.py` has tiles and groups). Every item of a group has columns of its own, so that a
// lane's maxima of cells are maxima of items, whatever their lengths: what a query has found of an item in one column
// is brought together with the item's other columns at the group's end alone. Rows behind an item's end repeat its last
// one, which changes no maximum. Copies run on from step to step and group to group without a pause.
//
// Bytes and instructions, for M queries by N columns a step and rows of r bytes: a step reads N · r of contexts, and
// M · r of queries where they do not stay; a cell costs one maximum besides its product, and a scale where similarities
// are cosines. 1 × 1,000 documents of 300 rows of 256 bytes are read once, 77 MB, with 2 % of repeated last rows and 8
// KB of queries a block. 256 × 128 tiles of 1,000 × 5,000 items of 36 regions and 12.5 words of 2 KB read 55 GB through
// the L2 for 4.8 · 10¹² operations, 128 shared bytes for each 64 products of 16 × 8 × 16 a warp has in registers.
#pragma once
#include <type_traits>

#include "cuda/product.cuh"
#include "maxsim/rows.cuh"
#include "pairs/side.h"

namespace crossret {
namespace gpu {
namespace maxsim {

// What is stored of a search.
enum : int { kScores = 1, kMaxima = 2, kIndices = 4, kWideIndices = 8 };

// Tiles of queries against groups of contexts.
template <class T>
struct Search {
  Rows<T> queries, contexts;
  // Of tiles, (tiles, queries of a tile): the row in a slot; the place among the tile's items of its owner, −1 where
  // there is none; the items.
  Global<const int> rows, owners, items;
  Global<const int> groups;  // (groups, 1 << bits, 3): an item's first row, its length and which it is, −1 for none
  // Where pairs are listed: of tiles, the item of contexts, −1 for no tile; of slots, their cells.
  Global<const int> tile_contexts;
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
  int first_item, first_group, n_groups, run_groups, bits, n_tiles, n_runs;
  Pooling pooling;
  bool normalize;
  int resident_rows;  // of queries, which stay in shared memory; 0 where they come with every step
};

// How a block searches: its tile, n8 columns of a warp that a lane keeps maxima of, blocks of a multiprocessor.
template <class Tile_, int kept_tiles_, int blocks_>
struct SearchShape {
  using Tile = Tile_;
  static constexpr int kept_tiles = kept_tiles_, blocks = blocks_;
  static constexpr int warp_columns = 8 * Tile::column_tiles, warp_kept = 8 * kept_tiles;
  static constexpr int kept = warp_kept * Tile::column_warps, depth = Tile::column_tiles / kept_tiles;
  static constexpr int found_columns = 8 * Tile::column_warps;  // that scores are made of at a time
  // Shared memory, in bytes: where rows of queries begin, and their cells; the slots' borders of items; what pieces of
  // an item have come to; scales; what was found; then stages.
  static constexpr int offsets = 0, cells = offsets + 8 * Tile::rows, borders = cells + 8 * Tile::rows,
                       pools = borders + 4 * Tile::rows + 16;
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

// Floats in an order in which NaN, of any kind, is greatest and zeros are equal.
CROSSRET_DEVICE int ordered(float x) {
  if (x != x) return 0x7FFFFFFF;
  const int bits = bits_of(x + 0.0f);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// The better of two that were found, in the first: the greater, of equals what stands first.
CROSSRET_DEVICE void take_better(float& best, int& place, float other, int other_place) {
  const int mine = ordered(best), theirs = ordered(other);
  if (theirs > mine || (theirs == mine && other_place < place)) best = other, place = other_place;
}

template <class T>
CROSSRET_DEVICE uint32_t bits_in_word(T x) {
  if constexpr (sizeof(T) == 4) {
    return static_cast<uint32_t>(bits_of(x));
  } else {
    return x.bits;
  }
}

// 16 bytes of a row, `left` of which it has yet: at once and asynchronously, or element by element.
template <class T>
CROSSRET_DEVICE void copy_chunk(Shared<Chunk> to, const Rows<T>& side, int64_t at, int left) {
  if (side.whole) {
    const int bytes = left < 0 ? 0 : left < kChunkBytes ? left : kChunkBytes;
    copy_async(to, Global<const Chunk>(side.features + (bytes > 0 ? at : 0)), bytes);
    return;
  }
  constexpr int size = static_cast<int>(sizeof(T)), in_word = 4 / size;
  const auto words = Shared<uint32_t>(to);
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < in_word; ++k) {
      const int element = i * in_word + k;
      if (element * size < left) word |= bits_in_word(load(side.features, at + element)) << (8 * size * k);
    }
    words[i] = word;
  }
}

// What a thread copies of contexts: its columns of a step, while the group lasts.
template <class Shape>
struct CopiedColumns {
  using Tile = typename Shape::Tile;
  static constexpr int apart = Tile::threads / Tile::chunks, count = Tile::columns / apart;
  static_assert(Tile::columns % apart == 0, "all threads copy alike");

  int64_t begin[count];
  int last[count], steps;
  int next_first[count], next_length[count], next_steps;  // of the group to come

  CROSSRET_DEVICE static int column(int i) { return thread_index() / Tile::chunks + i * apart; }
  // The column among those that maxima are kept of; how often it comes round in a step is `turn`.
  CROSSRET_DEVICE static int kept_column(int column) {
    return column / Shape::warp_columns * Shape::warp_kept + column % Shape::warp_kept;
  }
  CROSSRET_DEVICE static int turn(int column) { return column % Shape::warp_columns / Shape::warp_kept; }
  // In its item, of the row that a column has in a step.
  CROSSRET_DEVICE static int place_of(int column, int step, int bits) {
    return turn(column) * (Shape::kept >> bits) + (kept_column(column) >> bits) + step * (Tile::columns >> bits);
  }

  CROSSRET_DEVICE void look_ahead(Global<const int> groups, int group, int bits) {
    const int64_t items = int64_t{group} << bits;
    next_steps = (load(groups, 3 * items + 1) + (Tile::columns >> bits) - 1) / (Tile::columns >> bits);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int64_t item = items + (kept_column(column(i)) & ((1 << bits) - 1));
      next_first[i] = load(groups, 3 * item);
      next_length[i] = load(groups, 3 * item + 1);
    }
  }

  template <class T>
  CROSSRET_DEVICE void enter(const Search<T>& search) {
    steps = next_steps;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      begin[i] = search.contexts.begin(next_first[i]);
      last[i] = next_length[i] - 1;
    }
  }

  template <class T>
  CROSSRET_DEVICE void copy(Shared<Chunk> to, const Search<T>& search, int step, int stage, int row_bytes) const {
    const int chunk = thread_index() % Tile::chunks, first = stage * Tile::stage_bytes + chunk * kChunkBytes;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int place = place_of(column(i), step, search.bits);
      const int64_t row = begin[i] + (place < last[i] ? place : last[i]) * search.contexts.row_stride;
      copy_chunk(to + chunk_place<Tile>(column(i), chunk), search.contexts, row + first / static_cast<int>(sizeof(T)),
                 row_bytes - first);
    }
  }
};

// The queries of a block: one tile or, of an item longer than that, one piece after the other.
template <class Shape>
struct TileOfQueries {
  using Tile = typename Shape::Tile;

  int tile, pieces;

  // What is kept in shared memory, registers being few: where rows begin; their cells; where items' slots begin, and
  // behind these the slots in use, the number of items, and the rows of an item in pieces.
  CROSSRET_DEVICE static Shared<int64_t> offsets() { return shared_at<int64_t>(Shape::offsets); }
  CROSSRET_DEVICE static Shared<int64_t> cells() { return shared_at<int64_t>(Shape::cells); }
  CROSSRET_DEVICE static Shared<int> borders() { return shared_at<int>(Shape::borders); }
  static constexpr int n_used = Tile::rows + 1, n_owners = Tile::rows + 2, n_rows = Tile::rows + 3;

  CROSSRET_DEVICE int owners() const { return borders()[n_owners]; }
  // Slots in use.
  CROSSRET_DEVICE int used(int piece) const {
    if (pieces == 1) return borders()[n_used];
    const int left = borders()[n_rows] - piece * Tile::rows;
    return left < Tile::rows ? left : Tile::rows;
  }
  // Slots that warps with queries read, all of which are filled.
  CROSSRET_DEVICE int filled(int piece) const {
    constexpr int height = 16 * Tile::row_tiles;
    return (used(piece) + height - 1) / height * height;
  }

  // Every thread of the block has a slot.
  template <class T>
  CROSSRET_DEVICE TileOfQueries(const Search<T>& search, int tile_number) : tile(tile_number) {
    const int slot = thread_index();
    const int64_t at = int64_t{tile} * Tile::rows;
    const auto owner_of = [&](int s) -> int {
      if (s < 0 || s >= Tile::rows) return -1;
      if (!search.listed) return load(search.owners, at + s);
      return load(search.rows, at + s) < 0 ? -1 : 0;
    };
    const int row = load(search.rows, at + slot), owner = owner_of(slot);
    if (owner >= 0) {
      offsets()[slot] = search.queries.begin(row);
      if (owner_of(slot - 1) != owner) borders()[owner] = slot;
      if (owner_of(slot + 1) < 0) {
        borders()[owner + 1] = slot + 1;
        borders()[n_used] = slot + 1;
        borders()[n_owners] = owner + 1;
      }
      if ((search.stored & kScores) == 0) {
        int64_t cell = 0;
        if (search.listed) {
          cell = load(search.cells, at + slot);
        } else {
          const int item = load(search.items, at + owner);
          cell = (search.by_starts ? load(search.starts, item) : item * search.query_stride) + row -
                 load(search.queries.firsts, item);
        }
        cells()[slot] = cell;
      }
    }
    pieces = 1;
    if (!search.listed) {
      const int length = load(search.queries.lengths, load(search.items, at));
      if (length > Tile::rows) pieces = (length + Tile::rows - 1) / Tile::rows;
      if (slot == 0) borders()[n_rows] = length;
    }
    sync_block();
  }

  CROSSRET_DEVICE int64_t cell(int row, int piece) const {
    return pieces == 1 ? int64_t{cells()[row]} : cells()[0] + piece * Tile::rows + row;
  }

  // The slots of an item.
  CROSSRET_DEVICE int begin(int owner) const { return borders()[owner]; }
  CROSSRET_DEVICE int end(int owner, int piece) const {
    if (pieces > 1) return used(piece);
    return borders()[owner + 1];
  }

  template <class T>
  CROSSRET_DEVICE void copy(Shared<Chunk> to, const Search<T>& search, int piece, int stage, int row_bytes) const {
    constexpr int apart = Tile::threads / Tile::chunks;
    const int chunk = thread_index() % Tile::chunks, first = stage * Tile::stage_bytes + chunk * kChunkBytes;
    const int n_filled = filled(piece), n = used(piece);
#pragma unroll 1
    for (int i = 0; i < Tile::rows / apart; ++i) {
      const int slot = thread_index() / Tile::chunks + i * apart;
      if (slot >= n_filled) continue;
      const int from = slot < n ? slot : 0;
      const int64_t row = pieces == 1 ? int64_t{offsets()[from]}
                                      : offsets()[0] + (piece * Tile::rows + from) * search.queries.row_stride;
      copy_chunk(to + chunk_place<Tile>(slot, chunk), search.queries, row + first / static_cast<int>(sizeof(T)),
                 row_bytes - first);
    }
  }
};

// A thread's share of what is found of a group: of rows g and g + 8 of every 16, of kept columns 2t and 2t + 1 of
// every 8.
template <class Shape, bool index>
struct Best {
  using Tile = typename Shape::Tile;
  float at[Tile::row_tiles][2][Shape::kept_tiles][2];
  int turns[index ? Tile::row_tiles : 1][2][Shape::kept_tiles][2];  // which has it of those that passed the column

  template <class Take>
  CROSSRET_DEVICE void each(const Take& take) {
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int k = 0; k < Shape::kept_tiles; ++k) {
#pragma unroll
          for (int e = 0; e < 2; ++e) take(i, h, k, e);
        }
      }
    }
  }

  CROSSRET_DEVICE void clear() {
    each([&](int i, int h, int k, int e) {
      at[i][h][k][e] = float_of(static_cast<int>(0xFF800000));
      if constexpr (index) turns[i][h][k][e] = 0;
    });
  }

  // Of cells, or where `normalize` of cells times the scales of their rows and columns.
  template <bool normalize>
  CROSSRET_DEVICE void take(const Accumulators<Tile>& sums, int step) {
    const int lane = thread_index() % kWarp, warp = thread_index() / kWarp;
    const int row = Accumulators<Tile>::first_row(warp) + lane / 4;
    const int column = Accumulators<Tile>::first_column(warp) + 2 * (lane % 4);
    const Shared<float> of_rows = shared_at<float>(Shape::query_scales) + row;
    const Shared<float> of_columns = shared_at<float>(Shape::context_scales) + column;
#pragma unroll
    for (int j = 0; j < Tile::column_tiles; ++j) {
#pragma unroll
      for (int i = 0; i < Tile::row_tiles; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float s = sums.at[i][j][2 * h + e];
            if constexpr (normalize) s = s * of_columns[8 * j + e] * of_rows[16 * i + 8 * h];
            float& best = at[i][h][j % Shape::kept_tiles][e];
            if constexpr (index) {
              if (best == best && !(s <= best)) {
                best = s;
                turns[i][h][j % Shape::kept_tiles][e] = step * Shape::depth + j / Shape::kept_tiles;
              }
            } else {
              best = max_or_nan(best, s);
            }
          }
        }
      }
    }
  }

  // Makes places in their items of turns.
  CROSSRET_DEVICE void place(int bits) {
    if constexpr (index) {
      const int warp = thread_index() / kWarp;
      const int first = warp / Tile::row_warps * Shape::warp_kept + 2 * (thread_index() % 4);
      each([&](int i, int h, int k, int e) {
        turns[i][h][k][e] = turns[i][h][k][e] * (Shape::kept >> bits) + ((first + 8 * k + e) >> bits);
      });
    }
  }

  CROSSRET_DEVICE void merge(int i, int h, int k, int e, float other, int other_place) {
    if constexpr (index) {
      take_better(at[i][h][k][e], turns[i][h][k][e], other, other_place);
    } else {
      at[i][h][k][e] = max_or_nan(at[i][h][k][e], other);
    }
  }

  CROSSRET_DEVICE int place_at(int i, int h, int k, int e) const {
    if constexpr (index) return turns[i][h][k][e];
    return 0;
  }

  // Brings columns of one item together, in all lanes and, of n8 columns, in the first; a warp's alone.
  CROSSRET_DEVICE void join(int bits) {
#pragma unroll
    for (int near = Shape::kept_tiles / 2; near > 0; near /= 2) {
      if ((1 << bits) > 8 * near) continue;
      each([&](int i, int h, int k, int e) {
        if (k < near)
          merge(i, h, k, e, at[i][h][k + near < Shape::kept_tiles ? k + near : k][e],
                place_at(i, h, k + near < Shape::kept_tiles ? k + near : k, e));
      });
    }
#pragma unroll
    for (int near = 4; near >= 2; near /= 2) {
      if ((1 << bits) > near) continue;
      each([&](int i, int h, int k, int e) {
        if (k != 0) return;
        const float other = shuffle_xor(at[i][h][0][e], near / 2);
        const int place = index ? shuffle_xor(place_at(i, h, 0, e), near / 2) : 0;
        merge(i, h, 0, e, other, place);
      });
    }
    if (bits == 0) {
      each([&](int i, int h, int k, int e) {
        if (k == 0 && e == 0) merge(i, h, 0, 0, at[i][h][0][1], place_at(i, h, 0, 1));
      });
    }
  }
};

CROSSRET_DEVICE float pool(Pooling pooling, float a, float b) {
  return pooling == Pooling::max ? max_or_nan(a, b) : a + b;
}

// A score for each item of the tile and of the group or, where those are wanted, every query's maxima.
template <class Shape, class T>
CROSSRET_DEVICE void store_found(const Search<T>& search, const TileOfQueries<Shape>& tile, int group, int piece,
                                 Best<Shape, false>& best) {
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
#pragma unroll
      for (int i = 0; i < Tile::row_tiles; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int column = 2 * (lane % 4) + e, row = first_row + 16 * i + 8 * h + lane / 4;
            if (column < live) {
              found[row * Shape::found_columns + warp / Tile::row_warps * 8 + column] = best.at[i][h][k][e];
            }
          }
        }
      }
    }
    sync_block();
    const bool pooled = (search.stored & kScores) != 0;
    const int count = pooled ? tile.owners() : tile.used(piece);
    for (int at = thread_index(); at < count * items; at += Tile::threads) {
      const int owner = at / items, column = at % items;  // the slot itself where maxima are stored
      const int slot = joined || column < 8 ? 8 * k + column : Shape::warp_kept + 8 * k + column - 8;
      const int context = load(search.groups, 3 * ((int64_t{group} << search.bits) + slot) + 2);
      if (context < 0) continue;
      const auto value = [&](int row) -> float {
        const float one = found[row * Shape::found_columns + column];
        return joined ? max_or_nan(one, found[row * Shape::found_columns + 8 + column]) : one;
      };
      if (!pooled) {
        const int64_t row_of_cells = search.listed ? 0 : (context - search.first_item) * search.index_context;
        store(search.maxima, row_of_cells + tile.cell(owner, piece), value(owner));
        continue;
      }
      const int begin = tile.begin(owner), end = tile.end(owner, piece);
      // Four sums, whose reads are under way together.
      const float none = search.pooling == Pooling::max ? float_of(static_cast<int>(0xFF800000)) : 0.0f;
      float sums[4] = {none, none, none, none};
      int row = begin;
      for (; row + 4 <= end; row += 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = pool(search.pooling, sums[i], value(row + i));
      }
      for (; row < end; ++row) sums[0] = pool(search.pooling, sums[0], value(row));
      float score =
          pool(search.pooling, pool(search.pooling, sums[0], sums[1]), pool(search.pooling, sums[2], sums[3]));
      if (piece > 0) score = pool(search.pooling, pools[slot], score);
      if (piece + 1 < tile.pieces) {
        pools[slot] = score;  // of the one item; the thread is the same for every piece
        continue;
      }
      const int item = load(search.items, int64_t{tile.tile} * Tile::rows + owner);
      if (search.pooling == Pooling::avg) score /= static_cast<float>(load(search.queries.lengths, item));
      store(search.scores, context * search.score_context + item * search.score_query, score);
    }
  }
}

// The place of every query's best context of each item of the group, and the maximum beside it.
template <class Shape, class T>
CROSSRET_DEVICE void store_places(const Search<T>& search, const TileOfQueries<Shape>& tile, int group, int piece,
                                  Best<Shape, true>& best) {
  using Tile = typename Shape::Tile;
  static_assert(Tile::column_warps == 1, "a warp has all columns of its rows");
  const int lane = thread_index() % kWarp, warp = thread_index() / kWarp, abreast = 1 << search.bits;
  const int first_row = Accumulators<Tile>::first_row(warp) + lane / 4, used = tile.used(piece);
#pragma unroll
  for (int k = 0; k < Shape::kept_tiles; ++k) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int slot = 8 * k + 2 * (lane % 4) + e;
      if (slot >= abreast) continue;
      const int64_t entry = 3 * ((int64_t{group} << search.bits) + slot);
      const int context = load(search.groups, entry + 2), last = load(search.groups, entry + 1) - 1;
      if (context < 0) continue;
      const int64_t row_of_cells = search.listed ? 0 : (context - search.first_item) * search.index_context;
#pragma unroll
      for (int i = 0; i < Tile::row_tiles; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = first_row + 16 * i + 8 * h;
          if (row >= used) continue;
          const int64_t own = tile.cell(row, piece);
          const int64_t cell = row_of_cells + own;
          const int place = best.place_at(i, h, k, e) < last ? best.place_at(i, h, k, e) : last;
          if ((search.stored & kMaxima) != 0) store(search.maxima, cell, best.at[i][h][k][e]);
          if ((search.stored & kIndices) != 0) store(search.indices, cell, place);
          if ((search.stored & kWideIndices) != 0) store(search.wide_indices, cell, int64_t{place});
        }
      }
    }
  }
}

// Blocks that run together share tiles and runs: (tile, run) of a block.
struct Program {
  int tile, run;

  CROSSRET_DEVICE static Program of(int number, int n_tiles, int n_runs) {
    constexpr int height = 16;
    const int band = number / (height * n_runs), within = number % (height * n_runs);
    const int left = n_tiles - band * height, rows = left < height ? left : height;
    return {band * height + within % rows, within / rows};
  }
};

// Blocks of a multiprocessor: places, and operands of products without tensor cores, take more registers.
template <class Shape, class Arithmetic, bool index>
constexpr int blocks_of = Shape::blocks > 2 && (index || std::is_same_v<Arithmetic, Ieee>) ? 2 : Shape::blocks;

// A tile of queries against a run of groups or, where pairs are listed, against one item of contexts.
template <class Shape, class Arithmetic, bool index>
CROSSRET_KERNEL(Shape::Tile::threads, (blocks_of<Shape, Arithmetic, index>))
best_contexts(CROSSRET_PARAMETER Search<typename Features<Arithmetic>::Element> search) {
  using Tile = typename Shape::Tile;
  using T = typename Features<Arithmetic>::Element;
  constexpr int stages = Tile::stages, query_chunks = Tile::rows * Tile::chunks;
  constexpr int context_chunks = Tile::columns * Tile::chunks;
  const Program program = search.listed ? Program{block_x(), 0} : Program::of(block_x(), search.n_tiles, search.n_runs);
  int begin, end;
  if (search.listed) {
    begin = load(search.tile_contexts, program.tile);
    if (begin < 0) return;
    end = begin + 1;
  } else {
    const int beyond = search.first_group + search.n_groups;
    begin = search.first_group + program.run * search.run_groups;
    end = begin + search.run_groups < beyond ? begin + search.run_groups : beyond;
  }
  const TileOfQueries<Shape> tile(search, program.tile);
  const bool resident = search.resident_rows > 0;
  const int row_bytes = search.contexts.dim * static_cast<int>(sizeof(T));
  const int n_stages = (row_bytes + Tile::stage_bytes - 1) / Tile::stage_bytes;  // of a row
  const int resident_chunks = search.resident_rows * Tile::chunks;
  const int ring_chunks = resident ? context_chunks : query_chunks + context_chunks;
  const Shared<Chunk> own_queries = shared_at<Chunk>(Shape::stages);
  const Shared<Chunk> ring = own_queries + n_stages * resident_chunks;

  // What is copied next: stages of rows, steps of columns, pieces of queries, groups.
  CopiedColumns<Shape> columns;
  int ahead_group = begin, ahead_piece = 0, ahead_step = 0, ahead_stage = 0, copied = 0;
  bool first_rows = true;
  columns.look_ahead(search.groups, begin, search.bits);
  const auto copy = [&] {
    if (ahead_group < end) {
      if (ahead_stage == 0 && ahead_step == 0 && ahead_piece == 0) {
        columns.enter(search);
        if (ahead_group + 1 < end) columns.look_ahead(search.groups, ahead_group + 1, search.bits);
      }
      const Shared<Chunk> stage = ring + copied * ring_chunks;
      if (!resident) {
        tile.copy(stage, search, ahead_piece, ahead_stage, row_bytes);
      } else if (first_rows) {
        tile.copy(own_queries + ahead_stage * resident_chunks, search, 0, ahead_stage, row_bytes);
      }
      columns.copy(resident ? stage : stage + query_chunks, search, ahead_step, ahead_stage, row_bytes);
      copied = copied + 1 == stages ? 0 : copied + 1;
      if (++ahead_stage == n_stages) {
        ahead_stage = 0, first_rows = false;
        if (++ahead_step == columns.steps) {
          ahead_step = 0;
          if (++ahead_piece == tile.pieces) ahead_piece = 0, ++ahead_group;
        }
      }
    }
    commit_copies();  // of nothing too, so that groups are counted by stages
  };
#pragma unroll 1
  for (int ahead = 0; ahead < stages - 1; ++ahead) copy();

  int multiplied = 0;
  const int first_row = Accumulators<Tile>::first_row(thread_index() / kWarp);
  for (int group = begin; group < end; ++group) {
    const int step_rows = Tile::columns >> search.bits;
    const int steps = (load(search.groups, 3 * (int64_t{group} << search.bits) + 1) + step_rows - 1) / step_rows;
    for (int piece = 0; piece < tile.pieces; ++piece) {
      const bool active = first_row < tile.used(piece);
      Best<Shape, index> best;
      best.clear();
      for (int step = 0; step < steps; ++step) {
        Accumulators<Tile> sums;
        sums.clear();
        for (int stage = 0; stage < n_stages; ++stage) {
          wait_copies<stages - 2>();
          sync_block();
          copy();
          if (search.normalize && stage == 0) {
            const int thread = thread_index();
            if (step == 0 && thread < tile.used(piece)) {
              const int64_t at = int64_t{tile.tile} * Tile::rows + thread;
              const int row = tile.pieces == 1 ? load(search.rows, at)
                                               : load(search.rows, at - thread) + piece * Tile::rows + thread;
              shared_at<float>(Shape::query_scales)[thread] = load(search.queries.scales, row);
            } else if (step == 0) {
              shared_at<float>(Shape::query_scales)[thread] = 0.0f;
            }
            if (thread < Tile::columns) {
              const int kept = CopiedColumns<Shape>::kept_column(thread);
              const int64_t entry = 3 * ((int64_t{group} << search.bits) + (kept & ((1 << search.bits) - 1)));
              const int last = load(search.groups, entry + 1) - 1;
              const int place = CopiedColumns<Shape>::place_of(thread, step, search.bits);
              shared_at<float>(Shape::context_scales)[thread] =
                  load(search.contexts.scales, load(search.groups, entry) + (place < last ? place : last));
            }
          }
          const Shared<const Chunk> contexts = ring + (multiplied * ring_chunks + (resident ? 0 : query_chunks));
          const Shared<const Chunk> queries =
              resident ? own_queries + stage * resident_chunks : ring + multiplied * ring_chunks;
          multiplied = multiplied + 1 == stages ? 0 : multiplied + 1;
          if (!active) continue;
          const int left = row_bytes - stage * Tile::stage_bytes;
#pragma unroll
          for (int some = 0; some < Tile::stage_bytes / kStepBytes; ++some) {
            if (some == 0 || some * kStepBytes < left) {
              multiply_step<Tile>(sums, queries, contexts, some, Arithmetic{});
            }
          }
        }
        if (!search.normalize) {
          if (active) best.template take<false>(sums, step);
        } else {
          sync_block();  // scales are there
          if (active) best.template take<true>(sums, step);
        }
      }
      best.place(search.bits);
      best.join(search.bits);
      if constexpr (index) {
        store_places(search, tile, group, piece, best);
      } else {
        store_found(search, tile, group, piece, best);
      }
    }
  }
  wait_copies<0>();
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
