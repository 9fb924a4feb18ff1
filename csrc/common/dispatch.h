// The kernels of every instruction set, and which of them this processor runs.
#pragma once
#include <string>
#include <vector>

#include "cross_attention/problem.h"
#include "maxsim/problem.h"

// GCC has AVX512-BF16 since its version 10.
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define CROSSRET_HAS_AVX512BF16
#endif

namespace crossret {

struct Kernels {
  const char* isa;
  const CrossAttentionKernels* cross_attention;
  const MaxSimKernels* maxsim;
  void (*row_norms)(const Side&, int64_t first, int64_t last, float* norms);
  void (*finish_gradient)(const Side&, int64_t row, const float* sum, void* out);
};

// Names of the instruction sets that were built and that this processor has, the fastest last.
std::vector<std::string> available_isas();

// Names the instruction set to run from now on, in every thread; the fastest where the name is empty.
void select_isa(const std::string& name);

// The kernels to run: of the fastest instruction set, or of the one selected. Throws std::runtime_error where that one
// is unknown or not to be had.
const Kernels& kernels();

}  // namespace crossret
