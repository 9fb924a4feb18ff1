// The vector type of any processor: 4 floats in the compiler's own vector extension, no instruction set assumed.
#pragma once
#include <cstdint>
#include <cstring>

namespace crossret {
namespace CROSSRET_ISA {

struct Vector {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t Mask __attribute__((vector_size(16)));
  static constexpr int width = 4;
  static constexpr int tile_rows = 6;

  static Mask lanes(int64_t n) {
    Mask m{};
    for (int64_t i = 0; i < width; ++i) m[i] = i < n ? -1 : 0;
    return m;
  }
  static F keep_first(F a, int64_t n) { return lanes(n) ? a : zero(); }  // the rest zero

  static F zero() { return F{0, 0, 0, 0}; }
  static F set(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static F load(const float* p, int64_t n) {
    if (n >= width) return load(p);
    F v = zero();
    for (int64_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  static void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
  static void store(float* p, F v, int64_t n) {
    if (n >= width) return store(p, v);
    for (int64_t i = 0; i < n; ++i) p[i] = v[i];
  }

  // Widening loads of half-precision features.
  static F load_bf16(const uint16_t* p, int64_t n) {
    F v = zero();
    for (int64_t i = 0; i < (n < width ? n : width); ++i) v[i] = from_bits(static_cast<uint32_t>(p[i]) << 16);
    return v;
  }
  static F load_f16(const uint16_t* p, int64_t n) {
    F v = zero();
    for (int64_t i = 0; i < (n < width ? n : width); ++i) v[i] = from_half(p[i]);
    return v;
  }

  static constexpr bool bf16_dots = false;

  // Narrowing stores, rounded to nearest, ties to even.
  static void store_bf16(uint16_t* p, F v, int64_t n) {
    for (int64_t i = 0; i < (n < width ? n : width); ++i) {
      const uint32_t bits = to_bits(v[i]), odd = (bits >> 16) & 1u;
      p[i] = static_cast<uint16_t>(v[i] == v[i] ? (bits + 0x7FFFu + odd) >> 16 : 0x7FC0u);
    }
  }
  static void store_f16(uint16_t* p, F v, int64_t n) {
    for (int64_t i = 0; i < (n < width ? n : width); ++i) p[i] = to_half(v[i]);
  }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F sqrt(F a) {
    for (int i = 0; i < width; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
  }
  // The second operand where either is NaN, as the vector instructions of x86 do.
  static F max(F a, F b) { return a > b ? a : b; }
  static F min(F a, F b) { return a < b ? a : b; }

  static Mask less(F a, F b) { return a < b; }
  static Mask nonzero(F a) { return a != zero(); }  // true for NaN
  static Mask is_nan(F a) { return a != a; }
  static Mask unordered(F a, F b) { return is_nan(a) | is_nan(b); }  // where either is NaN
  static Mask either(Mask a, Mask b) { return a | b; }
  static bool any(Mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
  static bool at(Mask m, int i) { return m[i] != 0; }
  static F select(Mask m, F a, F b) { return m ? a : b; }

  static F round(F a) {  // adding and removing 1.5·2²³ leaves the nearest whole number of a small a
    const F magic = set(12582912.0f);
    return (a + magic) - magic;
  }
  static F scale2(F a, F n) {  // a · 2ⁿ in two steps, so that results below the normal range round as they should
    for (int i = 0; i < width; ++i) {
      const int32_t whole = n[i] == n[i] ? static_cast<int32_t>(n[i]) : 0;
      const int32_t half = whole >> 1;
      a[i] = a[i] * power2(half) * power2(whole - half);
    }
    return a;
  }

  static float reduce_add(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }

  // Lane i of the result: all lanes of r[i] combined. Overwrites r.
  template <class Combine>
  static F reduce_rows(F* r, const Combine& combine) {
    transpose(r);
    return combine(combine(r[0], r[1]), combine(r[2], r[3]));
  }

  // r[i][j] ↔ r[j][i]
  static void transpose(F* r) {
    for (int i = 0; i < width; ++i) {
      for (int j = i + 1; j < width; ++j) {
        const float upper = r[i][j];
        r[i][j] = r[j][i];
        r[j][i] = upper;
      }
    }
  }

 private:
  static float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  static uint32_t to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static float power2(int32_t n) { return from_bits(static_cast<uint32_t>(n + 127) << 23); }
  static float from_half(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
    if (exponent == 31) return from_bits(sign | 0x7F800000u | (fraction << 13));
    if (exponent != 0) return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2⁻²⁴, below the normal range
    return sign ? -magnitude : magnitude;
  }
  static uint16_t to_half(float x) {
    const uint32_t bits = to_bits(x), magnitude = bits & 0x7FFFFFFFu, sign = (bits >> 16) & 0x8000u;
    uint32_t half;
    if (magnitude > 0x7F800000u) {
      half = 0x7E00u;  // NaN
    } else if (magnitude >= 0x47800000u) {
      half = 0x7C00u;  // 2¹⁶ and above: infinity
    } else if (magnitude < 0x38800000u) {
      // Below the normal range, 2⁻¹⁴: the last place of 0.5 is 2⁻²⁴, so the sum rounds where float16 does.
      half = to_bits(from_bits(magnitude) + 0.5f) - 0x3F000000u;
    } else {
      half = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
  }
};

}  // namespace CROSSRET_ISA
}  // namespace crossret
