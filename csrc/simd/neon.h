// The vector type of aarch64: 4 floats, 32 registers; with CROSSRET_BF16_DOTS of its BF16 extension.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace crossret {
namespace CROSSRET_ISA {

struct Vector {
  using F = float32x4_t;
  using Mask = uint32x4_t;
  using Double = float64x2_t;  // half as many lanes
  static constexpr int width = 4;
  static constexpr int tile_rows = 12;  // 12 × 2 accumulators, 2 columns of the panel, the rest for broadcasts

  static Mask lanes(int64_t n) {
    const int32_t index[4] = {0, 1, 2, 3};
    return vcltq_s32(vld1q_s32(index), vdupq_n_s32(static_cast<int32_t>(n < width ? n : width)));
  }
  static F keep_first(F a, int64_t n) { return select(lanes(n), a, zero()); }  // the rest zero

  static F zero() { return vdupq_n_f32(0.0f); }
  static F set(float x) { return vdupq_n_f32(x); }
  static F load(const float* p) { return vld1q_f32(p); }
  static F load(const float* p, int64_t n) {
    if (n >= width) return load(p);
    float lanes[4] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return vld1q_f32(lanes);
  }
  static void store(float* p, F v) { vst1q_f32(p, v); }
  static void store(float* p, F v, int64_t n) {
    if (n >= width) return store(p, v);
    float lanes[4];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }

  // Widening loads of half-precision features.
  static F load_bf16(const uint16_t* p, int64_t n) { return vreinterpretq_f32_u32(vshll_n_u16(load_half(p, n), 16)); }
  static F load_f16(const uint16_t* p, int64_t n) { return vcvt_f32_f16(vreinterpret_f16_u16(load_half(p, n))); }

#if defined(CROSSRET_BF16_DOTS)
  static constexpr bool bf16_dots = true;
  static F dot_pairs(F a, F b, F sum) { return vbfdotq_f32(sum, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b)); }
  // Pairs of a number of `first` and one of `second`, rounded as `store_bf16` does.
  static F pair(F first, F second) {
    const uint32x4_t high = vdupq_n_u32(0xFFFF0000u);
    return vreinterpretq_f32_u32(
        vorrq_u32(vandq_u32(rounded_bf16(second), high), vshrq_n_u32(rounded_bf16(first), 16)));
  }
#else
  static constexpr bool bf16_dots = false;
#endif

  // Narrowing stores, rounded to nearest, ties to even.
  static void store_bf16(uint16_t* p, F v, int64_t n) { store_half(p, vshrn_n_u32(rounded_bf16(v), 16), n); }
  static void store_f16(uint16_t* p, F v, int64_t n) { store_half(p, vreinterpret_u16_f16(vcvt_f16_f32(v)), n); }

  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F sqrt(F a) { return vsqrtq_f32(a); }
  // The second operand where either is NaN, as the vector instructions of x86 do and those of aarch64 do not.
  static F max(F a, F b) { return select(less(b, a), a, b); }
  static F min(F a, F b) { return select(less(a, b), a, b); }

  static Mask less(F a, F b) { return vcltq_f32(a, b); }
  static Mask nonzero(F a) { return vmvnq_u32(vceqzq_f32(a)); }  // true for NaN
  static Mask is_nan(F a) { return vmvnq_u32(vceqq_f32(a, a)); }
  static Mask unordered(F a, F b) { return either(is_nan(a), is_nan(b)); }  // where either is NaN
  static Mask either(Mask a, Mask b) { return vorrq_u32(a, b); }
  static bool any(Mask m) { return vmaxvq_u32(m) != 0; }
  static F select(Mask m, F a, F b) { return vbslq_f32(m, a, b); }

  static F round(F a) { return vrndnq_f32(a); }
  static F scale2(F a, F n) {  // a · 2ⁿ in two steps, so that results below the normal range round as they should
    const int32x4_t whole = vcvtnq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(whole, 1);
    return mul(mul(a, power2(half)), power2(vsubq_s32(whole, half)));
  }

  static float reduce_add(F a) { return vaddvq_f32(a); }

  // Doubles, for sums whose terms cancel: the lower and the upper half of a vector, widened.
  static Double zero_double() { return vdupq_n_f64(0.0); }
  static Double low(F a) { return vcvt_f64_f32(vget_low_f32(a)); }
  static Double high(F a) { return vcvt_high_f64_f32(a); }
  static Double fma(Double a, Double b, Double c) { return vfmaq_f64(c, a, b); }
  static double reduce_add(Double a) { return vaddvq_f64(a); }

  // Lane i of the result: all lanes of r[i] combined. Overwrites r.
  template <class Combine>
  static F reduce_rows(F* r, const Combine& combine) {
    for (int i = 0; i < 4; i += 2) r[i / 2] = combine(vzip1q_f32(r[i], r[i + 1]), vzip2q_f32(r[i], r[i + 1]));
    return combine(first_halves(r[0], r[1]), second_halves(r[0], r[1]));
  }

  // r[i][j] ↔ r[j][i]
  static void transpose(F* r) {
    const F even = vtrn1q_f32(r[0], r[1]), odd = vtrn2q_f32(r[0], r[1]);
    const F next_even = vtrn1q_f32(r[2], r[3]), next_odd = vtrn2q_f32(r[2], r[3]);
    r[0] = first_halves(even, next_even);
    r[1] = first_halves(odd, next_odd);
    r[2] = second_halves(even, next_even);
    r[3] = second_halves(odd, next_odd);
  }

 private:
  // The rounded number in the upper half of every lane.
  static uint32x4_t rounded_bf16(F v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    return vbslq_u32(is_nan(v), vdupq_n_u32(0x7FC00000), rounded);
  }
  static F first_halves(F a, F b) {
    return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static F second_halves(F a, F b) {
    return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static F power2(int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
  static uint16x4_t load_half(const uint16_t* p, int64_t n) {
    if (n >= width) return vld1_u16(p);
    uint16_t lanes[4] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return vld1_u16(lanes);
  }
  static void store_half(uint16_t* p, uint16x4_t v, int64_t n) {
    if (n >= width) return vst1_u16(p, v);
    uint16_t lanes[4];
    vst1_u16(lanes, v);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
};

}  // namespace CROSSRET_ISA
}  // namespace crossret
