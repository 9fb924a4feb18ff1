// The vector type of any processor: 4 floats in the compiler's vector extension, or with CROSSRET_WIDE 16, as AVX-512
// has. With CROSSRET_BF16_DOTS it multiplies pairs of bfloat16 as VDPBF16PS does.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(CROSSRET_BF16_DOTS)
#include "simd/bf16_steps.h"
#endif

namespace crossret {
namespace CROSSRET_ISA {

#if defined(CROSSRET_WIDE)
// Arrays: compilers warn that the ABI of vectors wider than registers varies. Functions are not inlined, which would
// make every use a page of instructions and take minutes to compile.
#define CROSSRET_FUNCTION static __attribute__((noinline))
template <class T, int n>
struct Array {
  T x[n];
  T& operator[](int i) { return x[i]; }
  const T& operator[](int i) const { return x[i]; }
};
#define CROSSRET_OPERATOR(op, Result)                                            \
  template <class T, int n>                                                      \
  CROSSRET_FUNCTION Array<Result, n> operator op(Array<T, n> a, Array<T, n> b) { \
    Array<Result, n> out;                                                        \
    for (int i = 0; i < n; ++i) out[i] = a[i] op b[i];                           \
    return out;                                                                  \
  }
CROSSRET_OPERATOR(+, T)
CROSSRET_OPERATOR(-, T)
CROSSRET_OPERATOR(*, T)
CROSSRET_OPERATOR(/, T)
CROSSRET_OPERATOR(|, T)
CROSSRET_OPERATOR(<, int32_t)
CROSSRET_OPERATOR(!=, int32_t)
#undef CROSSRET_OPERATOR
#else
#define CROSSRET_FUNCTION static
#endif

struct Vector {
#if defined(CROSSRET_WIDE)
  static constexpr int width = 16;
  static constexpr int tile_rows = 6;
  using F = Array<float, width>;
  using Mask = Array<int32_t, width>;
  using Double = Array<double, width / 2>;
#else
  static constexpr int width = 4;
  static constexpr int tile_rows = 6;
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t Mask __attribute__((vector_size(16)));
  typedef double Double __attribute__((vector_size(16)));  // half as many lanes
#endif

  CROSSRET_FUNCTION Mask lanes(int64_t n) {
    Mask m{};
    for (int i = 0; i < width; ++i) m[i] = i < n ? -1 : 0;
    return m;
  }
  CROSSRET_FUNCTION F keep_first(F a, int64_t n) { return select(lanes(n), a, zero()); }  // the rest zero

  CROSSRET_FUNCTION F zero() { return F{}; }
  CROSSRET_FUNCTION F set(float x) {
    F v{};
    for (int i = 0; i < width; ++i) v[i] = x;
    return v;
  }
  CROSSRET_FUNCTION F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  CROSSRET_FUNCTION F load(const float* p, int64_t n) {
    if (n >= width) return load(p);
    F v = zero();
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  CROSSRET_FUNCTION void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
  CROSSRET_FUNCTION void store(float* p, F v, int64_t n) {
    if (n >= width) return store(p, v);
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }

  // Widening loads of half-precision features.
  CROSSRET_FUNCTION F load_bf16(const uint16_t* p, int64_t n) {
    F v = zero();
    for (int i = 0; i < (n < width ? n : width); ++i) v[i] = from_bits(static_cast<uint32_t>(p[i]) << 16);
    return v;
  }
  CROSSRET_FUNCTION F load_f16(const uint16_t* p, int64_t n) {
    F v = zero();
    for (int i = 0; i < (n < width ? n : width); ++i) v[i] = from_half(p[i]);
    return v;
  }

#if defined(CROSSRET_BF16_DOTS)
  static constexpr bool bf16_dots = true;
  CROSSRET_FUNCTION F first_of_pairs(F a) {
    for (int i = 0; i < width; ++i) a[i] = from_bits(to_bits(a[i]) << 16);
    return a;
  }
  CROSSRET_FUNCTION F second_of_pairs(F a) {
    for (int i = 0; i < width; ++i) a[i] = from_bits(to_bits(a[i]) & 0xFFFF0000u);
    return a;
  }
  // The second products first, which is the instruction's order.
  CROSSRET_FUNCTION F dot_pairs(F a, F b, F sum) {
    const F first_a = first_of_pairs(a), first_b = first_of_pairs(b);
    const F second_a = second_of_pairs(a), second_b = second_of_pairs(b);
    for (int i = 0; i < width; ++i) {
      sum[i] = bf16_step(first_a[i], first_b[i], bf16_step(second_a[i], second_b[i], sum[i]));
    }
    return sum;
  }
  // Numbers rounded as `store_bf16` does, those of the second behind those of the first.
  CROSSRET_FUNCTION F pair(F first, F second) {
    for (int i = 0; i < width; ++i) first[i] = from_bits((uint32_t{to_bf16(second[i])} << 16) | to_bf16(first[i]));
    return first;
  }
#else
  static constexpr bool bf16_dots = false;
#endif

  // Narrowing stores, rounded to nearest, ties to even.
  CROSSRET_FUNCTION void store_bf16(uint16_t* p, F v, int64_t n) {
    for (int i = 0; i < (n < width ? n : width); ++i) p[i] = to_bf16(v[i]);
  }
  CROSSRET_FUNCTION void store_f16(uint16_t* p, F v, int64_t n) {
    for (int i = 0; i < (n < width ? n : width); ++i) p[i] = to_half(v[i]);
  }

  CROSSRET_FUNCTION F add(F a, F b) { return a + b; }
  CROSSRET_FUNCTION F sub(F a, F b) { return a - b; }
  CROSSRET_FUNCTION F mul(F a, F b) { return a * b; }
  CROSSRET_FUNCTION F div(F a, F b) { return a / b; }
  CROSSRET_FUNCTION F fma(F a, F b, F c) { return a * b + c; }
  CROSSRET_FUNCTION F sqrt(F a) {
    for (int i = 0; i < width; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
  }
  // The second operand where either is NaN, as the vector instructions of x86 do.
  CROSSRET_FUNCTION F max(F a, F b) { return select(b < a, a, b); }
  CROSSRET_FUNCTION F min(F a, F b) { return select(a < b, a, b); }

  CROSSRET_FUNCTION Mask less(F a, F b) { return a < b; }
  CROSSRET_FUNCTION Mask nonzero(F a) { return a != zero(); }  // true for NaN
  CROSSRET_FUNCTION Mask is_nan(F a) { return a != a; }
  CROSSRET_FUNCTION Mask unordered(F a, F b) { return is_nan(a) | is_nan(b); }  // where either is NaN
  CROSSRET_FUNCTION Mask either(Mask a, Mask b) { return a | b; }
  CROSSRET_FUNCTION bool any(Mask m) {
    int32_t found = 0;
    for (int i = 0; i < width; ++i) found |= m[i];
    return found != 0;
  }
  CROSSRET_FUNCTION F select(Mask m, F a, F b) {
#if defined(CROSSRET_WIDE)
    for (int i = 0; i < width; ++i) a[i] = m[i] ? a[i] : b[i];
    return a;
#else
    return m ? a : b;
#endif
  }

  CROSSRET_FUNCTION F round(F a) {  // adding and subtracting 1.5 · 2²³ rounds a small number
    const F magic = set(12582912.0f);
    return (a + magic) - magic;
  }
  // a · 2ⁿ in two steps, so that subnormal results are rounded once.
  CROSSRET_FUNCTION F scale2(F a, F n) {
    for (int i = 0; i < width; ++i) {
      const int32_t whole = n[i] == n[i] ? static_cast<int32_t>(n[i]) : 0;
      const int32_t half = whole >> 1;
      a[i] = a[i] * power2(half) * power2(whole - half);
    }
    return a;
  }

  CROSSRET_FUNCTION float reduce_add(F a) {
    for (int half = width / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) a[i] += a[i + half];
    }
    return a[0];
  }

  // Doubles, for sums whose terms cancel: the lower and the upper half of a vector, widened.
  CROSSRET_FUNCTION Double zero_double() { return Double{}; }
  CROSSRET_FUNCTION Double low(F a) {
    Double wide{};
    for (int i = 0; i < width / 2; ++i) wide[i] = a[i];
    return wide;
  }
  CROSSRET_FUNCTION Double high(F a) {
    Double wide{};
    for (int i = 0; i < width / 2; ++i) wide[i] = a[width / 2 + i];
    return wide;
  }
  CROSSRET_FUNCTION Double fma(Double a, Double b, Double c) {
    return a * b + c;
  }  // exact products where a and b were floats
  CROSSRET_FUNCTION double reduce_add(Double a) {
    for (int half = width / 4; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) a[i] += a[i + half];
    }
    return a[0];
  }

  // Lane i of the result: all lanes of r[i] combined. Overwrites r.
  template <class Combine>
  CROSSRET_FUNCTION F reduce_rows(F* r, const Combine& combine) {
    transpose(r);
    for (int rows = width; rows > 1; rows /= 2) {
      for (int i = 0; i < rows; i += 2) r[i / 2] = combine(r[i], r[i + 1]);
    }
    return r[0];
  }

  // r[i][j] ↔ r[j][i]
  CROSSRET_FUNCTION void transpose(F* r) {
    for (int i = 0; i < width; ++i) {
      for (int j = i + 1; j < width; ++j) {
        const float upper = r[i][j];
        r[i][j] = r[j][i];
        r[j][i] = upper;
      }
    }
  }

 private:
  CROSSRET_FUNCTION float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  CROSSRET_FUNCTION uint32_t to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  CROSSRET_FUNCTION uint16_t to_bf16(float x) {
    const uint32_t bits = to_bits(x), odd = (bits >> 16) & 1u;
    return static_cast<uint16_t>(x == x ? (bits + 0x7FFFu + odd) >> 16 : 0x7FC0u);
  }
  CROSSRET_FUNCTION float power2(int32_t n) { return from_bits(static_cast<uint32_t>(n + 127) << 23); }
  CROSSRET_FUNCTION float from_half(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
    if (exponent == 31) return from_bits(sign | 0x7F800000u | (fraction << 13));
    if (exponent != 0) return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2⁻²⁴, below the normal range
    return sign ? -magnitude : magnitude;
  }
  CROSSRET_FUNCTION uint16_t to_half(float x) {
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

#undef CROSSRET_FUNCTION
