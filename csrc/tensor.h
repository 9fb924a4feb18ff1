// Properties of tensors on any device, and new tensors.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "pairs/memory.h"
#include "pairs/operands.h"

namespace crossret {

inline Dtype feature_dtype(const torch::stable::Tensor& values, const char* name) {
  switch (values.scalar_type()) {
    case torch::headeronly::ScalarType::Float:
      return Dtype::float32;
    case torch::headeronly::ScalarType::BFloat16:
      return Dtype::bfloat16;
    case torch::headeronly::ScalarType::Half:
      return Dtype::float16;
    default:
      STD_TORCH_CHECK(false, name, " must be float32, bfloat16 or float16");
  }
}

// The tensor, contiguous. torch looks up its own function by name, which takes as long as scoring a short item.
inline torch::stable::Tensor in_order(const torch::stable::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// A tensor's device.
struct Place {
  int32_t type, index;  // `index` has no meaning on the CPU

  static Place of(const torch::stable::Tensor& tensor) {
    Place place{};
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &place.type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &place.index));
    return place;
  }

  bool holds(const torch::stable::Tensor& tensor) const {
    const Place other = of(tensor);
    return other.type == type && (other.index == index || type == aoti_torch_device_type_cpu());
  }
};

// A contiguous uninitialised tensor, without the look-up of torch's own function by name.
template <size_t dims>
torch::stable::Tensor empty(const std::array<int64_t, dims>& sizes, int32_t dtype, const Place& place) {
  std::array<int64_t, dims> strides;
  int64_t stride = 1;
  for (size_t dim = dims; dim-- > 0; stride *= std::max<int64_t>(sizes[dim], 1)) strides[dim] = stride;
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dims, sizes.data(), strides.data(), dtype, place.type, place.index, &made));
  return torch::stable::Tensor(made);
}

// A contiguous uninitialised tensor on the CPU.
template <size_t dims>
torch::stable::Tensor empty(const std::array<int64_t, dims>& sizes, int32_t dtype) {
  return empty<dims>(sizes, dtype, {aoti_torch_device_type_cpu(), 0});
}

}  // namespace crossret
