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

  // What is kept in shared memory, registers being few: where rows begin; their cells; where items' slots begin, and
  // behind these the slots in use, the number of items, and the rows of an item in pieces.
  CROSSRET_DEVICE static Shared<int64_t> offsets() { return shared_at<int64_t>(Shape::offsets); }
  CROSSRET_DEVICE static Shared<int64_t> cells() { return shared_at<int64_t>(Shape::cells); }
  CROSSRET_DEVICE static Shared<int> borders() { return shared_at<int>(Shape::borders); }
  static constexpr int n_used = Tile::rows + 1, n_owners = Tile::rows + 2, n_rows = Tile::rows + 3;

  // Every thread of the block has a slot.
  template <class T>
  CROSSRET_DEVICE TileOfQueries(const Search<T>& search, int tile_number) : tile(tile_number), pieces(1) {
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
      if ((search.stored & kScores) == 0) cells()[slot] = own_cell(search, row, owner);
    }
    if (!search.listed) {
      const int length = load(search.queries.lengths, load(search.items, at));
      if (length > Tile::rows) pieces = (length + Tile::rows - 1) / Tile::rows;
      if (slot == 0) borders()[n_rows] = length;
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
  template <class T>
  CROSSRET_DEVICE int row(const Search<T>& search, int slot, int piece) const {
    const int64_t at = int64_t{tile} * Tile::rows;
    return pieces == 1 ? load(search.rows, at + slot) : load(search.rows, at) + piece * Tile::rows + slot;
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
  template <class T>
  CROSSRET_DEVICE int64_t own_cell(const Search<T>& search, int row, int owner) const {
    const int64_t at = int64_t{tile} * Tile::rows;
    if (search.listed) return load(search.cells, at + thread_index());
    const int item = load(search.items, at + owner);
    const int64_t first = search.by_starts ? int64_t{load(search.starts, item)} : item * search.query_stride;
    return first + row - load(search.queries.firsts, item);
  }
};

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
