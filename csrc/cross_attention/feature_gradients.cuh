// Gradients of features from the sums of their packed rows: the Gram matrices' part is added, then the part along each
// row, and the result stored as features lie. Where rows are not normalised contexts have no part along them: the first
// kernel stores what it has added to.
#pragma once
#include "cross_attention/attention.cuh"

namespace crossret {
namespace gpu {

struct GramGradients {
  Global<const float> values;     // (shares, items, apart): (L, pitch) of every item
  int64_t pitch, apart, numbers;  // strides of rows, items and shares
  int shares;
};

constexpr int kRowWarps = 8, kRowThreads = kRowWarps * kWarp;  // of a block
// Rows and columns that a warp of `add_gram_products` takes; a lane has pairs of columns.
constexpr int kProductRows = 4, kProductPairs = 4, kProductColumns = 2 * kProductPairs * kWarp;

// A row of features' gradients, `dim` numbers of any alignment.
template <class Out>
struct GradientRow {
  Global<Out> at;
  bool by_two;  // whether it begins where two numbers may be stored at once
  int dim;

  CROSSRET_DEVICE static GradientRow of(const RaggedRows<Out>& destination, Global<Out> out, int item, int row) {
    const int64_t element = destination.element(item, row);
    return {out + element, element % 2 == 0, destination.dim};
  }
  // Stores two columns, the first of them even, as far as they are there.
  CROSSRET_DEVICE void store_two(int column, float left, float right) const {
    Two<Out> made;
    narrow(left, made.at[0]), narrow(right, made.at[1]);
    if (by_two && column + 1 < dim) {
      store(Global<Two<Out>>(at + column), 0, made);
    } else {
      for (int e = 0; e < 2; ++e) {
        if (column + e < dim) store(at, column + e, made.at[e]);
      }
    }
  }
};

// Adds (∂L/∂G + its transpose) C to the sums of an item's rows, or stores what it makes of them as the features'
// gradients where rows are not normalised. Each context is read once for all rows of a warp.
template <class T, class Out>
CROSSRET_KERNEL(kRowThreads, 4)
add_gram_products(CROSSRET_PARAMETER PackedRows side, CROSSRET_PARAMETER GramGradients grams, Global<float> sums,
                  int dim, CROSSRET_PARAMETER RaggedRows<Out> destination, Global<Out> out) {
  const int lane = thread_index() % kWarp, unit = block_y() * kRowWarps + thread_index() / kWarp;
  const int across = (dim + kProductColumns - 1) / kProductColumns;
  const int row = unit / across * kProductRows, first = unit % across * kProductColumns + 2 * lane;
  const PackedItem item = load(side.items, block_x());
  if (row >= item.count) return;
  const int rows = item.count - row < kProductRows ? item.count - row : kProductRows;
  const Global<const T> contexts = Global<const T>(side.rows) + int64_t{item.first} * dim;
  const int64_t from = block_x() * grams.apart + int64_t{row} * grams.pitch;
  float added[kProductRows][kProductPairs][2] = {};
  for (int begin = 0; begin < item.count; begin += kWarp) {
    float own[kProductRows];  // gradients of the lane's context, summed over shares
#pragma unroll
    for (int r = 0; r < kProductRows; ++r) {
      own[r] = 0.0f;
      if (r >= rows || begin + lane >= item.count) continue;
      for (int share = 0; share < grams.shares; ++share) {
        own[r] += load(grams.values, share * grams.numbers + from + r * grams.pitch + begin + lane);
      }
    }
    const int some = item.count - begin < kWarp ? item.count - begin : kWarp;
    for (int c = 0; c < some; ++c) {
      float gradients[kProductRows];
#pragma unroll
      for (int r = 0; r < kProductRows; ++r) gradients[r] = shuffle(own[r], c);
#pragma unroll
      for (int i = 0; i < kProductPairs; ++i) {
        const int d = first + 2 * i * kWarp;
        if (d >= dim) continue;
        const auto pair = load(Global<const Two<T>>(contexts + ((int64_t{begin} + c) * dim + d)), 0);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float x = widened(pair.at[k]);
#pragma unroll
          for (int r = 0; r < kProductRows; ++r) added[r][i][k] = fmaf(gradients[r], x, added[r][i][k]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kProductRows; ++r) {
    if (r >= rows) continue;
    const Global<Two<float>> to = Global<Two<float>>(sums + (int64_t{item.first} + row + r) * dim);
    const auto gradients = GradientRow<Out>::of(destination, out, block_x(), row + r);
#pragma unroll
    for (int i = 0; i < kProductPairs; ++i) {
      const int d = first + 2 * i * kWarp;
      if (d >= dim) continue;
      const Two<float> before = load(to, d / 2);
      const Two<float> sum{{before.at[0] + added[r][i][0], before.at[1] + added[r][i][1]}};
      if (destination.normalize) {
        store(to, d / 2, sum);
      } else {
        gradients.store_two(d, sum.at[0], sum.at[1]);
      }
    }
  }
}

struct RowSums {
  Global<const float> sums;           // (rows, dim)
  Global<const float> norms, powers;  // of the packed rows
  Global<const float> own;            // (parts, rows): −Σ r ∂L/∂r; null for contexts
  int parts, n_rows, dim;
};

// Stores the gradients of rows at `destination`, the features' layout as `pack_rows` took it.
template <class T, class Out>
CROSSRET_KERNEL(kRowThreads, 4)
store_gradients(CROSSRET_PARAMETER PackedRows side, CROSSRET_PARAMETER RowSums given,
                CROSSRET_PARAMETER RaggedRows<Out> destination, Global<Out> out) {
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
    // Through x / ‖x‖: the part along the row is removed, the rest divided by the length.
    for (int d = lane; d < given.dim; d += kWarp) along = fmaf(load(sums, d), widened(load(from, d)) * share, along);
    along = 0.0f - sum_of_warp(along);
    scale = load(given.powers, row);
  } else if (given.parts != 0) {
    for (int part = lane; part < given.parts; part += kWarp)
      along += load(given.own, int64_t{part} * given.n_rows + row);
    along = sum_of_warp(along) / fmaxf(length, kTiny);  // divided twice: the square may be out of range
  }
  const auto gradients = GradientRow<Out>::of(destination, out, block_x(), place);
  const float unit = destination.normalize ? share : 1.0f / fmaxf(length, kTiny);
  for (int d = 2 * lane; d < destination.dim; d += 2 * kWarp) {
    const auto x = load(Global<const Two<T>>(from + d), 0);
    const auto sum = load(Global<const Two<float>>(sums + d), 0);
    gradients.store_two(d, (sum.at[0] + along * (widened(x.at[0]) * unit)) * scale,
                        (sum.at[1] + along * (widened(x.at[1]) * unit)) * scale);
  }
}

}  // namespace gpu
}  // namespace crossret
