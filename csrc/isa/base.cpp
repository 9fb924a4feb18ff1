// The CPU kernels for any processor.
#include <cstdint>
#include <cstring>

#include "dispatch.h"

#define CROSSRET_ISA base
#include "simd/base.h"

#include "isa/kernels.inl"
