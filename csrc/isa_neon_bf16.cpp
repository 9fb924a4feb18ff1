// The CPU kernels for aarch64 with the BF16 extension, which multiplies pairs of bfloat16. No torch or standard header
// may follow the pragma: their inline functions would be compiled for this instruction set and could then run on
// processors without it.
#include "dispatch.h"

#if defined(CROSSRET_HAS_NEON_BF16)
#include <arm_neon.h>

#include <cstdint>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+bf16")
#endif

#define CROSSRET_ISA neon_bf16
#define CROSSRET_BF16_DOTS
#include "simd/neon.h"

#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
