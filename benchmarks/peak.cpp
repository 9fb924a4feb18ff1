// Peak rates of one core: multiply-adds a second in registers, and bytes read a second from memory.
#include <immintrin.h>

#include <chrono>
#include <cstdint>

namespace {

// Twelve independent chains hide the latency of an instruction and leave registers for its operands everywhere. Each
// starts from another value, so that the compiler cannot merge them. Macros, because a template's body is compiled for
// no other target than the file's.
#define CHAINS(DO, ...) \
  DO(0, __VA_ARGS__)    \
  DO(1, __VA_ARGS__)    \
  DO(2, __VA_ARGS__)    \
  DO(3, __VA_ARGS__)    \
  DO(4, __VA_ARGS__)    \
  DO(5, __VA_ARGS__)    \
  DO(6, __VA_ARGS__) DO(7, __VA_ARGS__) DO(8, __VA_ARGS__) DO(9, __VA_ARGS__) DO(10, __VA_ARGS__) DO(11, __VA_ARGS__)
constexpr int kChains = 12;

using Block = float (*)(std::int64_t);

#define START(i, REGISTER, PREFIX) REGISTER x##i = PREFIX##_set1_ps(i);
#define STEP(i, MULTIPLY_ADD) x##i = MULTIPLY_ADD(x##i, half);
#define ADD(i, PREFIX) sum = PREFIX##_add_ps(sum, x##i);
#define BLOCK(NAME, TARGET, REGISTER, PREFIX, HALF, MULTIPLY_ADD)    \
  __attribute__((target(TARGET))) float NAME(std::int64_t repeats) { \
    const auto half = HALF;                                          \
    CHAINS(START, REGISTER, PREFIX)                                  \
    for (std::int64_t r = 0; r < repeats; ++r) {                     \
      CHAINS(STEP, MULTIPLY_ADD)                                     \
    }                                                                \
    REGISTER sum = PREFIX##_setzero_ps();                            \
    CHAINS(ADD, PREFIX)                                              \
    return PREFIX##_cvtss_f32(sum);                                  \
  }

#define MULTIPLY_ADD_SSE2(x, half) _mm_add_ps(_mm_mul_ps(x, half), half)
#define MULTIPLY_ADD_AVX2(x, half) _mm256_fmadd_ps(x, half, half)
#define MULTIPLY_ADD_AVX512(x, half) _mm512_fmadd_ps(x, half, half)
#define DOT_BFLOAT16(x, half) _mm512_dpbf16_ps(x, half, half)
#define HALVES_BFLOAT16 _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f))

BLOCK(multiply_add_sse2, "sse2", __m128, _mm, _mm_set1_ps(0.5f), MULTIPLY_ADD_SSE2)
BLOCK(multiply_add_avx2, "avx2,fma", __m256, _mm256, _mm256_set1_ps(0.5f), MULTIPLY_ADD_AVX2)
BLOCK(multiply_add_avx512, "avx512f", __m512, _mm512, _mm512_set1_ps(0.5f), MULTIPLY_ADD_AVX512)
BLOCK(dot_bfloat16_avx512, "avx512f,avx512bf16", __m512, _mm512, HALVES_BFLOAT16, DOT_BFLOAT16)

__attribute__((target("avx2"))) float sum_avx2(const float* values, std::int64_t count) {
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  for (std::int64_t i = 0; i + 32 <= count; i += 32) {
    for (int k = 0; k < 4; ++k) sums[k] = _mm256_add_ps(sums[k], _mm256_loadu_ps(values + i + 8 * k));
  }
  return _mm256_cvtss_f32(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
}

float sum_sse2(const float* values, std::int64_t count) {
  __m128 sums[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    for (int k = 0; k < 4; ++k) sums[k] = _mm_add_ps(sums[k], _mm_loadu_ps(values + i + 4 * k));
  }
  return _mm_cvtss_f32(_mm_add_ps(_mm_add_ps(sums[0], sums[1]), _mm_add_ps(sums[2], sums[3])));
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

volatile float sink;  // keeps results that nobody reads

// The best rate of short blocks within `seconds`: a block that another process interrupted does not count.
double best_rate(Block block, int lanes, double seconds) {
  constexpr std::int64_t kRepeats = 20000;
  double best = 0;
  for (const double end = now() + seconds; now() < end;) {
    const double start = now();
    sink = block(kRepeats);
    const double rate = 2.0 * lanes * kChains * kRepeats / (now() - start);
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace

extern "C" {

// Floating-point operations a second of the calling thread in float32, by the widest instructions of this processor.
double peak_float32(double seconds) {
  if (__builtin_cpu_supports("avx512f")) return best_rate(multiply_add_avx512, 16, seconds);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return best_rate(multiply_add_avx2, 8, seconds);
  return best_rate(multiply_add_sse2, 4, seconds);
}

// bfloat16 products a second, summed in float32; where the processor has no instruction for them, float32's rate.
double peak_bfloat16(double seconds) {
  if (__builtin_cpu_supports("avx512bf16")) return best_rate(dot_bfloat16_avx512, 32, seconds);
  return peak_float32(seconds);
}

// Seconds that the calling thread takes to read `count` floats once.
double read_seconds(const float* values, std::int64_t count) {
  const double start = now();
  sink = __builtin_cpu_supports("avx2") ? sum_avx2(values, count) : sum_sse2(values, count);
  return now() - start;
}
}
