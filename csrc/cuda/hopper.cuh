// The vocabulary of kernels for compute capability 9.0 alone: barriers that count bytes, boxes of a matrix copied by
// one thread, products of a warpgroup out of shared memory, clusters of blocks. nvcc compiles it as CUDA for sm_90a; as
// host code, tests/simt/hopper_simt.h supplies the same names.
#pragma once
#include "cuda/device.cuh"
#include "cuda/stream.h"

namespace crossret {
namespace gpu {

constexpr int kWarpgroup = 4 * kWarp;  // threads; its first warp is a multiple of four
// Bytes of a row in a box, and alignment of boxes in shared memory. Chunk c of row r lies at 8 r + (c ^ r % 8), so that
// a chunk of eight rows lies in different banks.
constexpr int kBoxBytes = 128, kBoxAlignment = 1024;
constexpr int kBoxColumns = 64;  // of two bytes, whatever the features' dtype

// True where the library has kernels of these words.
#if defined(CROSSRET_SM90A) || !defined(__CUDACC__)
constexpr bool kWarpgroupsBuilt = true;
#else
constexpr bool kWarpgroupsBuilt = false;
#endif

}  // namespace gpu
}  // namespace crossret

#ifdef __CUDACC__

#include <cuda.h>

#include <type_traits>

// Kernels made of these words have a body for sm_90a alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CROSSRET_HOPPER 1
#endif

namespace crossret {
namespace gpu {

// A barrier in shared memory: a phase is complete when so many have arrived and so many bytes have come.
using Arrivals = uint64_t;

// Rows in the device's memory, of which boxes are copied.
struct TensorMap {
  CUtensorMap map;
};

// A tensor map of rows of `row_bytes` bytes, a multiple of 16, in boxes of `box_rows` rows. Zeros lie beyond them.
TensorMap tensor_map(const Stream& stream, const char* name, const void* rows, int64_t n_rows, int64_t row_bytes,
                     int box_rows);

// Initialises a barrier, by one thread: `count` arrivals complete a phase.
CROSSRET_DEVICE void init_arrivals(Shared<Arrivals> at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(count) : "memory");
}
// Shows initialised barriers to copies and to other blocks, by the same thread and ahead of a barrier of threads.
CROSSRET_DEVICE void fence_arrivals() {
  asm volatile("fence.proxy.async.shared::cta;\nfence.mbarrier_init.release.cluster;" ::: "memory");
}
// Products and copies see what this thread has written to shared memory, behind a barrier.
CROSSRET_DEVICE void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

CROSSRET_DEVICE void arrive(Shared<Arrivals> at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}
// At the barrier in the same place of a block of the cluster.
CROSSRET_DEVICE void arrive_at(Shared<Arrivals> at, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(at)),
      "r"(rank)
      : "memory");
}
// Arrives, and so many bytes are to come besides.
CROSSRET_DEVICE void expect_bytes(Shared<Arrivals> at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity is complete, which the one before the current is.
CROSSRET_DEVICE void wait_phase(Shared<Arrivals> at, int parity) {
  asm volatile(
      "{\n.reg .pred complete;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n@!complete bra again;\n}" ::"r"(
          shared_address(at)),
      "r"(parity)
      : "memory");
}

// Copies a box from row `row` and byte kBoxBytes · `column` on; its bytes are counted at the barrier. By one thread.
CROSSRET_DEVICE void copy_box(Shared<Chunk> to, const TensorMap& from, int column, int row, Shared<Arrivals> at) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(to)),
      "l"(&from.map), "r"(column * kBoxColumns), "r"(row), "r"(shared_address(at))
      : "memory");
}
// To the same place of both blocks of the cluster, each of which counts the bytes at its own barrier.
CROSSRET_DEVICE void copy_box_to_all(Shared<Chunk> to, const TensorMap& from, int column, int row,
                                     Shared<Arrivals> at) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&from.map), "r"(column * kBoxColumns), "r"(row), "r"(shared_address(at)), "h"(uint16_t{3})
      : "memory");
}

// Ahead of products into sums that this warpgroup has written or read.
CROSSRET_DEVICE void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
CROSSRET_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for this warpgroup's groups but the latest n. The compiler does not know that the sums come then: what reads
// them stands behind a barrier or a load of memory.
template <int n>
CROSSRET_DEVICE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

// Descriptor of rows as copies leave them, from a step of 32 bytes on: address, stride of eight rows, 128-byte swizzle.
CROSSRET_DEVICE uint64_t matrix_descriptor(Shared<const Chunk> rows, int step) {
  const uint32_t address = shared_address(rows) + step * 32;
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{1} << 16 | uint64_t{8 * kBoxBytes >> 4} << 32 |
         uint64_t{1} << 62;
}

// sums (64, 144) += 32 bytes of the rows `a` times those of the rows `b`, from step `step` on; `add` false: the sums
// are the product. Lane l of warp w of the warpgroup has of row 16 w + l / 4 + 8 (e / 2), column 8 j + 2 (l % 4) + e %
// 2, in sums[4 j + e].
#define CROSSRET_SUMS4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define CROSSRET_SUMS24(i)                                                                                         \
  CROSSRET_SUMS4(i), CROSSRET_SUMS4(i + 4), CROSSRET_SUMS4(i + 8), CROSSRET_SUMS4(i + 12), CROSSRET_SUMS4(i + 16), \
      CROSSRET_SUMS4(i + 20)
#define CROSSRET_MULTIPLY(kind, transposed)                                                                     \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %74, 0;\nwgmma.mma_async.sync.aligned." kind \
               " "                                                                                              \
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "    \
               "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "     \
               "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "     \
               "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71},"               \
               "%72, %73, accumulate, 1, 1" transposed ";\n}"                                                   \
               : CROSSRET_SUMS24(0), CROSSRET_SUMS24(24), CROSSRET_SUMS24(48)                                   \
               : "l"(matrix_descriptor(a, step)), "l"(matrix_descriptor(b, step)), "r"(add ? 1 : 0))
template <class T>
CROSSRET_DEVICE void multiply_rows(float (&sums)[72], Shared<const Chunk> a, Shared<const Chunk> b, int step,
                                   bool add) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    CROSSRET_MULTIPLY("m64n144k16.f32.bf16.bf16", ", 0, 0");
  } else if constexpr (std::is_same_v<T, Float16>) {
    CROSSRET_MULTIPLY("m64n144k16.f32.f16.f16", ", 0, 0");
  } else {
    static_assert(std::is_same_v<T, TFloat32>, "products of warpgroups");
    CROSSRET_MULTIPLY("m64n144k8.f32.tf32.tf32", "");
  }
}
#undef CROSSRET_MULTIPLY
#undef CROSSRET_SUMS24
#undef CROSSRET_SUMS4

CROSSRET_DEVICE int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// A barrier of all threads of the cluster.
CROSSRET_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Registers of every thread of this warpgroup from here on.
template <int registers>
CROSSRET_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
CROSSRET_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace gpu
}  // namespace crossret

#else

#define CROSSRET_HOPPER 1

#include "hopper_simt.h"

#endif
