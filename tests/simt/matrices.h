// Operations of a warp on matrices that its lanes hold in parts, as the PTX manual lays them out.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "arithmetic.h"
#include "machine.h"
#include "shared.h"

namespace crossret {
namespace gpu {

// Lane i gives row i % 8 of matrix i / 8, and takes of each matrix words i % 4 of row i / 4.
template <int count>
void load_rows(uint32_t (&to)[count], simt::Shared<const Chunk> row, int line) {
  struct Lane {
    Chunk given;
    uint32_t* taken;
  } me{{}, to};
  if (simt::machine.thread() % simt::kWarp < 8 * count) me.given = row[0];
  simt::machine.collective(count == 4 ? "load_matrices of 4" : "load_matrices of 2", line, &me, [](simt::Fiber* lanes) {
    for (int i = 0; i < simt::kWarp; ++i) {
      for (int matrix = 0; matrix < count; ++matrix) {
        const auto& from = *static_cast<Lane*>(lanes[8 * matrix + i / 4].argument);
        static_cast<Lane*>(lanes[i].argument)->taken[matrix] = from.given.words[i % 4];
      }
    }
  });
}
inline void load_matrices(uint32_t (&to)[4], simt::Shared<const Chunk> row, int line = __builtin_LINE()) {
  load_rows(to, row, line);
}
inline void load_matrices(uint32_t (&to)[2], simt::Shared<const Chunk> row, int line = __builtin_LINE()) {
  load_rows(to, row, line);
}

// Elements that a word of an operand holds, and what they are.
template <class T>
struct Operand {
  static constexpr int kElements = 2;
  static float at(uint32_t word, int i) {
    const auto bits = static_cast<uint16_t>(word >> (16 * i));
    if constexpr (std::is_same_v<T, Float16>) return float_of_half(bits);
    return float_of(static_cast<int>(uint32_t{bits} << 16));
  }
};
template <>
struct Operand<TFloat32> {
  static constexpr int kElements = 1;
  static float at(uint32_t word, int) { return float_of(static_cast<int>(word & ~0x1FFFu)); }
};

// sums (16, 8) += a (16, k) times b (k, 8), k of 16 elements of 16 bits or of 8 of 32.
template <class T>
void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
  struct Lane {
    float* sums;
    const uint32_t *a, *b;
  } me{sums, a, b};
  simt::machine.collective("multiply", line, &me, [](simt::Fiber* lanes) {
    using Four = float __attribute__((vector_size(16)));
    constexpr int n = Operand<T>::kElements, k = 8 * n;
    float left[16][k];
    alignas(16) float right[k][8], out[16][8];
    for (int i = 0; i < simt::kWarp; ++i) {
      const auto& lane = *static_cast<Lane*>(lanes[i].argument);
      const int row = i / 4, column = i % 4;
      for (int j = 0; j < n; ++j) {
        for (int word = 0; word < 4; ++word) {
          left[row + word % 2 * 8][n * column + word / 2 * 4 * n + j] = Operand<T>::at(lane.a[word], j);
        }
        for (int word = 0; word < 2; ++word) {
          right[n * column + word * 4 * n + j][row] = Operand<T>::at(lane.b[word], j);
        }
      }
      for (int j = 0; j < 4; ++j) out[row + j / 2 * 8][2 * column + j % 2] = lane.sums[j];
    }
    for (int row = 0; row < 16; ++row) {
      Four sum[2];
      std::memcpy(sum, out[row], sizeof sum);
      for (int i = 0; i < k; ++i) {
        for (int half = 0; half < 2; ++half) {
          Four factors;
          std::memcpy(&factors, right[i] + 4 * half, sizeof factors);
          sum[half] += left[row][i] * factors;
        }
      }
      std::memcpy(out[row], sum, sizeof sum);
    }
    for (int i = 0; i < simt::kWarp; ++i) {
      const auto& lane = *static_cast<Lane*>(lanes[i].argument);
      for (int j = 0; j < 4; ++j) lane.sums[j] = out[i / 4 + j / 2 * 8][2 * (i % 4) + j % 2];
    }
  });
}

}  // namespace gpu
}  // namespace crossret
