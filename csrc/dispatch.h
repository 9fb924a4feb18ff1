// The instruction sets that kernels are built for, and the choice of one for this processor.
#pragma once
#include <string>
#include <vector>

#include "pairs/operands.h"
#include "pairs/workspace.h"

// GCC has AVX512-BF16 since its version 10.
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define CROSSRET_HAS_AVX512BF16
#endif

// GCC has AMX since its version 11, clang since 12. Only Linux is supported.
#if defined(__x86_64__) && defined(__linux__) && \
    (defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) && __GNUC__ >= 11)
#define CROSSRET_HAS_AMX
#endif

// GCC has the BF16 extension of aarch64 since its version 10. clang declares its intrinsics under a target attribute
// since 16.
#if defined(__aarch64__) && (defined(__clang__) ? __clang_major__ >= 16 : defined(__GNUC__) && __GNUC__ >= 10)
#define CROSSRET_HAS_NEON_BF16
#endif

// X(instruction set, …) for every one that is built, from slow to fast.
#if defined(CROSSRET_EMULATED_AMX)
#define CROSSRET_EMULATED_SETS(X, ...) X(amx_emulated, __VA_ARGS__)
#else
#define CROSSRET_EMULATED_SETS(X, ...)
#endif
#if defined(__x86_64__)
#define CROSSRET_VECTOR_SETS(X, ...) X(avx2, __VA_ARGS__) X(avx512, __VA_ARGS__)
#elif defined(__aarch64__)
#define CROSSRET_VECTOR_SETS(X, ...) X(neon, __VA_ARGS__)
#else
#define CROSSRET_VECTOR_SETS(X, ...)
#endif
#if defined(CROSSRET_HAS_AVX512BF16)
#define CROSSRET_BFLOAT16_SETS(X, ...) X(avx512bf16, __VA_ARGS__)
#elif defined(CROSSRET_HAS_NEON_BF16)
#define CROSSRET_BFLOAT16_SETS(X, ...) X(neon_bf16, __VA_ARGS__)
#else
#define CROSSRET_BFLOAT16_SETS(X, ...)
#endif
#if defined(CROSSRET_HAS_AMX)
#define CROSSRET_TILE_SETS(X, ...) X(amx, __VA_ARGS__)
#else
#define CROSSRET_TILE_SETS(X, ...)
#endif
#define CROSSRET_SETS(X, ...)            \
  X(base, __VA_ARGS__)                   \
  CROSSRET_EMULATED_SETS(X, __VA_ARGS__) \
  CROSSRET_VECTOR_SETS(X, __VA_ARGS__)   \
  CROSSRET_BFLOAT16_SETS(X, __VA_ARGS__) \
  CROSSRET_TILE_SETS(X, __VA_ARGS__)

// Defines table_of(kernels): the struct `table` of an operation's kernels, under the instruction set of `kernels`.
#define CROSSRET_BY_SET(Table, table)                                                           \
  CROSSRET_SETS(CROSSRET_DECLARE_TABLE, Table, table)                                           \
  static const Table& table##_of(const Kernels& kernels) {                                      \
    static constexpr const Table* of_sets[] = {CROSSRET_SETS(CROSSRET_TABLE_OF, Table, table)}; \
    return *of_sets[static_cast<int>(kernels.set)];                                             \
  }
#define CROSSRET_DECLARE_TABLE(isa, Table, table) \
  namespace isa {                                 \
  extern const Table table;                       \
  }
#define CROSSRET_TABLE_OF(isa, Table, table) &isa::table,

namespace crossret {

#define CROSSRET_SET_NUMBER(isa, ...) isa,
enum class Set : int { CROSSRET_SETS(CROSSRET_SET_NUMBER, ) };
#undef CROSSRET_SET_NUMBER

// Kernels that all operations over pairs share, under one instruction set.
struct Kernels {
  const char* isa;
  Set set;
  Layout (*layout)(const RaggedView&, bool is_context, bool split);
  void (*row_norms)(const RaggedView&, int64_t item, float* norms);
  void (*pack_queries)(const Operands&, const Rectangle&, const QueryBlock&, Workspace&);
  void (*copy_contexts)(const Operands&, const Rectangle&, const ContextGroup&);
  void (*prepare_contexts)(const Operands&, const Rectangle&, const ContextGroup&, Workspace&);  // with their factors
  void (*prepare_memory)(const Operands&, Workspace&);
  void (*finish_gradient)(const RaggedView&, int64_t item, int64_t row, const float* sum, void* out);
};

// Names of the instruction sets that are built and that this processor has or emulates.
std::vector<std::string> available_isas();

// Selects an instruction set for all threads and dtypes; with an empty name the fastest for each dtype.
void select_isa(const std::string& name);

// Kernels for features of a dtype, under the selected or the fastest instruction set; `split_float32` allows float32 as
// halves of bfloat16. Throws std::runtime_error where the selected one is unknown or not available.
const Kernels& kernels(Dtype dtype, bool split_float32);

}  // namespace crossret
