// The current stream of a tensor's device, where torch runs a call's kernels. In tests it is the CPU
// (tests/simt/torch_stream_simt.h).
#pragma once
#ifdef CROSSRET_SIMT

#include "torch_stream_simt.h"

#else

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include "cuda/stream.h"

#define CROSSRET_KEY CUDA

namespace crossret {
namespace gpu {

inline bool on_device(const torch::stable::Tensor& tensor) { return tensor.is_cuda(); }
constexpr const char* kDevices = "a CUDA device";

// cudaStream_t.
void* current_stream(int device);

// While it lives, the tensor's device is the current one.
class CurrentStream {
 public:
  explicit CurrentStream(const torch::stable::Tensor& tensor)
      : guard_(tensor.get_device_index()),
        stream_(stream_of(tensor.get_device_index(), current_stream(tensor.get_device_index()))) {}

  operator const Stream&() const { return stream_; }  // NOLINT: is one

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  const Stream stream_;
};

}  // namespace gpu
}  // namespace crossret

#endif

// Registers operations for the device's key, whose macro is expanded first, and operations without a device.
#define CROSSRET_IMPL(key, library) STABLE_TORCH_LIBRARY_IMPL(crossret, key, library)
#define CROSSRET_ON_DEVICE(library) CROSSRET_IMPL(CROSSRET_KEY, library)
#define CROSSRET_ANYWHERE(library) CROSSRET_IMPL(CompositeExplicitAutograd, library)
