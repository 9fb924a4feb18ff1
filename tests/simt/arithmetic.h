// A GPU's arithmetic on floats and on bits of them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace crossret {
namespace gpu {

inline int bits_of(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float max_or_nan(float a, float b) { return a != a || b != b ? float_of(0x7FFFFFFF) : a < b ? b : a; }

inline float float_of_half(uint16_t bits) {
  const int sign = (bits & 0x8000) << 16, digits = (bits & 0x7FFF) << 13;  // where a float has them
  if ((bits & 0x7C00) == 0x7C00) return float_of(sign | 0x7F800000 | digits);
  return float_of(sign | digits) * 0x1p112f;  // which has exponents of 112 more
}
inline uint16_t half_of(float x) {
  if (x != x) return 0x7FFF;
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);
  // In units of the last place, of which subnormal numbers have the smallest normal ones'.
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  const int digits = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + digits));
}
inline uint16_t bfloat16_of(float x) {
  if (x != x) return 0x7FFF;
  const auto bits = static_cast<uint32_t>(bits_of(x));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// To nearest, of two as near the one further from zero: 10 digits behind the point.
inline uint32_t tfloat32_of(float x) {
  if (x != x) return 0x7FFFFFFF;
  const auto bits = static_cast<uint32_t>(bits_of(x));
  return std::isinf(x) ? bits : (bits + 0x1000) & ~0x1FFFu;
}
inline uint32_t pack_bfloat16(float low, float high) { return bfloat16_of(low) | uint32_t{bfloat16_of(high)} << 16; }

// Zero, with its sign, for subnormal numbers.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float approx_exp2(float x) { return flushed(std::exp2(flushed(x))); }
inline float approx_log2(float x) { return flushed(std::log2(flushed(x))); }
// Off by a unit in the last place, as a GPU's may be.
inline float nearly(float x) { return std::fabs(x) < INFINITY && x != 0.0f ? flushed(float_of(bits_of(x) ^ 1)) : x; }
inline float approx_sqrt(float x) { return nearly(std::sqrt(flushed(x))); }
inline float approx_reciprocal(float x) { return nearly(flushed(1.0f / flushed(x))); }

inline int first_one(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)) - 1; }

}  // namespace gpu
}  // namespace crossret
