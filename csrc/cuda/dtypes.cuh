// Kernels by the dtype of features.
#pragma once
#include "cuda/device.cuh"
#include "pairs/side.h"

namespace crossret {
namespace gpu {

// run(element).
template <class Run>
void by_dtype(Dtype dtype, const Run& run) {
  switch (dtype) {
    case Dtype::float32:
      return run(float{});
    case Dtype::bfloat16:
      return run(BFloat16{});
    case Dtype::float16:
      return run(Float16{});
  }
}

}  // namespace gpu
}  // namespace crossret
