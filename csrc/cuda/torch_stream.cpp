#include "cuda/torch_stream.h"

#include <dlfcn.h>

namespace crossret {
namespace gpu {

namespace {

// A function of torch's C interface that only CUDA builds have: found at run time, so that the library links to every
// build and imports without a driver. The stable ABI has the current stream from torch 2.13 on.
using CurrentCudaStream = AOTITorchError (*)(int32_t, void**);

CurrentCudaStream current_cuda_stream() {
  void* const torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  void* const found = torch_cuda != nullptr ? dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream") : nullptr;
  STD_TORCH_CHECK(found != nullptr, "this PyTorch has no CUDA streams");
  return reinterpret_cast<CurrentCudaStream>(found);
}

}  // namespace

void* current_stream(int device) {
  static const CurrentCudaStream ask = current_cuda_stream();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(ask(device, &stream));
  return stream;
}

}  // namespace gpu
}  // namespace crossret
