#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <atomic>
#include <stdexcept>

#include "amx_permission.h"

namespace crossret {

CROSSRET_SETS(CROSSRET_DECLARE_TABLE, Kernels, kernels)

namespace {

#if defined(__x86_64__)
struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // zeros where the leaf is missing
  explicit Cpuid(unsigned leaf, unsigned part = 0) { __get_cpuid_count(leaf, part, &eax, &ebx, &ecx, &edx); }
};

// Features that not every compiler's __builtin_cpu_supports knows. They use the registers of sets that the builtin has
// tested before, with the operating system's support.
bool has_f16c() { return (Cpuid(1).ecx >> 29 & 1u) != 0; }
#endif

#if defined(CROSSRET_HAS_AVX512BF16)
bool has_avx512bf16() { return (Cpuid(7, 1).eax >> 5 & 1u) != 0; }

// Whether VDPBF16PS multiplies faster than FMA: twice as fast on AMD's processors, half as fast on Intel's, where
// bfloat16 is better widened to float32.
bool bf16_dots_pay() {
  const Cpuid of(0);
  return of.ebx == signature_AMD_ebx && of.ecx == signature_AMD_ecx && of.edx == signature_AMD_edx;
}
#endif

#if defined(CROSSRET_HAS_NEON_BF16)
bool has_neon_bf16() {
  constexpr unsigned long bf16 = 1ul << 14;  // HWCAP2_BF16, which older headers lack
  return (getauxval(AT_HWCAP2) & bf16) != 0;
}
#endif

// Dtypes that an instruction set serves where none is selected. With products_of_bfloat16 three of these are faster
// than one product of float32.
enum class Serves { nothing, bfloat16, products_of_bfloat16, everything };

struct InstructionSet {
  const Kernels* kernels;
  Serves serves;
};

// Available sets, from slow to fast. Never destroyed: threads may score while the process exits.
const std::vector<InstructionSet>& available() {
  static const auto& found = *new std::vector<InstructionSet>([] {
    std::vector<InstructionSet> list{{&base::kernels, Serves::everything}};
#if defined(CROSSRET_EMULATED_AMX)
    list.push_back({&amx_emulated::kernels, Serves::nothing});
#endif
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
      list.push_back({&avx2::kernels, Serves::everything});
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        list.push_back({&avx512::kernels, Serves::everything});
#if defined(CROSSRET_HAS_AVX512BF16)
        if (has_avx512bf16()) {
          list.push_back({&avx512bf16::kernels, bf16_dots_pay() ? Serves::bfloat16 : Serves::nothing});
#if defined(CROSSRET_HAS_AMX)
          if (amx_permitted()) list.push_back({&amx::kernels, Serves::products_of_bfloat16});
#endif
        }
#endif
      }
    }
#endif
#if defined(__aarch64__)
    list.push_back({&neon::kernels, Serves::everything});
#endif
#if defined(CROSSRET_HAS_NEON_BF16)
    if (has_neon_bf16()) list.push_back({&neon_bf16::kernels, Serves::bfloat16});
#endif
    return list;
  }());
  return found;
}

bool serves(const InstructionSet& set, Dtype dtype, bool split) {
  const bool bfloat16 = dtype == Dtype::bfloat16, multiplied_as = bfloat16 || (dtype == Dtype::float32 && split);
  return set.serves == Serves::everything || (set.serves == Serves::bfloat16 && bfloat16) ||
         (set.serves == Serves::products_of_bfloat16 && multiplied_as);
}

const Kernels& fastest(Dtype dtype, bool split) {
  const Kernels* last = nullptr;
  for (const InstructionSet& entry : available()) {
    if (serves(entry, dtype, split)) last = entry.kernels;
  }
  return *last;
}

// A selection: its kernels, or the reason why there are none.
struct Selection {
  const Kernels* kernels;
  std::string refusal;
};

Selection find(const std::string& wanted) {
  std::string names;
  for (const InstructionSet& entry : available()) {
    if (entry.kernels->isa == wanted) return {entry.kernels, ""};
    names += (names.empty() ? "" : ", ") + std::string(entry.kernels->isa);
  }
  return {nullptr, "CROSSRET_CPU_ISA is '" + wanted + "', but this processor has: " + names};
}

std::atomic<const Selection*> selected{nullptr};  // null: the fastest for each dtype

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const InstructionSet& entry : available()) names.emplace_back(entry.kernels->isa);
  return names;
}

void select_isa(const std::string& name) {
  // Never deleted: another thread may be reading the last one.
  selected = name.empty() ? nullptr : new Selection(find(name));
}

const Kernels& kernels(Dtype dtype, bool split_float32) {
  const Selection* const selection = selected;
  if (selection == nullptr) return fastest(dtype, split_float32);
  if (selection->kernels == nullptr) throw std::runtime_error(selection->refusal);
  return *selection->kernels;
}

}  // namespace crossret
