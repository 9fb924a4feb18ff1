// The CPU kernels for AVX2 with FMA.
#include "dispatch.h"

#if defined(__x86_64__)
#define CROSSRET_ISA avx2
#define CROSSRET_TARGET "avx2,fma,f16c"
#define CROSSRET_VECTOR "simd/avx2.h"
#include "isa/targeted.inl"
#endif
