// Where the rows of a side lie in memory of a GPU, and how their bytes come to shared memory.
#pragma once
#include "cuda/product.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

// An item's rows: its first one's number, where that begins among the elements, and how many; an item without rows has
// one to be read, which is nobody's or another's.
struct ItemRows {
  int64_t begin;
  int first, length;
};

// Items of a side, whose rows are numbered through all of them as features hold them, padding included.
struct Items {
  Global<const int64_t> extents;    // offsets of packed items, lengths of padded ones; where they are told
  int64_t item_stride, row_stride;  // elements
  int slots, most, n_rows;          // rows between padded items, 0 where packed; of an item, at most; of all
  bool told;

  CROSSRET_DEVICE ItemRows item(int number) const {
    const int64_t extent = told ? load(extents, number) : most;
    if (slots > 0) return {number * item_stride, number * slots, within(extent, most)};
    const int first = within(extent, n_rows - 1);
    return {first * row_stride, first, within(load(extents, number + 1) - first, most)};
  }

  CROSSRET_DEVICE static int within(int64_t count, int most) {
    return count < 0 ? 0 : count < most ? static_cast<int>(count) : most;
  }

  // Where a row begins.
  CROSSRET_DEVICE int64_t begin(int row) const {
    if (slots == 0) return row * row_stride;
    const int item = row / slots;
    return item * item_stride + (row - item * slots) * row_stride;
  }
};

template <class T>
struct Rows : Items {
  Global<const T> features;
  Global<const float> scales;  // of rows, 1 / ‖x‖; read where similarities are cosines
  bool whole;                  // whether rows begin at multiples of 16 bytes
  int dim;

  CROSSRET_DEVICE int row_bytes() const { return dim * static_cast<int>(sizeof(T)); }
};

CROSSRET_DEVICE uint32_t bits_in_word(float x) { return static_cast<uint32_t>(bits_of(x)); }
template <class T>
CROSSRET_DEVICE uint32_t bits_in_word(T x) {
  return x.bits;
}

// Copies a thread's chunk of the row that begins at element `begin`, of its stage `number`, to row `row` of a stage:
// asynchronously, or element by element.
template <class Tile, class T>
CROSSRET_DEVICE void copy_chunk(Shared<Chunk> stage, int row, const Rows<T>& side, int64_t begin, int number) {
  constexpr int size = static_cast<int>(sizeof(T)), in_word = 4 / size;
  const int chunk = thread_index() % Tile::chunks, first = number * Tile::stage_bytes + chunk * kChunkBytes;
  const int left = side.row_bytes() - first;
  const int64_t at = begin + first / size;
  const Shared<Chunk> to = stage + chunk_place<Tile>(row, chunk);
  if (side.whole) {
    const int bytes = left < 0 ? 0 : left < kChunkBytes ? left : kChunkBytes;
    copy_async(to, Global<const Chunk>(side.features + (bytes > 0 ? at : 0)), bytes);
    return;
  }
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

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
