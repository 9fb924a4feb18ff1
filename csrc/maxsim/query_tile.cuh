// The queries that a block searches for: one tile or, of an item longer than that, one piece after the other.
#pragma once
#include "maxsim/problem.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

template <class Shape>
struct TileOfQueries {
  using Tile = typename Shape::Tile;

  int tile, pieces;

  // What is kept in shared memory, registers being few: where rows begin; their cells; their numbers; where items'
  // slots begin, and behind these the slots in use, the number of items, and the rows of an item in pieces.
  CROSSRET_DEVICE static Shared<int64_t> offsets() { return shared_at<int64_t>(Shape::offsets); }
  CROSSRET_DEVICE static Shared<int64_t> cells() { return shared_at<int64_t>(Shape::cells); }
  CROSSRET_DEVICE static Shared<int> numbers() { return shared_at<int>(Shape::numbers); }
  CROSSRET_DEVICE static Shared<int> borders() { return shared_at<int>(Shape::borders); }
  static constexpr int n_used = Tile::rows + 1, n_owners = Tile::rows + 2, n_rows = Tile::rows + 3;

  // Every thread of the block has a slot.
  template <class T>
  CROSSRET_DEVICE TileOfQueries(const Search<T>& search, int tile_number) : tile(tile_number), pieces(1) {
    if (search.listed) {
      take_listed(search);
    } else {
      take_items(search);
    }
    sync_block();
  }

  CROSSRET_DEVICE int owners() const { return borders()[n_owners]; }
  // Slots in use.
  CROSSRET_DEVICE int used(int piece) const {
    if (pieces == 1) return borders()[n_used];
    const int left = borders()[n_rows] - piece * Tile::rows;
    return left < Tile::rows ? left : Tile::rows;
  }
  // The slots of an item.
  CROSSRET_DEVICE int begin(int owner) const { return borders()[owner]; }
  CROSSRET_DEVICE int end(int owner, int piece) const { return pieces > 1 ? used(piece) : int{borders()[owner + 1]}; }

  // Of a slot: the row of queries, and where what it has found stands behind `Search::first_cell`.
  CROSSRET_DEVICE int row(int slot, int piece) const {
    return pieces == 1 ? int{numbers()[slot]} : numbers()[0] + piece * Tile::rows + slot;
  }
  CROSSRET_DEVICE int64_t cell(int slot, int piece) const {
    return pieces == 1 ? int64_t{cells()[slot]} : cells()[0] + piece * Tile::rows + slot;
  }

  // Fills the slots that warps with queries read.
  template <class T>
  CROSSRET_DEVICE void copy(Shared<Chunk> to, const Search<T>& search, int piece, int stage) const {
    constexpr int height = 16 * Tile::row_tiles;
    const int filled = (used(piece) + height - 1) / height * height, n = used(piece);
#pragma unroll 1
    for (int i = 0; i < Tile::rows / Tile::copied_apart; ++i) {
      const int slot = Tile::copied_row(i), from = slot < n ? slot : 0;
      if (slot >= filled) continue;
      const int64_t row = pieces == 1 ? int64_t{offsets()[from]}
                                      : offsets()[0] + (piece * Tile::rows + from) * search.queries.row_stride;
      copy_chunk<Tile>(to, slot, search.queries, row, stage);
    }
  }

 private:
  // Rows of a pair's queries follow one another from the first slot on.
  template <class T>
  CROSSRET_DEVICE void take_listed(const Search<T>& search) {
    const int slot = thread_index();
    const int64_t at = int64_t{tile} * Tile::rows;
    const int row = load(search.rows, at + slot);
    if (row < 0) return;
    offsets()[slot] = search.queries.begin(row);
    numbers()[slot] = row;
    cells()[slot] = load(search.cells, at + slot);
    if (slot == 0) borders()[0] = 0, borders()[n_owners] = 1;
    if (slot + 1 == Tile::rows || load(search.rows, at + slot + 1) < 0) borders()[1] = borders()[n_used] = slot + 1;
  }

  // Items' rows follow one another, those of all together no more than slots, or of one alone.
  template <class T>
  CROSSRET_DEVICE void take_items(const Search<T>& search) {
    const int slot = thread_index();
    const int mine = search.query_item(tile, slot, Tile::rows);
    if (mine >= 0) {
      borders()[slot] = search.queries.item(mine).length;
      if (slot + 1 == Tile::rows || search.query_item(tile, slot + 1, Tile::rows) < 0) borders()[n_owners] = slot + 1;
    }
    sync_block();
    const int length = borders()[0], count = borders()[n_owners];
    if (length > Tile::rows) pieces = (length + Tile::rows - 1) / Tile::rows;
    int begin = 0, end = 0, owner = -1, place = 0;
    for (int i = 0; i < count; ++i) {
      const int rows = borders()[i], next = end + rows < Tile::rows ? end + rows : Tile::rows;
      if (i == slot) begin = end;
      if (slot >= end && slot < next) owner = i, place = slot - end;
      end = next;
    }
    sync_block();
    if (slot < count) borders()[slot] = begin;
    if (slot == 0) borders()[count] = end, borders()[n_used] = end, borders()[n_rows] = length;
    if (owner < 0) return;
    const int item = search.query_item(tile, owner, Tile::rows);
    const ItemRows rows = search.queries.item(item);
    offsets()[slot] = rows.begin + place * search.queries.row_stride;
    numbers()[slot] = rows.first + place;
    if ((search.stored & kScores) != 0) return;
    cells()[slot] = (search.by_starts ? int64_t{load(search.starts, item)} : item * search.query_stride) + place;
  }
};

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
