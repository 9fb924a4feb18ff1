// The CPU kernels for processors with AVX-512. No torch or standard header may follow the pragma: their inline
// functions would be compiled for this instruction set and could then run on processors without it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "dispatch.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
// GCC 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

#define CROSSRET_ISA avx512
#include "simd/avx512.h"

#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
