// Tiles of bfloat16 and their products.
#pragma once
#include TILES

#include <utility>

#include "amx_permission.h"
#include "vector_halves.h"

namespace {

static_assert(Tiles::rows == 16 && Tiles::columns == 16 && Tiles::depth == 16, "whole tiles");

template <int T>
void check_one_tile() {
  float in[16][20], out[16][20];
  for (auto& row : in) {
    for (float& x : row) x = any_pair();
  }
  std::memset(out, 0xAB, sizeof out);
  Tiles::load<T>(in, sizeof in[0]);
  Tiles::store<T>(out[0], sizeof out[0]);
  for (int m = 0; m < 16; ++m) {
    expect(std::memcmp(in[m], out[m], 64) == 0, "tile %d: row %d", T, m);
    for (int n = 16; n < 20; ++n)
      expect(cast<uint32_t>(out[m][n]) == 0xABABABABu, "tile %d stores beyond its row %d", T, m);
  }
  Tiles::zero<T>();
  Tiles::store<T>(out[0], sizeof out[0]);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) expect(same(out[m][n], 0.0f), "tile %d zeroed: %d, %d", T, m, n);
  }
}

template <int... T>
void check_each_tile(std::integer_sequence<int, T...>) {
  (check_one_tile<T>(), ...);
}

template <int C, int A, int B>
void check_product(bool ordinary) {
  float a[16][16], b[16][16], c[16][16], out[16][16];
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      // NaNs would soon be everywhere: few of anything that is not a small number.
      a[i][j] = ordinary || bits() % 64 != 0 ? close_pair(0x01FF, 0x3E80) : any_pair();
      b[i][j] = ordinary || bits() % 64 != 0 ? close_pair(0x01FF, 0x3E80) : any_pair();
      c[i][j] = ordinary ? moderate() : any_float();
    }
  }
  Tiles::load<A>(a, 64);
  Tiles::load<B>(b, 64);
  Tiles::load<C>(c, 64);
  Tiles::multiply<C, A, B>();
  Tiles::store<C>(out[0], 64);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float first = 0, second = 0;
      for (int k = 0; k < 16; ++k) {
        first = step_of_x86(first_of(a[m][k]), first_of(b[k][n]), first);
        second = step_of_x86(second_of(a[m][k]), second_of(b[k][n]), second);
      }
      const float right = flushed(flushed(c[m][n]) + flushed(first + second));
      expect(same(out[m][n], right), "tiles %d += %d * %d: %d, %d is %a, not %a", C, A, B, m, n, out[m][n], right);
    }
  }
}

void check_tiles() {
  const Tiles configured;
  float out[16][16];
  Tiles::store<3>(out[0], 64);
  for (const auto& row : out) {
    for (const float x : row) expect(same(x, 0.0f), "configured tiles hold %a", x);
  }
  check_each_tile(std::make_integer_sequence<int, 8>());
  for (int round = 0; round < 20; ++round) {
    check_product<0, 4, 6>(round % 2 == 0);
    check_product<1, 4, 7>(round % 2 == 0);
    check_product<2, 5, 6>(round % 2 == 0);
    check_product<3, 5, 7>(round % 2 == 0);
    check_product<7, 0, 1>(round % 2 == 0);
  }
}

}  // namespace
