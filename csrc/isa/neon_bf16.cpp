// The CPU kernels for aarch64 with the BF16 extension, which multiplies pairs of bfloat16.
#include "dispatch.h"

#if defined(CROSSRET_HAS_NEON_BF16)
#define CROSSRET_ISA neon_bf16
#if defined(__clang__)
#define CROSSRET_TARGET "bf16"
#else
#define CROSSRET_TARGET "arch=armv8.2-a+bf16"
#endif
#define CROSSRET_VECTOR "simd/neon.h"
#define CROSSRET_BF16_DOTS
#include "isa/targeted.inl"
#endif
