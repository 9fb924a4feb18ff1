// The arithmetic of x86's dot products of bfloat16 in plain C++, for processors without them.
#pragma once
#include <cstdint>
#include <cstring>

namespace crossret {
namespace CROSSRET_ISA {

// What these instructions make of a number below the normal range before they compute with it: a zero of its sign.
static inline float flush_operand(float x) {
  return __builtin_fabsf(x) < __FLT_MIN__ ? __builtin_copysignf(0.0f, x) : x;
}

// x rounded to float, to nearest with ties to even, and zero where x is below the normal range even when it is rounded
// with an exponent that has no end.
static inline float flush_result(double x) {
  constexpr double least = 0x1p-126 - 0x1p-151;  // the least that rounds to 2⁻¹²⁶
  return __builtin_fabs(x) < least ? __builtin_copysignf(0.0f, static_cast<float>(x)) : static_cast<float>(x);
}

// One step: sum + a · b rounded once. Rounding it to double before rounding it to float changes nothing: the product
// has 16 digits and the sum 24, too few for any exact result to lie so near the middle between two floats, or the end
// of the normal range, that a double would take it there.
static inline float bf16_step(float a, float b, float sum) {
  const double product = static_cast<double>(flush_operand(a)) * static_cast<double>(flush_operand(b));
  return flush_result(product + static_cast<double>(flush_operand(sum)));
}

// The sum of two results, as the same instructions form it.
static inline float bf16_sum(float a, float b) {
  return flush_result(static_cast<double>(flush_operand(a)) + static_cast<double>(flush_operand(b)));
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
