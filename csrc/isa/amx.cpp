// The CPU kernels for AMX, which multiplies tiles of bfloat16.
#include "dispatch.h"

#if defined(CROSSRET_HAS_AMX)
#define CROSSRET_ISA amx
#define CROSSRET_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c"
#define CROSSRET_VECTOR "simd/avx512.h"
#define CROSSRET_BF16_DOTS
#define CROSSRET_AMX
#include "isa/targeted.inl"
#endif
