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
[[gnu::always_inline]] inline void load_rows(uint32_t (&to)[count], simt::Shared<const Chunk> row, int line) {
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
[[gnu::always_inline]] inline void load_matrices(uint32_t (&to)[4], simt::Shared<const Chunk> row,
                                                 int line = __builtin_LINE()) {
  load_rows(to, row, line);
}
[[gnu::always_inline]] inline void load_matrices(uint32_t (&to)[2], simt::Shared<const Chunk> row,
                                                 int line = __builtin_LINE()) {
  load_rows(to, row, line);
}

// The elements that a word of an operand holds.
template <class T>
constexpr int kElements = std::is_same_v<T, TFloat32> ? 1 : 2;

template <class T>
void unpack(uint32_t word, float* to, int step) {
  if constexpr (std::is_same_v<T, TFloat32>) {
    to[0] = float_of(static_cast<int>(word & ~0x1FFFu));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    to[0] = float_of(static_cast<int>(word << 16));
    to[step] = float_of(static_cast<int>(word & ~0xFFFFu));
  } else {
    to[0] = float_of_half(static_cast<uint16_t>(word));
    to[step] = float_of_half(static_cast<uint16_t>(word >> 16));
  }
}

// Products are exact, sums in float32.
template <class T>
void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
  struct Lane {
    float* sums;
    const uint32_t *a, *b;
  } me{sums, a, b};
  simt::machine.collective("multiply", line, &me, [](simt::Fiber* lanes) {
    using Four = float __attribute__((vector_size(16)));
    constexpr int n = kElements<T>, k = 8 * n;
    float left[16][k], right[k][8], out[16][8];
    for (int i = 0; i < simt::kWarp; ++i) {
      const auto& lane = *static_cast<Lane*>(lanes[i].argument);
      const int row = i / 4, column = i % 4;
      unpack<T>(lane.a[0], &left[row][n * column], 1);
      unpack<T>(lane.a[1], &left[row + 8][n * column], 1);
      unpack<T>(lane.a[2], &left[row][n * (column + 4)], 1);
      unpack<T>(lane.a[3], &left[row + 8][n * (column + 4)], 1);
      unpack<T>(lane.b[0], &right[n * column][row], 8);
      unpack<T>(lane.b[1], &right[n * (column + 4)][row], 8);
      std::memcpy(&out[row][2 * column], lane.sums, 8);
      std::memcpy(&out[row + 8][2 * column], lane.sums + 2, 8);
    }
    for (int row = 0; row < 16; ++row) {
      Four low, high;
      std::memcpy(&low, out[row], sizeof low);
      std::memcpy(&high, out[row] + 4, sizeof high);
      for (int i = 0; i < k; ++i) {
        Four factors[2];
        std::memcpy(factors, right[i], sizeof factors);
        low += left[row][i] * factors[0];
        high += left[row][i] * factors[1];
      }
      std::memcpy(out[row], &low, sizeof low);
      std::memcpy(out[row] + 4, &high, sizeof high);
    }
    for (int i = 0; i < simt::kWarp; ++i) {
      const auto& lane = *static_cast<Lane*>(lanes[i].argument);
      std::memcpy(lane.sums, &out[i / 4][i % 4 * 2], 8);
      std::memcpy(lane.sums + 2, &out[i / 4 + 8][i % 4 * 2], 8);
    }
  });
}

}  // namespace gpu
}  // namespace crossret
