// Where the rows of a side lie in memory of a GPU.
#pragma once
#include "cuda/device.cuh"

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
};

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
