#include "common/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <stdexcept>

namespace crossret {

namespace base {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#if defined(CROSSRET_HAS_AVX512BF16)
namespace avx512bf16 {
extern const Kernels kernels;
}
#endif
#endif

namespace {

#if defined(__x86_64__)
// What not every compiler's __builtin_cpu_supports knows by name. Both use registers of the sets that are asked for
// first, by the builtin, which looks at what the operating system keeps of them too.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1u) != 0;
}

#if defined(CROSSRET_HAS_AVX512BF16)
bool has_avx512bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 5 & 1u) != 0;
}
#endif
#endif

const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> found = [] {
    std::vector<const Kernels*> list{&base::kernels};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
      list.push_back(&avx2::kernels);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        list.push_back(&avx512::kernels);
#if defined(CROSSRET_HAS_AVX512BF16)
        if (has_avx512bf16()) list.push_back(&avx512bf16::kernels);
#endif
      }
    }
#endif
    return list;
  }();
  return found;
}

// What was selected: the kernels, or why there are none.
struct Selection {
  const Kernels* kernels;
  std::string refusal;
};

Selection find(const std::string& wanted) {
  std::string names;
  for (const Kernels* entry : available()) {
    if (entry->isa == wanted) return {entry, ""};
    names += (names.empty() ? "" : ", ") + std::string(entry->isa);
  }
  return {nullptr, "CROSSRET_CPU_ISA is '" + wanted + "', but this processor has: " + names};
}

std::atomic<const Selection*> selected{nullptr};  // null: the fastest

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* entry : available()) names.emplace_back(entry->isa);
  return names;
}

void select_isa(const std::string& name) {
  // Never deleted: another thread may be reading the one before.
  selected = name.empty() ? nullptr : new Selection(find(name));
}

const Kernels& kernels() {
  const Selection* const selection = selected;
  if (selection == nullptr) return *available().back();
  if (selection->kernels == nullptr) throw std::runtime_error(selection->refusal);
  return *selection->kernels;
}

}  // namespace crossret
