// The CPU kernels for aarch64, all of whose processors have NEON.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstdint>

#include "dispatch.h"

#define CROSSRET_ISA neon
#include "simd/neon.h"

#include "isa/kernels.inl"
#endif
