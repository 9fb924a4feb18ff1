// The stream of copies of a search, ahead of the products: stages of rows, steps of columns, pieces of queries, groups.
#pragma once
#include "maxsim/query_tile.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

// What a thread copies of contexts: its columns of a step, while the group lasts.
template <class Shape>
struct CopiedColumns {
  using Tile = typename Shape::Tile;
  static constexpr int count = Tile::columns / Tile::copied_apart;
  static_assert(Tile::columns % Tile::copied_apart == 0, "all threads copy alike");

  int64_t begin[count];
  int last[count], steps;
  int64_t next_begin[count];  // of the group to come
  int next_last[count], next_steps;

  // The column among those that maxima are kept of; how often it comes round in a step is `turn`.
  CROSSRET_DEVICE static int kept_column(int column) {
    return column / Shape::warp_columns * Shape::warp_kept + column % Shape::warp_kept;
  }
  CROSSRET_DEVICE static int turn(int column) { return column % Shape::warp_columns / Shape::warp_kept; }
  // The item of a group that a column is of, and the place in it of the row that the column has in a step.
  CROSSRET_DEVICE static int item_of(int column, int bits) { return kept_column(column) & ((1 << bits) - 1); }
  CROSSRET_DEVICE static int place_of(int column, int step, int bits) {
    return turn(column) * (Shape::kept >> bits) + (kept_column(column) >> bits) + step * (Tile::columns >> bits);
  }

  template <class T>
  CROSSRET_DEVICE void look_ahead(const Search<T>& search, int group) {
    next_steps = search.steps(group, Tile::columns);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const ContextItem item = search.context(group, item_of(Tile::copied_row(i), search.bits));
      next_begin[i] = item.begin, next_last[i] = item.last();
    }
  }

  CROSSRET_DEVICE void enter() {
    steps = next_steps;
#pragma unroll
    for (int i = 0; i < count; ++i) begin[i] = next_begin[i], last[i] = next_last[i];
  }

  template <class T>
  CROSSRET_DEVICE void copy(Shared<Chunk> to, const Search<T>& search, int step, int stage) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int place = place_of(Tile::copied_row(i), step, search.bits);
      const int64_t row = begin[i] + (place < last[i] ? place : last[i]) * search.contexts.row_stride;
      copy_chunk<Tile>(to, Tile::copied_row(i), search.contexts, row, stage);
    }
  }
};

// Copies of a tile of queries and of the contexts of groups, without a pause. Queries that stay lie before the ring.
template <class Shape, class T>
class Copies {
  using Tile = typename Shape::Tile;
  static constexpr int query_chunks = Tile::rows * Tile::chunks, context_chunks = Tile::columns * Tile::chunks;

 public:
  CROSSRET_DEVICE Copies(const Search<T>& search, const TileOfQueries<Shape>& tile, int begin, int end)
      : search_(search), tile_(tile), group_(begin), end_(end) {
    columns_.look_ahead(search, begin);
#pragma unroll 1
    for (int ahead = 0; ahead < Tile::stages - 1; ++ahead) copy_next();
  }

  CROSSRET_DEVICE int n_stages() const { return n_stages_; }  // of a row

  // For the next stage, by all threads of the block; others are on their way.
  CROSSRET_DEVICE void await() {
    wait_copies<Tile::stages - 2>();
    sync_block();
    copy_next();
  }

  // Where the stage that was awaited lies, number `stage` of its rows.
  CROSSRET_DEVICE Shared<const Chunk> queries(int stage) const {
    return resident_ ? queries_ + stage * resident_chunks_ : ring_ + awaited_ * ring_chunks_;
  }
  CROSSRET_DEVICE Shared<const Chunk> contexts() const {
    return ring_ + (awaited_ * ring_chunks_ + (resident_ ? 0 : query_chunks));
  }

  CROSSRET_DEVICE void release() { awaited_ = following(awaited_); }

 private:
  CROSSRET_DEVICE static int following(int place) { return place + 1 == Tile::stages ? 0 : place + 1; }

  CROSSRET_DEVICE void copy_next() {
    if (group_ < end_) {
      if (stage_ == 0 && step_ == 0 && piece_ == 0) {
        columns_.enter();
        if (group_ + 1 < end_) columns_.look_ahead(search_, group_ + 1);
      }
      const Shared<Chunk> to = ring_ + copied_ * ring_chunks_;
      if (!resident_) {
        tile_.copy(to, search_, piece_, stage_);
      } else if (first_rows_) {
        tile_.copy(queries_ + stage_ * resident_chunks_, search_, 0, stage_);
      }
      columns_.copy(resident_ ? to : to + query_chunks, search_, step_, stage_);
      copied_ = following(copied_);
      if (++stage_ == n_stages_) {
        stage_ = 0, first_rows_ = false;
        if (++step_ == columns_.steps) {
          step_ = 0;
          if (++piece_ == tile_.pieces) piece_ = 0, ++group_;
        }
      }
    }
    commit_copies();  // of nothing too, so that groups are counted by stages
  }

  const Search<T>& search_;
  const TileOfQueries<Shape>& tile_;
  const int n_stages_ = (search_.contexts.row_bytes() + Tile::stage_bytes - 1) / Tile::stage_bytes;
  const bool resident_ = search_.resident_rows > 0;
  const int resident_chunks_ = search_.resident_rows * Tile::chunks;
  const int ring_chunks_ = resident_ ? context_chunks : query_chunks + context_chunks;
  const Shared<Chunk> queries_ = shared_at<Chunk>(Shape::stages), ring_ = queries_ + n_stages_ * resident_chunks_;
  CopiedColumns<Shape> columns_;
  // What is copied next, and the places in the ring of that and of what was awaited.
  int group_, end_, piece_ = 0, step_ = 0, stage_ = 0, copied_ = 0, awaited_ = 0;
  bool first_rows_ = true;
};

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
