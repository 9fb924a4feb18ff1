// Memory given to kernels on the CPU, and their launches: csrc/cuda/launch.cuh has the names.
#pragma once
#include <cstring>

#include "hopper_simt.h"

namespace crossret {
namespace gpu {

// What calls that come through torch run on; tests choose it.
struct Chosen {
  simt::Schedule schedule{simt::Order::forward, 0};
  int multiprocessors = 1, most_shared = 227 << 10;
  int capability = 80;
  bool idle = false;  // nothing is launched, and results are whatever the memory held
};
inline Chosen chosen_by_tests;

inline simt::Device& device_of(const Stream& stream) { return *static_cast<simt::Device*>(stream.handle); }

template <class T>
int buffer_of(const Stream& stream, const char* name, const T* at, int64_t count, simt::Device::Kind kind) {
  if (chosen_by_tests.idle) return -1;
  return device_of(stream).add(name, at, count * static_cast<int64_t>(sizeof(T)), kind);
}

template <class T>
Global<const T> input(const Stream& stream, const char* name, const void* at, int64_t count) {
  const auto* const first = static_cast<const T*>(at);
  return {first, buffer_of(stream, name, first, count, simt::Device::Kind::input)};
}

// What was there before is gone, so that nothing right can be left there from an earlier call.
template <class T>
Global<T> output(const Stream& stream, const char* name, void* at, int64_t count) {
  auto* const first = static_cast<T*>(at);
  const int buffer = buffer_of(stream, name, first, count, simt::Device::Kind::output);
  if (buffer >= 0 && count > 0) std::memset(at, 0xFF, static_cast<size_t>(count) * sizeof(T));
  return {first, buffer};
}

template <class T>
Global<T> updated(const Stream& stream, const char* name, void* at, int64_t count) {
  auto* const first = static_cast<T*>(at);
  return {first, buffer_of(stream, name, first, count, simt::Device::Kind::updated)};
}

inline TensorMap tensor_map(const Stream& stream, const char* name, const void* rows, int64_t n_rows, int64_t row_bytes,
                            int box_rows) {
  const auto* const first = static_cast<const char*>(rows);
  if (reinterpret_cast<uintptr_t>(first) % simt::kChunkBytes != 0 || row_bytes % simt::kChunkBytes != 0) {
    not_launched(name, "its rows do not begin at multiples of 16 bytes");
  }
  if (n_rows < 1 || row_bytes < 1 || box_rows < 1 || box_rows > 256) not_launched(name, "it has no boxes");
  return {{buffer_of(stream, name, first, n_rows * row_bytes, simt::Device::Kind::input), first, n_rows, row_bytes,
           box_rows}};
}

inline void allow_shared(const char*, const void* kernel, int64_t bytes, const Stream& stream) {
  if (!chosen_by_tests.idle) device_of(stream).allow(kernel, bytes);
}

template <class... Parameters>
void put_on_stream(const char* name, void (*kernel)(Parameters...), const Grid& grid, const Stream& stream,
                   typename As<Parameters>::Type... arguments) {
  if (chosen_by_tests.idle) return;
  simt::Device& device = device_of(stream);
  const bool allowed = device.allowed(reinterpret_cast<const void*>(kernel)) >= grid.shared_bytes;
  simt::dynamic_memory.most = allowed ? stream.most_shared : simt::DynamicMemory::kUnasked;
  device.launch(
      name, static_cast<int>(grid.x), static_cast<int>(grid.y), grid.threads, static_cast<int>(grid.shared_bytes),
      [&] { kernel(arguments...); }, grid.cluster);
}

}  // namespace gpu
}  // namespace crossret
