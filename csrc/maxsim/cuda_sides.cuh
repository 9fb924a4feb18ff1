// What launches of Sum-Max's kernels share: sides as kernels take them, and features by their dtype.
#pragma once
#include "cuda/dtypes.cuh"
#include "cuda/launch.cuh"
#include "maxsim/gpu.h"
#include "maxsim/rows.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

inline int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

template <class T>
Rows<T> rows_of(const SideCall& side, const Stream& stream) {
  Rows<T> rows{};
  rows.features = input<T>(stream, "features", side.features, side.elements);
  if (side.scales != nullptr) rows.scales = input<float>(stream, "scales", side.scales, side.n_rows);
  if (side.firsts != nullptr) rows.firsts = input<int>(stream, "firsts", side.firsts, side.n_items);
  if (side.lengths != nullptr) rows.lengths = input<int>(stream, "lengths", side.lengths, side.n_items);
  rows.item_stride = side.item_stride, rows.row_stride = side.row_stride;
  rows.per_item = static_cast<uint32_t>(side.per_item);
  const auto bytes = static_cast<int64_t>(sizeof(T));
  const int64_t apart = reinterpret_cast<uintptr_t>(side.features) | side.item_stride * bytes | side.row_stride * bytes;
  rows.whole = apart % 16 == 0;
  rows.dim = side.dim;
  return rows;
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
