// Properties of devices and permissions of kernels, asked for once a process.
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/launch.cuh"

namespace crossret {
namespace gpu {

namespace {

std::mutex guard;  // of the caches below

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "a CUDA device does not say what it can do");
  return value;
}

}  // namespace

Stream stream_of(int device, void* handle) {
  // torch has its own CUDA runtime: the device may be current in that one alone.
  check(cudaSetDevice(device), "a CUDA device cannot be used");
  static std::map<int, Stream> known;
  const std::lock_guard<std::mutex> lock(guard);
  auto found = known.find(device);
  if (found == known.end()) {
    const Stream asked{nullptr, device, attribute(cudaDevAttrMultiProcessorCount, device),
                       attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
    found = known.emplace(device, asked).first;
  }
  Stream stream = found->second;
  stream.handle = handle;
  return stream;
}

void allow_shared(const char* name, const void* kernel, int64_t bytes, const Stream& stream) {
  static std::map<std::pair<const void*, int>, int64_t> allowed;
  const std::lock_guard<std::mutex> lock(guard);
  int64_t& most = allowed[{kernel, stream.device}];
  if (bytes <= most) return;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) not_launched(name, cudaGetErrorString(error));
  most = bytes;
}

}  // namespace gpu
}  // namespace crossret
