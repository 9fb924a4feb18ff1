// What the checks of a vector type stand on: what they say, numbers to try, lanes to look at.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cfloat>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include VECTOR

#include "simd/math.inl"

using namespace crossret::CROSSRET_ISA;

namespace {

constexpr int W = V::width;
const float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

int failures = 0;

__attribute__((format(printf, 2, 3))) void expect(bool right, const char* format, ...) {
  if (right || ++failures > 20) return;
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
}

template <class To, class From>
To cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// The same bits, or both NaN.
bool same(float a, float b) { return cast<uint32_t>(a) == cast<uint32_t>(b) || (a != a && b != b); }
bool same(double a, double b) { return cast<uint64_t>(a) == cast<uint64_t>(b) || (a != a && b != b); }

uint32_t bits() {
  static std::mt19937 generator(0);
  return static_cast<uint32_t>(generator());
}

// Any bit pattern one time in two, else a number of middling size; every so often a special one.
float any_float() {
  static const float special[] = {0.0f,    -0.0f,    1.0f,      -1.0f,      kInfinity, -kInfinity, kNaN,
                                  FLT_MIN, -FLT_MIN, 0x1p-149f, -0x1p-149f, FLT_MAX,   -FLT_MAX,   0x1.fffffep-127f};
  const uint32_t kind = bits();
  if (kind % 8 == 0) return special[kind / 8 % (sizeof special / sizeof *special)];
  if (kind % 2 == 0) return cast<float>(bits());
  return std::ldexp(static_cast<float>(static_cast<int32_t>(bits())), -31);
}

float moderate() { return std::ldexp(static_cast<float>(static_cast<int32_t>(bits())), -29); }

struct Lanes {
  float x[W];
  Lanes() = default;
  explicit Lanes(F v) { V::store(x, v); }
  F vector() const { return V::load(x); }
};

bool at(V::Mask mask, int lane) { return Lanes(V::select(mask, V::set(1.0f), V::zero())).x[lane] != 0; }

template <class Make>
Lanes lanes_of(const Make& make) {
  Lanes lanes;
  for (float& x : lanes.x) x = make();
  return lanes;
}

// The last bytes before memory that may not be touched.
char* end_of_memory() {
  static char* const end = [] {
    const size_t page = sysconf(_SC_PAGESIZE);
    void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(static_cast<char*>(pages) + page, page, PROT_NONE) != 0) std::abort();
    return static_cast<char*>(pages) + page;
  }();
  return end;
}

}  // namespace
