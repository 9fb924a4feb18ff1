// The tiles of AMX (see csrc/simd/amx.h) in plain C++, with the rounding that is documented of the instructions: what
// runs on them can be tested on any processor.
#pragma once
#include <cstdint>
#include <cstring>

#include "simd/bf16_steps.h"

namespace crossret {
namespace CROSSRET_ISA {

struct Tiles {
  static constexpr bool present = true;
  static constexpr int rows = 16, columns = 16;
  static constexpr int depth = 16;  // 32-bit pairs of bfloat16

  Tiles() {
    state() = Registers{};
    state().configured = true;
  }
  ~Tiles() { state().configured = false; }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int T>
  static void zero() {
    std::memset(tile<T>(), 0, sizeof(Tile));
  }
  template <int T>
  static void load(const void* p, int64_t stride_bytes) {
    for (int i = 0; i < rows; ++i) {
      std::memcpy(tile<T>()[i], static_cast<const char*>(p) + i * stride_bytes, sizeof(Tile) / rows);
    }
  }
  template <int T>
  static void store(float* p, int64_t stride_bytes) {
    for (int i = 0; i < rows; ++i) {
      std::memcpy(reinterpret_cast<char*>(p) + i * stride_bytes, tile<T>()[i], sizeof(Tile) / rows);
    }
  }

  // C[m][n] += Σ_k A[m][k] · B[k][n], elements of A and B being pairs of bfloat16. The first products of all pairs are
  // summed, the second ones beside them, then both sums are added up.
  template <int C, int A, int B>
  static void multiply() {
    static_assert(C != A && C != B && A != B, "the instruction takes three different tiles");
    multiply(tile<C>(), tile<A>(), tile<B>());
  }

 private:
  typedef uint32_t Tile[rows][columns];
  struct Registers {
    alignas(64) Tile tiles[8];
    bool configured;
  };

  static Registers& state() {
    static thread_local Registers registers{};
    return registers;
  }
  // Like the instructions, which fault where tiles have no shape yet.
  template <int T>
  static uint32_t (*tile()) [columns] {
    static_assert(T >= 0 && T < 8, "there are eight tiles");
    if (!state().configured) __builtin_trap();
    return state().tiles[T];
  } static float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  static __attribute__((noinline)) void multiply(uint32_t (*c)[columns], const uint32_t (*a)[columns],
                                                 const uint32_t (*b)[columns]) {
    for (int m = 0; m < rows; ++m) {
      float first[columns] = {}, second[columns] = {};
      for (int k = 0; k < depth; ++k) {
        const float a_first = from_bits(a[m][k] << 16), a_second = from_bits(a[m][k] & 0xFFFF0000u);
        for (int n = 0; n < columns; ++n) {
          first[n] = bf16_step(a_first, from_bits(b[k][n] << 16), first[n]);
          second[n] = bf16_step(a_second, from_bits(b[k][n] & 0xFFFF0000u), second[n]);
        }
      }
      for (int n = 0; n < columns; ++n) {
        const float sum = bf16_sum(from_bits(c[m][n]), bf16_sum(first[n], second[n]));
        std::memcpy(&c[m][n], &sum, sizeof sum);
      }
    }
  }
};

}  // namespace CROSSRET_ISA
}  // namespace crossret
