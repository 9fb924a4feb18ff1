// The vector type of AVX2 with FMA: 8 floats, 16 registers, tails by masked moves.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace crossret {
namespace CROSSRET_ISA {

struct Vector {
  using F = __m256;
  using Mask = __m256;
  using Double = __m256d;  // half as many lanes
  static constexpr int width = 8;
  static constexpr int tile_rows = 6;  // 6 × 2 accumulators, 2 columns of the panel, 2 broadcasts

  static Mask lanes(int64_t n) { return _mm256_castsi256_ps(first(n)); }
  static F keep_first(F a, int64_t n) { return _mm256_and_ps(a, lanes(n)); }  // the rest zero

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const float* p, int64_t n) { return n >= width ? load(p) : _mm256_maskload_ps(p, first(n)); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void store(float* p, F v, int64_t n) {
    if (n >= width) {
      store(p, v);
    } else {
      _mm256_maskstore_ps(p, first(n), v);
    }
  }

  // Widening loads of half-precision features.
  static F load_bf16(const uint16_t* p, int64_t n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p, n)), 16));
  }
  static F load_f16(const uint16_t* p, int64_t n) { return _mm256_cvtph_ps(load_half(p, n)); }

  static constexpr bool bf16_dots = false;

  // Narrowing stores, rounded to nearest, ties to even.
  static void store_bf16(uint16_t* p, F v, int64_t n) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const F kept = select(is_nan(v), _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), _mm256_castsi256_ps(rounded));
    const __m256i half = _mm256_srli_epi32(_mm256_castps_si256(kept), 16);
    store_half(p, _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)), n);
  }
  static void store_f16(uint16_t* p, F v, int64_t n) {
    store_half(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
  }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  // Like the instruction: the second operand where either is NaN.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }

  static Mask less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Mask nonzero(F a) { return _mm256_cmp_ps(a, zero(), _CMP_NEQ_UQ); }  // true for NaN
  static Mask is_nan(F a) { return unordered(a, a); }
  static Mask unordered(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }  // where either is NaN
  static Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  static bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
  static F select(Mask m, F a, F b) { return _mm256_blendv_ps(b, a, m); }

  static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale2(F a, F n) {  // a · 2ⁿ in two steps, so that results below the normal range round as they should
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return mul(mul(a, power2(half)), power2(_mm256_sub_epi32(whole, half)));
  }

  static float reduce_add(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  // Doubles, for sums whose terms cancel: the lower and the upper half of a vector, widened.
  static Double zero_double() { return _mm256_setzero_pd(); }
  static Double low(F a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
  static Double high(F a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
  static Double fma(Double a, Double b, Double c) { return _mm256_fmadd_pd(a, b, c); }
  static double reduce_add(Double a) {
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
  }

  // Lane i of the result: all lanes of r[i] combined. Overwrites r.
  template <class Combine>
  static F reduce_rows(F* r, const Combine& combine) {
    for (int i = 0; i < 8; i += 2) {
      r[i / 2] = combine(_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
    }
    for (int i = 0; i < 4; i += 2) {
      const __m256d a = _mm256_castps_pd(r[i]), b = _mm256_castps_pd(r[i + 1]);
      r[i / 2] = combine(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return combine(_mm256_permute2f128_ps(r[0], r[1], 0x20), _mm256_permute2f128_ps(r[0], r[1], 0x31));
  }

  // r[i][j] ↔ r[j][i]
  static void transpose(F* r) {
    F t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      for (int k = 0; k < 2; ++k) {
        const __m256d a = _mm256_castps_pd(t[i + k]), b = _mm256_castps_pd(t[i + 2 + k]);
        r[i + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
        r[i + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
      }
    }
    for (int k = 0; k < 4; ++k) {
      t[k] = _mm256_permute2f128_ps(r[k], r[4 + k], 0x20);
      t[4 + k] = _mm256_permute2f128_ps(r[k], r[4 + k], 0x31);
    }
    for (int k = 0; k < 8; ++k) r[k] = t[k];
  }

 private:
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n < width ? n : width)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F power2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static __m128i load_half(const uint16_t* p, int64_t n) {
    if (n >= width) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    alignas(16) uint16_t lanes[8] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(lanes));
  }
  static void store_half(uint16_t* p, __m128i v, int64_t n) {
    if (n >= width) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
      return;
    }
    alignas(16) uint16_t lanes[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), v);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
};

}  // namespace CROSSRET_ISA
}  // namespace crossret
