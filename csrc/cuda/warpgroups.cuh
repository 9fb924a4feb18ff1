// The product of a tile of queries and a tile of contexts on compute capability 9.0, by warps of two kinds: a thread
// copies stages of both tiles into a ring, a warpgroup multiplies them by wgmma. Each goes from tile to tile by itself:
// what the sums become is the work of other warps, behind which the products hide.
//
// A stage is ready when its bytes have come, and free again when the multiplying warps have arrived. Both blocks of a
// cluster have the same contexts: each copies half of them, to both.
#pragma once
#include "cuda/hopper.cuh"
#include "cuda/product.cuh"

namespace crossret {
namespace gpu {

constexpr int kRegisters = 64 * 1024;  // of a multiprocessor

// `threads` of a block take what the products leave; the warp behind them copies, the last warpgroup multiplies.
template <int cluster_>
struct WarpgroupShape {
  static constexpr bool apart = true;
  static constexpr int cluster = cluster_, blocks = 1;
  static constexpr int rows = 128, columns = 144;
  static constexpr int warps = 11, threads = warps * kWarp;
  static constexpr int copying = threads, multiplying = copying + kWarp, all_threads = multiplying + kWarpgroup;
  static constexpr int exchanging = threads + kWarpgroup;  // that meet over a tile's sums
  static constexpr int stages = 3, query_bytes = rows * kBoxBytes, stage_bytes = query_bytes + columns * kBoxBytes;
  static constexpr int ring_bytes = stages * stage_bytes, barrier_bytes = 2 * stages * 8;
  // Registers of a thread when the block begins, and then: who multiplies takes what the others give.
  static constexpr int registers = kRegisters / all_threads, to_attend = 112, to_multiply = 176;
  static_assert(to_attend * multiplying + to_multiply * kWarpgroup <= kRegisters, "some give what others take");
  static_assert(multiplying % kWarpgroup == 0, "registers are those of warpgroups");
  static_assert(query_bytes % kBoxAlignment == 0 && columns / cluster * kBoxBytes % kBoxAlignment == 0,
                "boxes begin where they may");
};

// The ring as one kind of warps goes round it.
template <class Shape>
class Ring {
 public:
  // Arguments are the first bytes of the stages and of the barriers.
  CROSSRET_DEVICE Ring(int stages, int barriers) : stages_(stages), barriers_(barriers) {}

  // Initialises the barriers, by one thread; then all threads of the cluster meet.
  CROSSRET_DEVICE void init() const {
    for (int place = 0; place < Shape::stages; ++place) {
      init_arrivals(ready(place), 1);
      init_arrivals(free(place), Shape::cluster * (kWarpgroup / kWarp));
    }
    fence_arrivals();
  }

  CROSSRET_DEVICE void next() {
    if (++place_ == Shape::stages) place_ = 0, parity_ ^= 1;
  }
  CROSSRET_DEVICE int place() const { return place_; }
  CROSSRET_DEVICE Shared<Chunk> queries() const { return shared_at<Chunk>(stages_ + place_ * Shape::stage_bytes); }
  CROSSRET_DEVICE Shared<Chunk> contexts() const {
    return shared_at<Chunk>(stages_ + place_ * Shape::stage_bytes + Shape::query_bytes);
  }

  // The copying thread: when the stage is free, all that is to come.
  CROSSRET_DEVICE Shared<Arrivals> fill() const {
    wait_phase(free(place_), parity_ ^ 1);
    expect_bytes(ready(place_), Shape::stage_bytes);
    return ready(place_);
  }
  // The multiplying warps.
  CROSSRET_DEVICE void wait_until_ready() const {
    wait_phase(ready(place_), parity_);
    sync_warp();  // ahead of instructions of whole warps, as behind every branch here
  }
  CROSSRET_DEVICE void release(int place, int rank) const {
    if (thread_index() % kWarp == 0) {
      arrive(free(place));
      if constexpr (Shape::cluster > 1) arrive_at(free(place), rank ^ 1);
    }
    sync_warp();
  }

 private:
  CROSSRET_DEVICE Shared<Arrivals> ready(int place) const { return shared_at<Arrivals>(barriers_) + 2 * place; }
  CROSSRET_DEVICE Shared<Arrivals> free(int place) const { return ready(place) + 1; }

  int stages_, barriers_, place_ = 0, parity_ = 0;
};

// Copies the stages of a tile, from a row of either side on, by one thread.
template <class Shape>
CROSSRET_DEVICE void copy_tile(Ring<Shape>& ring, const TensorMap& queries, int query, const TensorMap& contexts,
                               int context, int count, int rank) {
  constexpr int share = Shape::columns / Shape::cluster;
  for (int number = 0; number < count; ++number, ring.next()) {
    const Shared<Arrivals> ready = ring.fill();
    copy_box(ring.queries(), queries, number, query, ready);
    const Shared<Chunk> to = ring.contexts() + rank * share * (kBoxBytes / kChunkBytes);
    if constexpr (Shape::cluster > 1) {
      copy_box_to_all(to, contexts, number, context + rank * share, ready);
    } else {
      copy_box(to, contexts, number, context, ready);
    }
  }
}

// A thread's cells of the tile.
template <class Shape>
struct WarpgroupSums {
  static constexpr int row_tiles = Shape::rows / 64, column_tiles = Shape::columns / 8, rows_apart = 64;

  float at[row_tiles][4 * column_tiles];

  CROSSRET_DEVICE float cell(int i, int j, int e) const { return at[i][4 * j + e]; }

  // The first row and column of a thread's part.
  CROSSRET_DEVICE static int own_row() {
    const int thread = thread_index() - Shape::multiplying;
    return thread / kWarp * 16 + thread % kWarp / 4;
  }
  CROSSRET_DEVICE static int first_own_column() { return 0; }
  CROSSRET_DEVICE static int own_column() { return 2 * (thread_index() % 4); }
};

// Multiplies the stages of a tile, by the multiplying warpgroup.
template <class Shape, class Arithmetic>
CROSSRET_DEVICE void multiply_tile(Ring<Shape>& ring, WarpgroupSums<Shape>& sums, int count, int rank) {
  int last = 0;
  for (int number = 0; number < count; ++number) {
    ring.wait_until_ready();
    fence_products();
#pragma unroll
    for (int step = 0; step < kBoxBytes / kStepBytes; ++step) {
#pragma unroll
      for (int i = 0; i < sums.row_tiles; ++i) {
        multiply_rows<Arithmetic>(sums.at[i], ring.queries() + i * 64 * (kBoxBytes / kChunkBytes), ring.contexts(),
                                  step, number > 0 || step > 0);
      }
    }
    commit_products();
    if (number > 0) {
      wait_products<1>();  // of the stage before
      ring.release(last, rank);
    }
    last = ring.place();
    ring.next();
  }
  wait_products<0>();
  if (count > 0) ring.release(last, rank);
}

}  // namespace gpu
}  // namespace crossret
