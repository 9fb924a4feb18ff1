// One tile of a cluster by the words of `hopper.cuh`, step by step: what they mean is written in manuals, and seen
// here.
#include "cuda/one_tile.h"

#include "cuda/launch.cuh"
#include "cuda/warpgroups.cuh"

namespace crossret {
namespace gpu {

namespace {

using Shape = WarpgroupShape<2>;
constexpr int kBarriers = Shape::ring_bytes;  // their first byte

struct Tile {
  Global<Chunk> copies;  // (2, chunks of a stage): the first stage as it lies in either block
  Global<float> sums;    // (2 · rows, columns)
};

template <class Arithmetic>
CROSSRET_KERNEL(Shape::all_threads, Shape::blocks)
one_tile(CROSSRET_PARAMETER TensorMap queries, CROSSRET_PARAMETER TensorMap contexts, int stages, bool multiplied,
         CROSSRET_PARAMETER Tile out) {
#ifdef CROSSRET_HOPPER
  const int rank = cluster_rank();
  Ring<Shape> ring(0, kBarriers);
  if (thread_index() == 0) ring.init();
  sync_warp();
  sync_cluster();
  if (thread_index() >= Shape::multiplying) {
    take_registers<Shape::to_multiply>();
    WarpgroupSums<Shape> sums;
    multiply_tile<Shape, Arithmetic>(ring, sums, multiplied ? stages : 0, rank);
    const int64_t row = int64_t{rank} * Shape::rows + sums.own_row();
#pragma unroll
    for (int i = 0; multiplied && i < sums.row_tiles; ++i) {
#pragma unroll
      for (int j = 0; j < sums.column_tiles; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t at = (row + sums.rows_apart * i + 8 * half) * Shape::columns + sums.own_column() + 8 * j;
          store(Global<Two<float>>(out.sums), at / 2,
                Two<float>{{sums.cell(i, j, 2 * half), sums.cell(i, j, 2 * half + 1)}});
        }
      }
    }
  } else {
    give_registers<Shape::to_attend>();
    if (thread_index() == Shape::copying) {
      copy_tile<Shape>(ring, queries, rank * Shape::rows, contexts, 0, multiplied ? stages : 1, rank);
    } else if (!multiplied && thread_index() < Shape::threads) {
      ring.wait_until_ready();
      constexpr int chunks = Shape::stage_bytes / kChunkBytes;
      for (int at = thread_index(); at < chunks; at += Shape::threads) {
        store(out.copies, rank * chunks + at, Chunk(ring.queries()[at]));
      }
    }
  }
  sync_warp();
  sync_cluster();
#endif
}

}  // namespace

OneTileSizes one_tile_sizes() { return {2 * Shape::rows, Shape::columns, 2 * Shape::stage_bytes}; }

void copy_and_multiply(const void* queries, const void* contexts, int64_t row_bytes, Dtype dtype, void* copies,
                       float* sums, const Stream& stream) {
  if (stream.capability != 90 || !kWarpgroupsBuilt) {
    not_launched("one_tile", "it is for compute capability 9.0, and a library that is built for it");
  }
  const TensorMap of_queries = tensor_map(stream, "queries", queries, 2 * Shape::rows, row_bytes, Shape::rows);
  const TensorMap of_contexts = tensor_map(stream, "contexts", contexts, Shape::columns, row_bytes, Shape::columns / 2);
  const Tile out{output<Chunk>(stream, "copies", copies, 2 * Shape::stage_bytes / kChunkBytes),
                 output<float>(stream, "sums", sums, 2 * Shape::rows * Shape::columns)};
  const int stages = static_cast<int>((row_bytes + kBoxBytes - 1) / kBoxBytes);
  const auto run = [&](auto arithmetic) {
    for (const bool multiplied : {false, true}) {
      launch("one_tile", one_tile<decltype(arithmetic)>,
             {Shape::cluster, 1, Shape::all_threads, kBarriers + Shape::barrier_bytes, Shape::cluster}, stream,
             of_queries, of_contexts, stages, multiplied, out);
    }
  };
  if (dtype == Dtype::float32) return run(TFloat32{});
  dtype == Dtype::bfloat16 ? run(BFloat16{}) : run(Float16{});
}

}  // namespace gpu
}  // namespace crossret
