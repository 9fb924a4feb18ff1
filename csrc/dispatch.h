// The kernels of every instruction set, and which of them this processor runs.
#pragma once
#include <string>
#include <vector>

#include "cross_attention/problem.h"
#include "maxsim/problem.h"
#include "pairs/side.h"
#include "ranking_loss/problem.h"

// GCC has AVX512-BF16 since its version 10.
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define CROSSRET_HAS_AVX512BF16
#endif

// GCC has AMX since its version 11, clang since 12. Linux alone is asked for it.
#if defined(__x86_64__) && defined(__linux__) && \
    (defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) && __GNUC__ >= 11)
#define CROSSRET_HAS_AMX
#endif

// GCC has the BF16 extension of aarch64 since its version 10. clang declares its intrinsics under a target attribute
// since 16.
#if defined(__aarch64__) && (defined(__clang__) ? __clang_major__ >= 16 : defined(__GNUC__) && __GNUC__ >= 10)
#define CROSSRET_HAS_NEON_BF16
#endif

namespace crossret {

struct Kernels {
  const char* isa;
  Layout (*layout)(const Side&, bool is_context, bool split);
  void (*row_norms)(const Side&, int64_t item, float* norms);
  void (*pack_queries)(const Operands&, const Rectangle&, const QueryBlock&, Workspace&);
  void (*copy_contexts)(const Operands&, const Rectangle&, const ContextGroup&);
  void (*prepare_contexts)(const Operands&, const Rectangle&, const ContextGroup&, Workspace&);  // with their factors
  void (*prepare_memory)(const Operands&, Workspace&);
  void (*finish_gradient)(const Side&, int64_t item, int64_t row, const float* sum, void* out);
  const CrossAttentionKernels* cross_attention;
  const MaxSimKernels* maxsim;
  const RankingLossKernels* ranking_loss;
};

// Names of the instruction sets that were built and that this processor has or emulates.
std::vector<std::string> available_isas();

// Names the instruction set to run from now on, in every thread and for every dtype; the fastest for each where the
// name is empty.
void select_isa(const std::string& name);

// The kernels to run on features of a dtype, float32 as halves of bfloat16 where that is allowed: of the instruction
// set that is the fastest for it on this processor, or of the one selected. Throws std::runtime_error where that one is
// unknown or not to be had.
const Kernels& kernels(Dtype dtype, bool split_float32);

}  // namespace crossret
