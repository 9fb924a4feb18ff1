// The tiles of AMX: eight registers of 16 rows × 64 bytes, and products of them. Instructions are inline assembly:
// GCC's intrinsics paste the register's number into their text and take no template parameter.
#pragma once
#include <cstdint>

namespace crossret {
namespace CROSSRET_ISA {

struct Tiles {
  static constexpr bool present = true;
  static constexpr int rows = 16, columns = 16;
  static constexpr int depth = 16;  // 32-bit pairs of bfloat16

  // Configures the tiles of the calling thread and clears them. It costs as much as a small product: one serves all
  // products of a task.
  Tiles() {
    struct alignas(64) Configuration {
      uint8_t palette = 1, first_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Configuration) == 64);
    static constexpr Configuration whole_tiles{};
    __asm__ volatile("ldtilecfg %0" ::"m"(whole_tiles));
  }
  // Releases the tiles, which every context switch would save.
  ~Tiles() { __asm__ volatile("tilerelease" ::); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int T>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  static void load(const void* p, int64_t stride_bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride_bytes), "i"(T) : "memory");
  }
  template <int T>
  static void store(float* p, int64_t stride_bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride_bytes), "i"(T) : "memory");
  }

  // C[m][n] += Σ_k A[m][k] · B[k][n], elements of A and B being pairs of bfloat16 whose two products are added.
  template <int C, int A, int B>
  static void multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace CROSSRET_ISA
}  // namespace crossret
