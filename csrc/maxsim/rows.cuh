// Where the rows of a side lie in memory of a GPU, and how their bytes come to shared memory.
#pragma once
#include "cuda/product.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

// Rows of a side, numbered through all of its items' as features hold them, padding included.
template <class T>
struct Rows {
  Global<const T> features;
  Global<const float> scales;         // of rows, 1 / ‖x‖; read where similarities are cosines
  Global<const int> firsts, lengths;  // of items
  int64_t item_stride, row_stride;    // elements
  uint32_t per_item;                  // rows of groups that lie item_stride apart
  bool whole;                         // whether rows begin at multiples of 16 bytes
  int dim;

  CROSSRET_DEVICE int64_t begin(int row) const {
    const auto number = static_cast<uint32_t>(row);
    if (per_item == 1) return number * item_stride;
    const uint32_t item = number / per_item;
    return item * item_stride + (number - item * per_item) * row_stride;
  }

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
