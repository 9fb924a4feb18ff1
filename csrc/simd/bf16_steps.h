// The arithmetic of x86's dot products of bfloat16 in plain C++.
#pragma once
#include <cstdint>
#include <cstring>

namespace crossret {
namespace CROSSRET_ISA {

// Subnormal operands count as zeros of their sign.
static inline float flush_operand(float x) {
  return __builtin_fabsf(x) < __FLT_MIN__ ? __builtin_copysignf(0.0f, x) : x;
}

// x rounded to float, to nearest with ties to even; zero where x rounded with an unbounded exponent is subnormal.
static inline float flush_result(double x) {
  constexpr double least = 0x1p-126 - 0x1p-151;  // the least that rounds to 2⁻¹²⁶
  return __builtin_fabs(x) < least ? __builtin_copysignf(0.0f, static_cast<float>(x)) : static_cast<float>(x);
}

// sum + a · b rounded once. Rounding to double first changes nothing: the product has 16 bits and the sum 24, too few
// for an exact result so near the middle of two floats, or the least normal number, that a double would round to it.
static inline float bf16_step(float a, float b, float sum) {
  const double product = static_cast<double>(flush_operand(a)) * static_cast<double>(flush_operand(b));
  return flush_result(product + static_cast<double>(flush_operand(sum)));
}

// The sum of two results, rounded as the instructions do.
static inline float bf16_sum(float a, float b) {
  return flush_result(static_cast<double>(flush_operand(a)) + static_cast<double>(flush_operand(b)));
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
