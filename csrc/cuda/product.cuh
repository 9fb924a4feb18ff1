// The product of a tile of queries and a tile of contexts, rows of features in any number and order, in accumulators.
//
// A ring of stages in shared memory holds `stage_bytes` of every row, copied asynchronously some stages ahead. A warp
// multiplies 32 bytes of its rows at a time, 16 numbers of 16 bits or 8 of 32. A lane accumulates the cells that tensor
// cores leave it: rows g and g + 8 of 16, columns 2t and 2t + 1 of 8, for g = lane / 4 and t = lane % 4.
#pragma once
#include <utility>

#include "cuda/device.cuh"

namespace crossret {
namespace gpu {

// The features' element by the arithmetic of their product.
template <class Arithmetic>
struct Features {
  using Element = Arithmetic;
};
template <>
struct Features<TFloat32> {
  using Element = float;
};

constexpr int kChunkBytes = 16, kStepBytes = 32;

// A block of row_warps × column_warps warps, each with row_tiles × 16 rows of queries and column_tiles × 8 of contexts;
// `blocks` of them are to fit a multiprocessor.
template <int row_warps_, int column_warps_, int row_tiles_, int column_tiles_, int stage_bytes_, int stages_,
          int blocks_ = 1>
struct TileShape {
  static constexpr bool apart = false;  // whether warps of their own multiply
  static constexpr int blocks = blocks_;
  static constexpr int row_warps = row_warps_, column_warps = column_warps_;
  static constexpr int row_tiles = row_tiles_, column_tiles = column_tiles_;
  static constexpr int rows = 16 * row_tiles * row_warps, columns = 8 * column_tiles * column_warps;
  static constexpr int warps = row_warps * column_warps, threads = warps * kWarp;
  static constexpr int stages = stages_, stage_bytes = stage_bytes_, chunks = stage_bytes / kChunkBytes;
  static constexpr int ring_chunks = stages * (rows + columns) * chunks, ring_bytes = ring_chunks * kChunkBytes;
  static_assert(chunks == 4 || chunks == 8, "the order of chunks in a row is made for these");
  static_assert(threads / chunks % 8 == 0, "the order of chunks is that of the rows a thread copies before and behind");

  // The rows of which a thread copies a chunk.
  static constexpr int copied_apart = threads / chunks;
  CROSSRET_DEVICE static int copied_row(int i) { return thread_index() / chunks + i * copied_apart; }
};

// Index of a chunk of a row in a stage, swizzled: the same chunk of eight rows lies in different banks.
template <class Shape>
CROSSRET_DEVICE int chunk_place(int row, int chunk) {
  return row * Shape::chunks + (Shape::chunks == 8 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3));
}

// A thread's accumulators and their cells in the tile.
template <class Shape>
struct Accumulators {
  static constexpr int row_tiles = Shape::row_tiles, column_tiles = Shape::column_tiles, rows_apart = 16;

  float at[row_tiles][column_tiles][4];

  CROSSRET_DEVICE float cell(int i, int j, int e) const { return at[i][j][e]; }

  // The first row and column of a warp's part.
  CROSSRET_DEVICE static int first_row(int warp) { return warp % Shape::row_warps * (16 * Shape::row_tiles); }
  CROSSRET_DEVICE static int first_column(int warp) { return warp / Shape::row_warps * (8 * Shape::column_tiles); }
  // The first row and column of a thread's part.
  CROSSRET_DEVICE static int own_row() { return first_row(thread_index() / kWarp) + thread_index() % kWarp / 4; }
  CROSSRET_DEVICE static int first_own_column() { return first_column(thread_index() / kWarp); }
  CROSSRET_DEVICE static int own_column() { return first_own_column() + 2 * (thread_index() % 4); }

  CROSSRET_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < Shape::row_tiles; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::column_tiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) at[i][j][e] = 0.0f;
      }
    }
  }

  // Calls take(row, column, left, right) for every pair of neighbouring cells, in groups of eight columns that begin
  // below `columns`.
  template <class Take>
  CROSSRET_DEVICE void each_pair(int columns, const Take& take) const {
    const int row = own_row(), column = own_column(), warp = thread_index() / kWarp;
#pragma unroll
    for (int i = 0; i < Shape::row_tiles; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::column_tiles; ++j) {
        if (first_column(warp) + 8 * j >= columns) continue;
        take(row + 16 * i, column + 8 * j, at[i][j][0], at[i][j][1]);
        take(row + 16 * i + 8, column + 8 * j, at[i][j][2], at[i][j][3]);
      }
    }
  }
};

// The chunks of rows that a thread copies, the same ones in every stage but for the stage's place.
template <class Shape, int rows, class Source>
struct CopiedRows {
  static constexpr int apart = Shape::copied_apart, count = (rows + apart - 1) / apart;
  decltype(std::declval<Source>()(0)) begin[count];  // the thread's chunk of the row's first stage

  CROSSRET_DEVICE explicit CopiedRows(const Source& source) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int row = Shape::copied_row(i);
      begin[i] = source((i + 1) * apart <= rows || row < rows ? row : 0) + thread_index() % Shape::chunks;
    }
  }

  // Copies the stage that begins `at` chunks behind each row's first; `to` is the place of the thread's first chunk.
  CROSSRET_DEVICE void copy(Shared<Chunk> to, Global<const Chunk> from, int at) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if ((i + 1) * apart > rows && Shape::copied_row(i) >= rows) continue;
      copy_async(to + i * apart * Shape::chunks, from + (begin[i] + at));
    }
  }
};

// Where the running thread's part of a stage lies, in chunks from the stage's begin: the first chunk that it copies,
// and those whose addresses it passes to the first matrix loads. Of a later step, 2 chunks behind, the same bit of the
// place is another: stages begin at multiples of a row's chunks.
template <class Shape>
struct StagePlaces {
  int copied, queries, contexts;

  CROSSRET_DEVICE StagePlaces() {
    const int thread = opaque(thread_index()), lane = thread % kWarp, warp = thread / kWarp;
    const int row = Accumulators<Shape>::first_row(warp) + lane % 16;
    const int column = Accumulators<Shape>::first_column(warp) + lane % 8 + lane / 16 * 8;
    copied = chunk_place<Shape>(thread / Shape::chunks, thread % Shape::chunks);
    queries = chunk_place<Shape>(row, lane / 16);
    contexts = Shape::rows * Shape::chunks + chunk_place<Shape>(column, lane / 8 % 2);
  }
};

// Multiplies 32 bytes of a warp's rows; the stage begins `stage` chunks from `ring` on.
template <class Shape, class Arithmetic>
CROSSRET_DEVICE void multiply_step(Accumulators<Shape>& sums, Shared<const Chunk> ring, int stage,
                                   const StagePlaces<Shape>& places, int step) {
  const Shared<const Chunk> queries = ring + ((stage + places.queries) ^ 2 * step);
  const Shared<const Chunk> contexts = ring + ((stage + places.contexts) ^ 2 * step);
  uint32_t a[Shape::row_tiles][4];
#pragma unroll
  for (int i = 0; i < Shape::row_tiles; ++i) load_matrices(a[i], queries + 16 * i * Shape::chunks);
  // Two fragments of contexts at a time: accumulators leave few registers.
#pragma unroll
  for (int j = 0; j < Shape::column_tiles; j += 2) {
    uint32_t two[4], one[2];
    if (j + 1 < Shape::column_tiles) {
      load_matrices(two, contexts + 8 * j * Shape::chunks);
      one[0] = two[0], one[1] = two[1];
    } else {
      load_matrices(one, contexts + 8 * j * Shape::chunks);
    }
#pragma unroll
    for (int i = 0; i < Shape::row_tiles; ++i) {
      multiply<Arithmetic>(sums.at[i][j], a[i], one);
      if (j + 1 < Shape::column_tiles) {
        const uint32_t other[2] = {two[2], two[3]};
        multiply<Arithmetic>(sums.at[i][j + 1], a[i], other);
      }
    }
  }
}

// One side of a product.
template <class Source>
struct Operand {
  Global<const Chunk> features;
  Source source;  // source(row): first chunk of a row of the tile; of one that is not there any row's
};
template <class Source>
CROSSRET_DEVICE Operand<Source> operand(Global<const Chunk> features, const Source& source) {
  return {features, source};
}

// Multiplies rows of `row_bytes` bytes, whole stages, by all threads of the block. The ring, ring_bytes from `ring` on,
// is free after the block's next barrier.
template <class Shape, class Arithmetic, class OfQueries, class OfContexts>
CROSSRET_DEVICE void multiply_tiles(Accumulators<Shape>& sums, const Operand<OfQueries>& queries,
                                    const Operand<OfContexts>& contexts, int row_bytes, Shared<Chunk> ring) {
  constexpr int stages = Shape::stages, query_chunks = Shape::rows * Shape::chunks;
  constexpr int stage_chunks = query_chunks + Shape::columns * Shape::chunks;
  sums.clear();
  const CopiedRows<Shape, Shape::rows, OfQueries> of_queries(queries.source);
  const CopiedRows<Shape, Shape::columns, OfContexts> of_contexts(contexts.source);
  const StagePlaces<Shape> places;
  const int count = row_bytes / Shape::stage_bytes;
  int copied = 0, filled = 0, read = 0;  // stages copied; places in the ring of the next to fill and to multiply
  const auto next = [&](int place) { return place == (stages - 1) * stage_chunks ? 0 : place + stage_chunks; };
  const auto copy = [&] {
    if (copied < count) {
      const Shared<Chunk> to = ring + (filled + places.copied);
      of_queries.copy(to, queries.features, copied * Shape::chunks);
      of_contexts.copy(to + query_chunks, contexts.features, copied * Shape::chunks);
    }
    ++copied, filled = next(filled);
    commit_copies();  // empty groups too: groups are counted by stages
  };
  // Fill the ring, then copy one stage and multiply one.
#pragma unroll
  for (int ahead = 0; ahead < stages - 1; ++ahead) copy();
#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    wait_copies<stages - 2>();
    sync_block();
    copy();
#pragma unroll
    for (int step = 0; step < Shape::stage_bytes / kStepBytes; ++step) {
      multiply_step<Shape, Arithmetic>(sums, ring, read, places, step);
    }
    read = next(read);
  }
  wait_copies<0>();
}

}  // namespace gpu
}  // namespace crossret
