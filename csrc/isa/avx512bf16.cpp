// The CPU kernels for AVX512-BF16, which multiplies pairs of bfloat16.
#include "dispatch.h"

#if defined(CROSSRET_HAS_AVX512BF16)
#define CROSSRET_ISA avx512bf16
#define CROSSRET_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c"
#define CROSSRET_VECTOR "simd/avx512.h"
#define CROSSRET_BF16_DOTS
#include "isa/targeted.inl"
#endif
