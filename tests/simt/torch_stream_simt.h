// Where the tests run the CUDA kernels of a call: on the CPU, each call on a device of its own.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include "cuda/launch.cuh"

// Under which operations are registered.
#define CROSSRET_KEY CPU

namespace crossret {
namespace gpu {

inline bool on_device(const torch::stable::Tensor& tensor) { return tensor.is_cpu(); }
constexpr const char* kDevices = "the CPU";

class CurrentStream {
 public:
  explicit CurrentStream(const torch::stable::Tensor&)
      : device_(chosen_by_tests.schedule),
        stream_{&device_, 0, chosen_by_tests.multiprocessors, chosen_by_tests.most_shared, chosen_by_tests.capability} {
  }

  operator const Stream&() const { return stream_; }  // NOLINT: is one

 private:
  simt::Device device_;
  const Stream stream_;
};

}  // namespace gpu
}  // namespace crossret
