// Checks what is decided ahead of any kernel: how batches are cut, and which instruction sets there are.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dispatch.h"
#include "pairs/plan.h"

namespace crossret {

// Kernels that are not called.
#define CROSSRET_ABSENT(isa, ...) \
  namespace isa {                 \
  extern const Kernels kernels;   \
  const Kernels kernels{#isa};    \
  }
CROSSRET_SETS(CROSSRET_ABSENT, )
#undef CROSSRET_ABSENT

namespace {

[[noreturn]] void fail(const char* what) {
  std::printf("%s\n", what);
  std::_Exit(1);
}

// Of items of any length: what a plan takes does not grow with the longest, and what fits comes first.
void check_plan() {
  const int64_t lengths[] = {3, int64_t{1} << 40, 60, 5};
  Item items[4]{};
  for (int k = 0; k < 4; ++k) items[k].length = lengths[k];
  Operands operands{};
  operands.contexts = {items, 1, 2, 3, 3, Dtype::float32, false, nullptr};
  operands.queries = {items, 4, 2, lengths[1], lengths[1] + 68, Dtype::float32, false, nullptr};
  operands.limits.filled_columns = 64;
  const Plan plan = plan_all(operands, {0, 1}, {0, 4});
  const int64_t* const order = plan.rectangles[0].queries;
  if (std::vector<int64_t>(order, order + 4) != std::vector<int64_t>{2, 0, 3, 1}) fail("queries are in another order");
}

// Threads may score while the process ends, when what was made first is destroyed last.
const std::vector<std::string>& isas_at_first() {
  static const auto& found = *new std::vector<std::string>(available_isas());
  return found;
}

void check_isas_at_last() {
  if (available_isas() != isas_at_first()) fail("the instruction sets are gone");
}

}  // namespace
}  // namespace crossret

int main() {
  std::atexit(crossret::check_isas_at_last);
  if (crossret::isas_at_first().empty()) crossret::fail("no instruction sets");
  crossret::check_plan();
}
