// The CPU kernels for processors with AMX, which multiplies tiles of bfloat16. No torch or standard header may follow
// the pragma: their inline functions would be compiled for this instruction set and could then run on processors
// without it.
#include "dispatch.h"

#if defined(CROSSRET_HAS_AMX)
#include <immintrin.h>

#include <cstdint>

#if defined(__clang__)
#pragma clang attribute push(                                                                                 \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c"))), \
    apply_to = function)
#else
// GCC 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c")
#endif

#define CROSSRET_ISA amx
#define CROSSRET_BF16_DOTS
#define CROSSRET_AMX
#include "simd/amx.h"
#include "simd/avx512.h"

#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
