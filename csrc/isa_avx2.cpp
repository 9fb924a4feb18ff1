// The CPU kernels for processors with AVX2 with FMA. No torch or standard header may follow the pragma: their inline
// functions would be compiled for this instruction set and could then run on processors without it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "dispatch.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define CROSSRET_ISA avx2
#include "simd/avx2.h"

#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
