// Gradients of features from what their packed rows have summed up: by way of Gram matrices, of themselves and of their
// lengths.
#pragma once
#include "cross_attention/attention.cuh"

namespace crossret {
namespace gpu {

struct GramGradients {
  Global<const float> values;  // (shares, items, apart): (L, L) of every item
  int64_t apart, numbers;      // of an item's first number and the next one's, and of a share's
  int shares;
};

constexpr int kRowWarps = 8, kRowThreads = kRowWarps * kWarp;  // of a block, a row each
constexpr int kFeatures = 8;                                   // columns that a lane adds to at a time

// Adds (∂L/∂G + its transpose) C to the sums of an item's rows.
template <class T>
CROSSRET_KERNEL(kRowThreads, 4)
add_gram_products(CROSSRET_PARAMETER PackedSide side, CROSSRET_PARAMETER GramGradients grams, Global<float> sums,
                  int dim) {
  const int lane = thread_index() % kWarp, row = block_y() * kRowWarps + thread_index() / kWarp;
  const PackedItem item = load(side.items, block_x());
  if (row >= item.count) return;
  const Global<const T> contexts = Global<const T>(side.rows) + int64_t{item.first} * dim;
  const Global<float> to = sums + (int64_t{item.first} + row) * dim;
  const int64_t from = block_x() * grams.apart + int64_t{row} * item.count;
  for (int first = 0; first < dim; first += kFeatures * kWarp) {
    float added[kFeatures] = {};
    for (int begin = 0; begin < item.count; begin += kWarp) {
      float own = 0.0f;  // of one context a lane
      for (int share = 0; share < grams.shares; ++share) {
        if (begin + lane < item.count) own += load(grams.values, share * grams.numbers + from + begin + lane);
      }
      const int some = item.count - begin < kWarp ? item.count - begin : kWarp;
      for (int c = 0; c < some; ++c) {
        const float gradient = shuffle(own, c);
#pragma unroll
        for (int i = 0; i < kFeatures; ++i) {
          const int d = first + i * kWarp + lane;
          if (d < dim) added[i] = fmaf(gradient, widened(load(contexts, (int64_t{begin} + c) * dim + d)), added[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) {
      const int d = first + i * kWarp + lane;
      if (d < dim) store(to, d, load(to, d) + added[i]);
    }
  }
}

struct RowSums {
  Global<const float> sums;           // (rows, dim)
  Global<const float> norms, powers;  // as rows were packed with
  Global<const float> own;            // (parts, rows): negative, what rows get of themselves; null where none do
  int parts, n_rows, dim;
};

// Adds rows' sums to their gradients, where the rows lie: `destination` is where features lie, and what `pack_rows`
// took.
template <class T, class Out>
CROSSRET_KERNEL(kRowThreads, 4)
store_gradients(CROSSRET_PARAMETER PackedSide side, CROSSRET_PARAMETER RowSums given,
                CROSSRET_PARAMETER Source<Out> destination, Global<Out> out) {
  const int lane = thread_index() % kWarp, place = block_y() * kRowWarps + thread_index() / kWarp;
  const PackedItem packed = load(side.items, block_x());
  if (place >= packed.count) return;
  const int64_t row = int64_t{packed.first} + place;
  const Global<const T> from = Global<const T>(side.rows) + row * given.dim;
  const Global<const float> sums = given.sums + row * given.dim;
  const float norm = load(given.norms, row), length = norm > 0.0f ? norm : 0.0f;
  const float share = length > 0.0f ? 1.0f / length : 0.0f;
  float along = 0.0f, scale = 1.0f;
  if (destination.normalize) {
    // What is not along the row is left, divided by its length.
    for (int d = lane; d < given.dim; d += kWarp) along = fmaf(load(sums, d), widened(load(from, d)) * share, along);
    along = 0.0f - sum_of_warp(along);
    scale = load(given.powers, row);
  } else if (given.parts != 0) {
    for (int part = lane; part < given.parts; part += kWarp)
      along += load(given.own, int64_t{part} * given.n_rows + row);
    along = sum_of_warp(along) / fmaxf(length, kTiny);  // twice: the square itself may be out of range
  }
  const Global<Out> to = out + destination.element(block_x(), place);
  const float own_share = destination.normalize ? share : 1.0f / fmaxf(length, kTiny);
  for (int d = lane; d < destination.dim; d += kWarp) {
    const float x = widened(load(from, d)) * own_share;
    Out made;
    narrow((load(sums, d) + along * x) * scale, made);
    store(to, d, made);
  }
}

}  // namespace gpu
}  // namespace crossret
