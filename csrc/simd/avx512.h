// The vector type of AVX-512: 16 floats, 32 registers, masks for tails; with CROSSRET_BF16_DOTS of AVX512-BF16.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace crossret {
namespace CROSSRET_ISA {

struct Vector {
  using F = __m512;
  using Mask = __mmask16;
  using Double = __m512d;  // half as many lanes
  static constexpr int width = 16;
  static constexpr int tile_rows = 12;  // 12 × 2 accumulators, 2 columns of the panel, the rest for broadcasts

  static Mask lanes(int64_t n) { return n >= width ? Mask(0xFFFF) : Mask((1u << n) - 1u); }

  static F keep_first(F a, int64_t n) { return _mm512_maskz_mov_ps(lanes(n), a); }  // the rest zero

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void store(float* p, F v, int64_t n) { _mm512_mask_storeu_ps(p, lanes(n), v); }

  // Widening loads of half-precision features.
  static F load_bf16(const uint16_t* p, int64_t n) {
    const __m256i half = _mm256_maskz_loadu_epi16(lanes(n), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static F load_f16(const uint16_t* p, int64_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), p)); }

#if defined(CROSSRET_BF16_DOTS)
  static constexpr bool bf16_dots = true;
  static F dot_pairs(F a, F b, F sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
  // Pairs of a number of `first` and one of `second`, rounded as `store_bf16` does.
  static F pair(F first, F second) {
    const __m512i high = _mm512_set1_epi32(0xFFFF0000);
    const __m512i behind = _mm512_and_si512(rounded_bf16(second), high);
    return _mm512_castsi512_ps(_mm512_or_si512(behind, _mm512_srli_epi32(rounded_bf16(first), 16)));
  }
#else
  static constexpr bool bf16_dots = false;
#endif

  // Narrowing stores, rounded to nearest, ties to even.
  static void store_bf16(uint16_t* p, F v, int64_t n) {
    _mm256_mask_storeu_epi16(p, lanes(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bf16(v), 16)));
  }
  static void store_f16(uint16_t* p, F v, int64_t n) {
    _mm256_mask_storeu_epi16(p, lanes(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  // Like the instruction: the second operand where either is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }

  static Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask nonzero(F a) { return _mm512_cmp_ps_mask(a, zero(), _CMP_NEQ_UQ); }  // true for NaN
  static Mask is_nan(F a) { return unordered(a, a); }
  static Mask unordered(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }  // where either is NaN
  static Mask either(Mask a, Mask b) { return a | b; }
  static bool any(Mask m) { return m != 0; }
  static F select(Mask m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }

  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale2(F a, F n) { return _mm512_scalef_ps(a, n); }  // a · 2ⁿ, n a whole number

  static float reduce_add(F a) { return _mm512_reduce_add_ps(a); }

  // Doubles, for sums whose terms cancel: the lower and the upper half of a vector, widened.
  static Double zero_double() { return _mm512_setzero_pd(); }
  static Double low(F a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
  static Double high(F a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
  static Double fma(Double a, Double b, Double c) { return _mm512_fmadd_pd(a, b, c); }
  static double reduce_add(Double a) { return _mm512_reduce_add_pd(a); }

  // Lane i of the result: all lanes of r[i] combined. Overwrites r.
  template <class Combine>
  static F reduce_rows(F* r, const Combine& combine) {
    for (int i = 0; i < 16; i += 2) {
      r[i / 2] = combine(_mm512_unpacklo_ps(r[i], r[i + 1]), _mm512_unpackhi_ps(r[i], r[i + 1]));
    }
    for (int i = 0; i < 8; i += 2) {
      const __m512d a = _mm512_castps_pd(r[i]), b = _mm512_castps_pd(r[i + 1]);
      r[i / 2] = combine(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 4; i += 2) {
      r[i / 2] = combine(_mm512_shuffle_f32x4(r[i], r[i + 1], 0x88), _mm512_shuffle_f32x4(r[i], r[i + 1], 0xDD));
    }
    return combine(_mm512_shuffle_f32x4(r[0], r[1], 0x88), _mm512_shuffle_f32x4(r[0], r[1], 0xDD));
  }

  // r[i][j] ↔ r[j][i]
  static void transpose(F* r) {
    F t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      for (int k = 0; k < 2; ++k) {
        const __m512d a = _mm512_castps_pd(t[i + k]), b = _mm512_castps_pd(t[i + 2 + k]);
        r[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        r[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
      }
    }
    for (int i = 0; i < 16; i += 8) {
      for (int k = 0; k < 4; ++k) {
        t[i + k] = _mm512_shuffle_f32x4(r[i + k], r[i + 4 + k], 0x88);
        t[i + 4 + k] = _mm512_shuffle_f32x4(r[i + k], r[i + 4 + k], 0xDD);
      }
    }
    for (int k = 0; k < 8; ++k) {
      r[k] = _mm512_shuffle_f32x4(t[k], t[8 + k], 0x88);
      r[8 + k] = _mm512_shuffle_f32x4(t[k], t[8 + k], 0xDD);
    }
  }

 private:
  // The rounded number in the upper half of every lane.
  static __m512i rounded_bf16(F v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_mask_mov_epi32(rounded, is_nan(v), _mm512_set1_epi32(0x7FC00000));
  }
};

}  // namespace CROSSRET_ISA
}  // namespace crossret
