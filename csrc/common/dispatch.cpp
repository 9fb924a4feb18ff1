#include "common/dispatch.h"

#include <cstdlib>
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
namespace avx512bf16 {
extern const Kernels kernels;
}
#endif

namespace {

const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> found = [] {
    std::vector<const Kernels*> list{&base::kernels};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
      list.push_back(&avx2::kernels);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        list.push_back(&avx512::kernels);
        if (__builtin_cpu_supports("avx512bf16")) list.push_back(&avx512bf16::kernels);
      }
    }
#endif
    return list;
  }();
  return found;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* entry : available()) names.emplace_back(entry->isa);
  return names;
}

const Kernels& kernels() {
  const char* wanted = std::getenv("CROSSRET_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return *available().back();
  std::string names;
  for (const Kernels* entry : available()) {
    if (entry->isa == std::string(wanted)) return *entry;
    names += (names.empty() ? "" : ", ") + std::string(entry->isa);
  }
  throw std::runtime_error("CROSSRET_CPU_ISA is '" + std::string(wanted) + "', but this processor has: " + names);
}

}  // namespace crossret
