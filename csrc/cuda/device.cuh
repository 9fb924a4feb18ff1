// What kernels are written in: threads, barriers, warps, and memory. By nvcc it is CUDA; compiled as host code, a
// program that runs threads on the CPU supplies the same names (tests/simt/simt.h) and checks every access.
#pragma once
#include <cstdint>

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define CROSSRET_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define CROSSRET_DEVICE __device__ __forceinline__
#define CROSSRET_SHARED(T, name, count) __shared__ T name[count]
#define CROSSRET_PARAMETER const __grid_constant__

namespace crossret {
namespace gpu {

// Memory of the device; host code makes its checked pointers of plain ones.
template <class T>
using Global = T*;

CROSSRET_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
CROSSRET_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
CROSSRET_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
CROSSRET_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }

CROSSRET_DEVICE void sync_block() { __syncthreads(); }
// A barrier of its own number, 1 to 15, of `threads` of the block: whole warps.
CROSSRET_DEVICE void sync_named(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
CROSSRET_DEVICE void sync_warp() { __syncwarp(); }

// All lanes of a warp take part in each of these.
template <class T>
CROSSRET_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(~0u, value, lane);
}
template <class T>
CROSSRET_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(~0u, value, mask);
}
CROSSRET_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(~0u, vote); }
CROSSRET_DEVICE bool all(bool vote) { return __all_sync(~0u, vote) != 0; }

template <class T>
CROSSRET_DEVICE T load(const T* from, int64_t at) {
  return from[at];
}
template <class T>
CROSSRET_DEVICE void store(T* to, int64_t at, T value) {
  to[at] = value;
}

CROSSRET_DEVICE int bits_of(float x) { return __float_as_int(x); }
CROSSRET_DEVICE float float_of(int bits) { return __int_as_float(bits); }

// The greater; NaN, always the same one and without a sign, where either is.
CROSSRET_DEVICE float max_or_nan(float a, float b) {
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}

CROSSRET_DEVICE float float_of_half(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
CROSSRET_DEVICE uint16_t half_of(float x) { return __half_as_ushort(__float2half_rn(x)); }
CROSSRET_DEVICE uint16_t bfloat16_of(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

}  // namespace gpu
}  // namespace crossret

#else

#include "simt.h"

#endif

namespace crossret {
namespace gpu {

constexpr int kWarp = 32;

// Elements of 16 bits, which are computed with as floats.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

CROSSRET_DEVICE float widened(float x) { return x; }
CROSSRET_DEVICE float widened(BFloat16 x) { return float_of(static_cast<int>(uint32_t{x.bits} << 16)); }
CROSSRET_DEVICE float widened(Float16 x) { return float_of_half(x.bits); }

CROSSRET_DEVICE void narrow(float x, float& to) { to = x; }
CROSSRET_DEVICE void narrow(float x, BFloat16& to) { to.bits = bfloat16_of(x); }
CROSSRET_DEVICE void narrow(float x, Float16& to) { to.bits = half_of(x); }

// Four elements in one access, which must lie at a multiple of its bytes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

}  // namespace gpu
}  // namespace crossret
