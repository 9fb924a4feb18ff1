// The kernels of CROSSRET_ISA, compiled for CROSSRET_TARGET with the vector type of CROSSRET_VECTOR. No torch or
// standard header may follow the pragma: their inline functions, compiled for this instruction set, could be linked
// into code for other processors.
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include <cstdint>

#define CROSSRET_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define CROSSRET_COMPILE_FOR(sets) \
  CROSSRET_PRAGMA(clang attribute push(__attribute__((target(sets))), apply_to = function))
#else
#define CROSSRET_COMPILE_FOR(sets) CROSSRET_PRAGMA(GCC target(sets))
// GCC 12 warns of undefined operands in its own AVX-512 intrinsics, which are deliberate.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
CROSSRET_COMPILE_FOR(CROSSRET_TARGET)

#if defined(CROSSRET_AMX)
#include "simd/amx.h"
#endif
#include CROSSRET_VECTOR

#include "isa/kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif
