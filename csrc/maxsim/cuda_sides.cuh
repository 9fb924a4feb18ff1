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
  rows.told = side.extents != nullptr;
  if (rows.told) {
    rows.extents = input<int64_t>(stream, "lengths", side.extents, side.n_items + (side.slots == 0 ? 1 : 0));
  }
  rows.item_stride = side.item_stride, rows.row_stride = side.row_stride;
  rows.slots = static_cast<int>(side.slots), rows.most = static_cast<int>(side.most);
  rows.n_rows = static_cast<int>(side.n_rows);
  const auto bytes = static_cast<int64_t>(sizeof(T));
  const int64_t apart = reinterpret_cast<uintptr_t>(side.features) | side.item_stride * bytes | side.row_stride * bytes;
  rows.whole = apart % 16 == 0;
  rows.dim = side.dim;
  return rows;
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
