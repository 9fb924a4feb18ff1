// Registers the choice of an instruction set with torch's stable ABI; operations register themselves.
#include <torch/csrc/stable/library.h>

#include <string>

#include "dispatch.h"

namespace crossret {

namespace {

std::string cpu_isas() {
  std::string names;
  for (const std::string& name : available_isas()) names += (names.empty() ? "" : " ") + name;
  return names;
}

std::string selected_cpu_isa(std::string dtype) {
  STD_TORCH_CHECK(dtype == "float32" || dtype == "bfloat16" || dtype == "float16", "unknown dtype ", dtype);
  return kernels(dtype == "float32"    ? Dtype::float32
                 : dtype == "bfloat16" ? Dtype::bfloat16
                                       : Dtype::float16,
                 false)
      .isa;
}

void select_cpu_isa(std::string name) { select_isa(name); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CompositeExplicitAutograd, library) {
  library.impl("cpu_isas", TORCH_BOX(&cpu_isas));
  library.impl("selected_cpu_isa", TORCH_BOX(&selected_cpu_isa));
  library.impl("select_cpu_isa", TORCH_BOX(&select_cpu_isa));
}

}  // namespace crossret
