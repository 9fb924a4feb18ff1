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

#include "maxsim/copies.cuh"
#include "maxsim/found.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

// What a block searches: a tile of queries, and groups of contexts.
struct Program {
  int tile, begin, end;

  // Of a tile, or of a tile and a run of groups: blocks that run together share tiles and runs.
  template <class T>
  CROSSRET_DEVICE static Program of(const Search<T>& search, int number) {
    if (search.listed) {
      const int item = load(search.tile_contexts, number);
      return {number, item, item < 0 ? item : item + 1};
    }
    constexpr int height = 16;
    const int band = number / (height * search.n_runs), within = number % (height * search.n_runs);
    const int left = search.n_tiles - band * height, rows = left < height ? left : height;
    const int first = within / rows * search.run_groups, last = first + search.run_groups;
    return {band * height + within % rows, first, last < search.n_groups ? last : search.n_groups};
  }
};

// Scales of rows of queries, once for all steps, and of columns of a step.
template <class Shape, class T>
CROSSRET_DEVICE void load_scales(const Search<T>& search, const TileOfQueries<Shape>& tile, int group, int piece,
                                 int step) {
  using Columns = CopiedColumns<Shape>;
  const int thread = thread_index();
  if (step == 0) {
    const float scale = thread < tile.used(piece) ? load(search.queries.scales, tile.row(thread, piece)) : 0.0f;
    shared_at<float>(Shape::query_scales)[thread] = scale;
  }
  if (thread >= Shape::Tile::columns) return;
  const ContextItem item = search.context(group, Columns::item_of(thread, search.bits));
  const int place = Columns::place_of(thread, step, search.bits);
  shared_at<float>(Shape::context_scales)[thread] =
      load(search.contexts.scales, item.first + (place < item.length ? place : item.last()));
}

// Blocks of a multiprocessor: places, and operands of products without tensor cores, take more registers.
template <class Shape, class Arithmetic, bool index>
constexpr int blocks_of = Shape::blocks > 2 && (index || std::is_same_v<Arithmetic, Ieee>) ? 2 : Shape::blocks;

// A tile of queries against a run of groups or, where pairs are listed, against one item of contexts.
template <class Shape, class Arithmetic, bool index>
CROSSRET_KERNEL(Shape::Tile::threads, (blocks_of<Shape, Arithmetic, index>))
best_contexts(CROSSRET_PARAMETER Search<typename Features<Arithmetic>::Element> search) {
  using Tile = typename Shape::Tile;
  const Program program = Program::of(search, block_x());
  if (program.begin < 0) return;
  const TileOfQueries<Shape> tile(search, program.tile);
  Copies<Shape, typename Features<Arithmetic>::Element> copies(search, tile, program.begin, program.end);
  const int first_row = Accumulators<Tile>::first_row(thread_index() / kWarp);
  for (int group = program.begin; group < program.end; ++group) {
    const int steps = search.steps(group, Tile::columns);
    for (int piece = 0; piece < tile.pieces; ++piece) {
      const bool active = first_row < tile.used(piece);
      Best<Shape, index> best;
      best.clear();
      for (int step = 0; step < steps; ++step) {
        Accumulators<Tile> sums;
        sums.clear();
        for (int stage = 0; stage < copies.n_stages(); ++stage) {
          copies.await();
          if (search.normalize && stage == 0) load_scales(search, tile, group, piece, step);
          const Shared<const Chunk> queries = copies.queries(stage), contexts = copies.contexts();
          copies.release();
          if (!active) continue;
          const int left = search.contexts.row_bytes() - stage * Tile::stage_bytes;
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
      store_found(search, tile, group, piece, best);
    }
  }
  wait_copies<0>();
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
