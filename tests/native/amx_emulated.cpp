// The CPU kernels as processors with AMX run them, on any processor: vectors as wide as AVX-512's, tiles and dot
// products of bfloat16 emulated. For tests; never chosen unless it is named.
#include <cstdint>
#include <cstring>

#include "dispatch.h"

#if !defined(__clang__)
// GCC 12 takes vectors that a loop fills for ones that may be read before.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define CROSSRET_ISA amx_emulated
#define CROSSRET_WIDE
#define CROSSRET_BF16_DOTS
#define CROSSRET_AMX
#include "amx_emulated.h"
#include "simd/base.h"

#include "isa/kernels.inl"
