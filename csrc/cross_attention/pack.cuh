// Rows of features packed for the kernels of stacked cross attention: finite, padded with zeros, their lengths beside
// them. An item's rows follow the last item's as a table of starts says, or each item has the same number of slots.
#pragma once
#include "cross_attention/relevance.cuh"
#include "cuda/product.cuh"

namespace crossret {
namespace gpu {

constexpr int kPackWarps = 8, kPackThreads = kPackWarps * kWarp;
constexpr float kMostLength = 3.1e7f;  // of rows: their products, and the squares of those, are far from float32's end

struct PackedItem {
  int first, count;  // rows
};

// A packed side as kernels read it.
struct PackedRows {
  Global<const Chunk> rows;
  Global<const float> norms;  // ‖x‖ of every packed row, NaN where it was not finite
  Global<const PackedItem> items;
};

// The features of a part, n items of rows, as its tensors lie.
template <class T>
struct RaggedRows {
  Global<const T> features;
  int64_t item_stride, row_stride;  // elements; 0 and row stride of features with offsets
  Global<const int64_t> extents;    // offsets (items + 1), else lengths (items)
  Global<const int64_t> places;     // (items, most): rows of an item that a mask leaves
  Global<const int> starts;         // (items + 1): first packed rows of items; null with slots
  int first, dim, most, slots;      // first item, elements of a row, rows of an item at most, slots of an item or 0
  bool packed, has_extents, masked, normalize;

  // Packed rows of an item of the part. Lengths are clamped: they may have changed on the device after the checks.
  CROSSRET_DEVICE PackedItem item(int number) const {
    const int own = first + number;
    if (slots == 0) {
      const int start = load(starts, own);
      return {start - load(starts, first), load(starts, own + 1) - start};
    }
    int64_t count = most;
    if (has_extents) count = packed ? load(extents, own + 1) - load(extents, own) : load(extents, own);
    return {number * slots, static_cast<int>(count < 0 ? 0 : count < most ? count : most)};
  }
  // First element of a row.
  CROSSRET_DEVICE int64_t element(int number, int row) const {
    const int64_t own = int64_t{first} + number;
    if (packed) return (load(extents, own) + row) * row_stride;
    return own * item_stride + (masked ? load(places, own * most + row) : row) * row_stride;
  }
};

struct Packing {
  Global<Chunk> rows;
  Global<float> norms, powers;  // `powers`: factors of rows that are to be divided by their norm
  Global<PackedItem> items;
  int dim;              // of packed rows
  int n_rows, surplus;  // rows of all items, and of zeros behind them
};

// The power of two that brings a number of full precision to [1, 2), the greatest ones to [1, 4).
CROSSRET_DEVICE float power_to_one(float x) {
  const int bits = 0x7F000000 - (bits_of(x) & 0x7F800000);
  return float_of(bits > 0x00800000 ? bits : 0x00800000);
}

template <class T>
struct alignas(kChunkBytes) ChunkOf {
  static constexpr int count = kChunkBytes / static_cast<int>(sizeof(T));
  T at[count];
};

// Packs rows of one item, a warp each, as T, which is the features' dtype or float32.
template <class Feature, class T>
CROSSRET_KERNEL(kPackThreads, 4)
pack_rows(CROSSRET_PARAMETER RaggedRows<Feature> source, CROSSRET_PARAMETER Packing packing) {
  constexpr int of_chunk = ChunkOf<T>::count;
  const int lane = thread_index() % kWarp, warp = thread_index() / kWarp;
  const int number = block_x();
  const PackedItem item = source.item(number);
  if (block_y() == 0 && thread_index() == 0) store(packing.items, number, item);
  const int row = block_y() * kPackWarps + warp;
  const int64_t to = int64_t{item.first} + row;
  const auto row_of = [&](int64_t place) {
    return Global<ChunkOf<T>>(packing.rows) + place * (packing.dim / of_chunk);
  };
  const auto clear = [&](int64_t place) {  // empty slots and rows behind a part are zeros, as products read them
    for (int chunk = lane; chunk < packing.dim / of_chunk; chunk += kWarp) store(row_of(place), chunk, ChunkOf<T>{});
  };
  static_assert(kPackWarps >= 7, "a warp for every row of zeros");
  if (number == 0 && block_y() == 0 && warp < packing.surplus) clear(int64_t{packing.n_rows} + warp);
  if (row >= item.count) {
    if (row < source.slots) clear(to);
    return;
  }
  // The norm, from features scaled so that squares neither overflow nor vanish.
  const Global<ChunkOf<T>> out = row_of(to);
  const Global<const Feature> from = source.features + source.element(number, row);
  float largest = 0.0f;
  for (int d = lane; d < source.dim; d += kWarp) largest = max_or_nan(largest, fabsf(widened(load(from, d))));
  for (int mask = 1; mask < kWarp; mask *= 2) largest = max_or_nan(largest, shuffle_xor(largest, mask));
  bool fine = largest < INFINITY;  // false for NaN
  const float scale = fine && largest >= kTiny ? power_to_one(largest) : 0.0f;
  float squares = 0.0f;
  for (int d = lane; d < source.dim; d += kWarp) {
    const float x = fine ? widened(load(from, d)) * scale : 0.0f;
    squares = fmaf(x, x, squares);
  }
  for (int mask = 1; mask < kWarp; mask *= 2) squares += shuffle_xor(squares, mask);
  float norm = scale != 0.0f ? sqrtf(squares) / scale : 0.0f;
  float power = 1.0f;
  if (source.normalize) {
    fine = fine && norm < INFINITY;
    power = fine && norm >= kTiny ? power_to_one(norm) : 0.0f;
    norm = fine && norm >= kTiny ? norm * power : 0.0f;
  } else {
    fine = fine && norm < kMostLength;
    norm = norm >= kTiny ? norm : 0.0f;
  }
  // Results: the norm, the power and the row, zeros where it is not finite.
  if (lane == 0) {
    store(packing.norms, to, fine ? norm : NAN);
    if (source.normalize) store(packing.powers, to, power);
  }
  for (int d = lane; d < packing.dim; d += kWarp) {
    T made;
    narrow(fine && d < source.dim ? widened(load(from, d)) * power : 0.0f, made);
    store(Global<T>(out), d, made);
  }
}

}  // namespace gpu
}  // namespace crossret
