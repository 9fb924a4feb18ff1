// The CPU kernels for AVX-512.
#include "dispatch.h"

#if defined(__x86_64__)
#define CROSSRET_ISA avx512
#define CROSSRET_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
#define CROSSRET_VECTOR "simd/avx512.h"
#include "isa/targeted.inl"
#endif
