// The CPU kernels for any processor.
#include <cstdint>
#include <cstring>

#include "common/dispatch.h"

#define CROSSRET_ISA base
#include "common/simd/base.h"

#include "kernels.inl"
