// Launches: memory that kernels take, by name, and kernels put on a stream. nvcc compiles them as CUDA; as host code,
// tests/simt/launch_simt.h supplies the same names and runs kernels on the CPU.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/device.cuh"
#include "cuda/stream.h"

namespace crossret {
namespace gpu {

struct Grid {
  int64_t x, y;              // blocks
  int threads;               // of a block, whole warps
  int64_t shared_bytes = 0;  // of a block, besides what its kernel declares
  int cluster = 1;           // successive blocks that run at once and reach each other's shared memory
};
constexpr int64_t kMostX = 0x7FFFFFFF, kMostY = 65535;  // blocks that any GPU takes

[[noreturn]] inline void not_launched(const char* name, const std::string& why) {
  throw std::runtime_error(std::string("the CUDA kernel ") + name + " was not launched: " + why);
}

inline void check_grid(const char* name, const Grid& grid, const Stream& stream) {
  if (grid.x < 1 || grid.x > kMostX || grid.y < 1 || grid.y > kMostY) {
    not_launched(name, "it has " + std::to_string(grid.x) + " by " + std::to_string(grid.y) + " blocks");
  }
  if (grid.shared_bytes > stream.most_shared) {
    not_launched(name, "it needs " + std::to_string(grid.shared_bytes) +
                           " bytes of shared memory, and the device has " + std::to_string(stream.most_shared));
  }
}

// T, not deduced from an argument.
template <class T>
struct As {
  using Type = T;
};

// Allows a kernel `bytes` of dynamic shared memory on the current device.
void allow_shared(const char* name, const void* kernel, int64_t bytes, const Stream& stream);

}  // namespace gpu
}  // namespace crossret

#ifdef __CUDACC__

namespace crossret {
namespace gpu {

// Memory of `count` elements that kernels read, write before they read, or read and write.
template <class T>
Global<const T> input(const Stream&, const char*, const void* at, int64_t) {
  return static_cast<const T*>(at);
}
template <class T>
Global<T> output(const Stream&, const char*, void* at, int64_t) {
  return static_cast<T*>(at);
}
template <class T>
Global<T> updated(const Stream&, const char*, void* at, int64_t) {
  return static_cast<T*>(at);
}

template <class... Parameters>
void put_on_stream(const char* name, void (*kernel)(Parameters...), const Grid& grid, const Stream& stream,
                   typename As<Parameters>::Type... arguments) {
  void* pointers[] = {static_cast<void*>(&arguments)...};
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  config.blockDim = dim3(grid.threads), config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = &cluster, config.numAttrs = grid.cluster > 1 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (error != cudaSuccess) not_launched(name, cudaGetErrorString(error));
}

}  // namespace gpu
}  // namespace crossret

#else

#include "launch_simt.h"

#endif

namespace crossret {
namespace gpu {

// More than 48 KiB of shared memory need permission. What a kernel declares counts too and is not known here, so that
// every kernel with dynamic shared memory asks.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, const Stream& stream,
            typename As<Parameters>::Type... arguments) {
  check_grid(name, grid, stream);
  if (grid.shared_bytes > 0) allow_shared(name, reinterpret_cast<const void*>(kernel), grid.shared_bytes, stream);
  put_on_stream(name, kernel, grid, stream, arguments...);
}

}  // namespace gpu
}  // namespace crossret
