// The vocabulary of kernels: threads, barriers, warps and memory. nvcc compiles it as CUDA; as host code,
// tests/simt/simt.h supplies the same names, runs threads on the CPU and checks every access.
#pragma once
#include <cstdint>

namespace crossret {
namespace gpu {

constexpr int kWarp = 32;

// Elements of 16 bits, widened to float for arithmetic.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
// The arithmetic of TF32: products take the upper 19 bits of float32.
struct TFloat32 {};

// 16 bytes, the unit of copies and of matrix loads.
struct alignas(16) Chunk {
  uint32_t words[4];
};

}  // namespace gpu
}  // namespace crossret

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define CROSSRET_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define CROSSRET_DEVICE __device__ __forceinline__
#define CROSSRET_SHARED(T, name, count) __shared__ T name[count]
#define CROSSRET_PARAMETER const __grid_constant__

namespace crossret {
namespace gpu {

// Memory of the device; a checked pointer in host code.
template <class T>
using Global = T*;
// Memory of the block.
template <class T>
using Shared = T*;

// The array at byte `byte` of the dynamic shared memory.
template <class T>
CROSSRET_DEVICE Shared<T> shared_at(int byte) {
  extern __shared__ __align__(1024) unsigned char dynamic_memory[];
  return reinterpret_cast<T*>(dynamic_memory + byte);
}

CROSSRET_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
// The number, of which the compiler knows nothing: what is computed from it stays where it is written, and takes no
// register elsewhere.
CROSSRET_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
CROSSRET_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
CROSSRET_DEVICE int blocks() { return static_cast<int>(gridDim.x); }
CROSSRET_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
CROSSRET_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }

CROSSRET_DEVICE void sync_block() { __syncthreads(); }
// Barrier `number`, 1 to 15, of `threads` threads of the block, whole warps.
CROSSRET_DEVICE void sync_named(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Whether any thread of the block votes true; a barrier.
CROSSRET_DEVICE bool any_in_block(bool vote) { return __syncthreads_or(vote ? 1 : 0) != 0; }
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

CROSSRET_DEVICE uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// Asynchronous copy of 16 bytes. Other threads see them after this thread's wait and a barrier.
CROSSRET_DEVICE void copy_async(Shared<Chunk> to, Global<const Chunk> from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Ends a group of copies of this thread.
CROSSRET_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's groups but the latest n.
template <int n>
CROSSRET_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// Loads four matrices of 8 rows of 16 bytes: lane i passes the address of row i % 8 of matrix i / 8 and receives word
// i % 4 of row i / 4 of each.
CROSSRET_DEVICE void load_matrices(uint32_t (&to)[4], Shared<const Chunk> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
// Loads two matrices, whose addresses the first sixteen lanes pass.
CROSSRET_DEVICE void load_matrices(uint32_t (&to)[2], Shared<const Chunk> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}

// sums (16, 8) += a (16, k) times b (k, 8), in fragments as the PTX manual lays them out: k is 16 for BFloat16 and
// Float16, 8 for TFloat32.
#define CROSSRET_MULTIPLY(kind)                                                                            \
  asm volatile("mma.sync.aligned." kind " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <class T>
CROSSRET_DEVICE void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <>
CROSSRET_DEVICE void multiply<BFloat16>(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  CROSSRET_MULTIPLY("m16n8k16.row.col.f32.bf16.bf16.f32");
}
template <>
CROSSRET_DEVICE void multiply<Float16>(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  CROSSRET_MULTIPLY("m16n8k16.row.col.f32.f16.f16.f32");
}
template <>
CROSSRET_DEVICE void multiply<TFloat32>(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  CROSSRET_MULTIPLY("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef CROSSRET_MULTIPLY

CROSSRET_DEVICE int bits_of(float x) { return __float_as_int(x); }
CROSSRET_DEVICE float float_of(int bits) { return __int_as_float(bits); }

// The greater; the canonical NaN where either is NaN.
CROSSRET_DEVICE float max_or_nan(float a, float b) {
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}

CROSSRET_DEVICE float float_of_half(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
CROSSRET_DEVICE uint16_t half_of(float x) { return __half_as_ushort(__float2half_rn(x)); }
CROSSRET_DEVICE uint16_t bfloat16_of(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// Rounds to nearest, ties away from zero.
CROSSRET_DEVICE uint32_t tfloat32_of(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
// Two elements in a word, `low` in its lower half.
CROSSRET_DEVICE uint32_t pack_bfloat16(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// One instruction each; subnormal operands and results are zero.
#define CROSSRET_APPROX(name, instruction)                  \
  CROSSRET_DEVICE float name(float x) {                     \
    float y;                                                \
    asm(instruction ".ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); \
    return y;                                               \
  }
CROSSRET_APPROX(approx_exp2, "ex2.approx")
CROSSRET_APPROX(approx_log2, "lg2.approx")
CROSSRET_APPROX(approx_sqrt, "sqrt.approx")
CROSSRET_APPROX(approx_reciprocal, "rcp.approx")
#undef CROSSRET_APPROX

// Index of the lowest set bit; -1 where there is none.
CROSSRET_DEVICE int first_one(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }

}  // namespace gpu
}  // namespace crossret

#else

#include "simt.h"

#endif

namespace crossret {
namespace gpu {

CROSSRET_DEVICE float widened(float x) { return x; }
CROSSRET_DEVICE float widened(BFloat16 x) { return float_of(static_cast<int>(uint32_t{x.bits} << 16)); }
CROSSRET_DEVICE float widened(Float16 x) { return float_of_half(x.bits); }

CROSSRET_DEVICE void narrow(float x, float& to) { to = x; }
CROSSRET_DEVICE void narrow(float x, BFloat16& to) { to.bits = bfloat16_of(x); }
CROSSRET_DEVICE void narrow(float x, Float16& to) { to.bits = half_of(x); }

// Elements of one aligned access.
template <class T>
struct alignas(2 * sizeof(T)) Two {
  T at[2];
};
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

}  // namespace gpu
}  // namespace crossret
