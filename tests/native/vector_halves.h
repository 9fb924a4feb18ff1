// Half precisions of a vector type, and dot products of pairs of bfloat16.
#pragma once
#include "vector_lanes.h"

namespace {

// The value of a float16, by its definition.
double value_of_f16(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double sign = half & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

// x rounded to `digits` binary digits, to nearest with ties to even, down to the last place 2^least and up to below
// 2^top.
double rounded(float x, int digits, int least, int top) {
  if (x != x || x == 0 || std::isinf(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const int place = exponent - digits > least ? exponent - digits : least;
  const double near = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -place)), place);
  return std::fabs(near) >= std::ldexp(1.0, top) ? std::copysign(std::numeric_limits<double>::infinity(), near) : near;
}

void check_half_precision() {
  for (uint32_t first = 0; first < 65536; first += W) {
    uint16_t halves[W], stored[W];
    for (int i = 0; i < W; ++i) halves[i] = static_cast<uint16_t>(first + i);
    const Lanes from_bf16(V::load_bf16(halves, W)), from_f16(V::load_f16(halves, W));
    for (int i = 0; i < W; ++i) {
      expect(same(from_bf16.x[i], cast<float>(static_cast<uint32_t>(halves[i]) << 16)), "load_bf16(%#x)", halves[i]);
      expect(same(from_f16.x[i], static_cast<float>(value_of_f16(halves[i]))), "load_f16(%#x) = %a", halves[i],
             from_f16.x[i]);
    }
    for (const uint32_t low :
         {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x2FFFu, 0x3000u, 0x3001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      Lanes x;
      for (int i = 0; i < W; ++i) x.x[i] = cast<float>((first + i) << 16 | low);
      V::store_bf16(stored, x.vector(), W);
      for (int i = 0; i < W; ++i) {
        const double right = rounded(x.x[i], 8, -133, 128);
        expect(same(static_cast<double>(cast<float>(static_cast<uint32_t>(stored[i]) << 16)), right),
               "store_bf16(%a) = %#x", x.x[i], stored[i]);
      }
      V::store_f16(stored, x.vector(), W);
      for (int i = 0; i < W; ++i) {
        expect(same(value_of_f16(stored[i]), rounded(x.x[i], 11, -24, 16)), "store_f16(%a) = %#x", x.x[i], stored[i]);
      }
    }
  }
}

#if defined(CROSSRET_BF16_DOTS)
// Two bfloat16, anything in them.
float any_pair() {
  const auto half = [] { return cast<uint32_t>(any_float()) >> 16; };
  return cast<float>(half() << 16 | half());
}

// Two bfloat16 of either sign, whose other bits are up to these more than the least.
float close_pair(uint32_t varied, uint32_t least) {
  const auto half = [=] { return (bits() & (0x8000u | varied)) + least; };
  return cast<float>(half() << 16 | half());
}

float first_of(float pair) { return cast<float>(cast<uint32_t>(pair) << 16); }
float second_of(float pair) { return cast<float>(cast<uint32_t>(pair) & 0xFFFF0000u); }

// Below the normal range: zero, its sign kept.
float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

#if defined(ROUNDS_TO_ODD)
// a + b rounded to odd: cut off after float's digits, the last one set where that lost anything. Zero below the normal
// range, infinite beyond it.
float sum_to_odd(float a, float b) {
  a = flushed(a), b = flushed(b);
  const double sum = static_cast<double>(a) + b;
  if (sum != sum || std::isinf(sum) || sum == 0) return static_cast<float>(sum == 0 && !(a == 0 && b == 0) ? 0.0 : sum);
  const double of_b = sum - a, error = (a - (sum - of_b)) + (b - of_b);
  double magnitude = std::fabs(sum);
  if (sum > 0 ? error < 0 : error > 0) magnitude = std::nextafter(magnitude, 0.0);
  int exponent;
  std::frexp(magnitude, &exponent);
  const double place = std::ldexp(1.0, exponent - 24);
  double digits = std::floor(magnitude / place);
  if ((error != 0 || digits * place != magnitude) && std::fmod(digits, 2) == 0) digits += 1;
  if (digits * place >= std::ldexp(1.0, 128)) return std::copysign(kInfinity, static_cast<float>(sum > 0 ? 1 : -1));
  return flushed(static_cast<float>(std::copysign(digits * place, sum)));
}

float product_to_odd(float a, float b) {
  const double product = static_cast<double>(flushed(a)) * flushed(b);  // 16 digits
  if (std::fabs(product) >= std::ldexp(1.0, 128))
    return std::copysign(kInfinity, static_cast<float>(product > 0 ? 1 : -1));
  return std::fabs(product) < FLT_MIN ? static_cast<float>(std::copysign(0.0, product)) : static_cast<float>(product);
}

float right_dot(float a, float b, float sum) {
  const float first = product_to_odd(first_of(a), first_of(b)), second = product_to_odd(second_of(a), second_of(b));
  return sum_to_odd(sum, sum_to_odd(first, second));
}
#else
// One step of the instructions of x86. That fma rounds results just below 2⁻¹²⁶ up to it where they should become zero
// is for check_flushing.
float step_of_x86(float a, float b, float sum) { return flushed(std::fma(flushed(a), flushed(b), flushed(sum))); }

float right_dot(float a, float b, float sum) {
  return step_of_x86(first_of(a), first_of(b), step_of_x86(second_of(a), second_of(b), sum));
}
#endif

void check_dots() {
  for (int round = 0; round < 10000; ++round) {
    const bool ordinary = round % 2 == 0;  // close exponents, where sums cancel and round; then anything
    const auto pair = [=] { return ordinary ? close_pair(0x00FF, 0x3F00) : any_pair(); };
    const Lanes a = lanes_of(pair), b = lanes_of(pair), c = lanes_of(ordinary ? moderate : any_float);
    const Lanes sums(V::dot_pairs(a.vector(), b.vector(), c.vector()));
    for (int i = 0; i < W; ++i) {
      const float right = right_dot(a.x[i], b.x[i], c.x[i]);
      expect(same(sums.x[i], right), "dot_pairs(%#x, %#x, %a) = %a, not %a", cast<uint32_t>(a.x[i]),
             cast<uint32_t>(b.x[i]), c.x[i], sums.x[i], right);
    }
  }
}

#if defined(FLUSHES)
// Results are zero where they are below the normal range when rounded with an exponent that has no end, not only where
// the nearest float is.
void check_flushing() {
  const float one = cast<float>(0x00003F80u), small = cast<float>(0x00000080u);  // pairs (1, 0) and (2⁻¹²⁶, 0)
  struct {
    float scale, sum, right;
  } const cases[] = {
      {1.0f, 0.0f, 0x1p-126f},
      {0x1.fep-1f, 0.0f, 0.0f},
      {0x1.fep-1f, 0x1p-126f, 0x1.ffp-126f},
      {-0x1.fep-1f, 0.0f, -0.0f},
      {-0x1p-24f, 0x1p-126f, 0.0f},       // 2⁻¹²⁶ − 2⁻¹⁵⁰, a tie that a subnormal float would round up
      {-0x1p-25f, 0x1p-126f, 0x1p-126f},  // half a place nearer: a tie again, and even
      {-0x1.02p-25f, 0x1p-126f, 0.0f},
      {-0x1.fep-26f, 0x1p-126f, 0x1p-126f},
      {-0x1p-120f, 0x1p-126f, 0x1p-126f},
      {0x1p-1f, 0x1p-127f, 0.0f},  // the sum counts as zero
  };
  for (const auto& [scale, sum, right] : cases) {
    const float pair = cast<float>(cast<uint32_t>(scale) >> 16);
    const Lanes sums(V::dot_pairs(V::set(pair), V::set(small), V::set(sum)));
    const Lanes swapped(V::dot_pairs(V::set(small), V::set(pair), V::set(sum)));
    expect(same(sums.x[0], right), "%a * 2^-126 + %a = %a, not %a", scale, sum, sums.x[0], right);
    expect(same(swapped.x[W - 1], right), "2^-126 * %a + %a = %a", scale, sum, swapped.x[W - 1]);
  }
  const Lanes denormal(V::dot_pairs(V::set(cast<float>(0x0000007Fu)), V::set(one), V::zero()));
  expect(same(denormal.x[0], 0.0f), "an operand below the normal range gives %a", denormal.x[0]);
}
#endif
#endif

}  // namespace
