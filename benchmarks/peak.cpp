// What one core can do at most: multiply-adds a second in registers, and bytes read a second from memory.
#include <immintrin.h>

#include <chrono>
#include <cstdint>

namespace {

// Twelve independent chains hide the latency of an instruction and leave registers for its operands everywhere. Each
// starts from another value, so that the compiler cannot merge them.
#define CHAINS(STEP) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) STEP(11)
constexpr int kChains = 12;

using Block = float (*)(std::int64_t);

__attribute__((target("sse2"))) float multiply_add_sse2(std::int64_t repeats) {
  const __m128 half = _mm_set1_ps(0.5f);
#define START(i) __m128 x##i = _mm_set1_ps(i);
  CHAINS(START)
#undef START
  for (std::int64_t r = 0; r < repeats; ++r) {
#define STEP(i) x##i = _mm_add_ps(_mm_mul_ps(x##i, half), half);
    CHAINS(STEP)
#undef STEP
  }
  __m128 sum = _mm_setzero_ps();
#define ADD(i) sum = _mm_add_ps(sum, x##i);
  CHAINS(ADD)
#undef ADD
  return _mm_cvtss_f32(sum);
}

__attribute__((target("avx2,fma"))) float multiply_add_avx2(std::int64_t repeats) {
  const __m256 half = _mm256_set1_ps(0.5f);
#define START(i) __m256 x##i = _mm256_set1_ps(i);
  CHAINS(START)
#undef START
  for (std::int64_t r = 0; r < repeats; ++r) {
#define STEP(i) x##i = _mm256_fmadd_ps(x##i, half, half);
    CHAINS(STEP)
#undef STEP
  }
  __m256 sum = _mm256_setzero_ps();
#define ADD(i) sum = _mm256_add_ps(sum, x##i);
  CHAINS(ADD)
#undef ADD
  return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) float multiply_add_avx512(std::int64_t repeats) {
  const __m512 half = _mm512_set1_ps(0.5f);
#define START(i) __m512 x##i = _mm512_set1_ps(i);
  CHAINS(START)
#undef START
  for (std::int64_t r = 0; r < repeats; ++r) {
#define STEP(i) x##i = _mm512_fmadd_ps(x##i, half, half);
    CHAINS(STEP)
#undef STEP
  }
  __m512 sum = _mm512_setzero_ps();
#define ADD(i) sum = _mm512_add_ps(sum, x##i);
  CHAINS(ADD)
#undef ADD
  return _mm512_cvtss_f32(sum);
}

__attribute__((target("avx512f,avx512bf16"))) float dot_bfloat16_avx512(std::int64_t repeats) {
  const __m512bh half = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
#define START(i) __m512 x##i = _mm512_set1_ps(i);
  CHAINS(START)
#undef START
  for (std::int64_t r = 0; r < repeats; ++r) {
#define STEP(i) x##i = _mm512_dpbf16_ps(x##i, half, half);
    CHAINS(STEP)
#undef STEP
  }
  __m512 sum = _mm512_setzero_ps();
#define ADD(i) sum = _mm512_add_ps(sum, x##i);
  CHAINS(ADD)
#undef ADD
  return _mm512_cvtss_f32(sum);
}

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

// The same for bfloat16 products summed in float32; where the processor has no instruction for them, float32's.
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
