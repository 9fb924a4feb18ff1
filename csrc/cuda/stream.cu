// Properties of devices and permissions of kernels, asked for once a process, and tensor maps.
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/hopper.cuh"
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

// The driver's function, through the runtime: the library is not linked to the driver.
using Encode = decltype(&cuTensorMapEncodeTiled);
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult state{};
    const char* const name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &state);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &state);
#endif
    check(error, "the CUDA driver cannot be asked for tensor maps");
    if (state != cudaDriverEntryPointSuccess) throw std::runtime_error("the CUDA driver knows no tensor maps");
    return reinterpret_cast<Encode>(function);
  }();
  return found;
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
                       attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                       10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                           attribute(cudaDevAttrComputeCapabilityMinor, device)};
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

TensorMap tensor_map(const Stream&, const char* name, const void* rows, int64_t n_rows, int64_t row_bytes,
                     int box_rows) {
  const auto encode = encoder();
  TensorMap made{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(row_bytes / 2), static_cast<cuuint64_t>(n_rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes)};  // of rows
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, apart[] = {1, 1};
  const CUresult result = encode(&made.map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(rows), sizes, strides,
                                 box, apart, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) not_launched(name, "CUDA's error " + std::to_string(result) + " of its tensor map");
  return made;
}

}  // namespace gpu
}  // namespace crossret
