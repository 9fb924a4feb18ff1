#include "common/forward.h"

#include <algorithm>

#include "common/parallel.h"

namespace crossret {

void run_forward(const Side& images, const Side& captions, const Limits& limits, Owner owner, const PairList* pairs,
                 int64_t bytes, const std::function<void(const Rectangle&, int64_t, Workspace&)>& run) {
  Memory workspaces;
  const auto run_plan = [&](const Plan& plan, int64_t first, double work) {
    parallel(static_cast<int64_t>(plan.rectangles.size()), work, bytes, workspaces,
             [&](int64_t item, Workspace& memory) { run(plan.rectangles[item], first, memory); });
  };
  if (pairs == nullptr) {
    const double work = product_work(images, captions);
    const int64_t threads = worthwhile_threads(work);
    return run_plan(plan_all(images, captions, limits, {0, images.count}, {0, captions.count}, threads, owner, false),
                    0, work);
  }
  for (int64_t first = 0; first < pairs->count; first += kPlannedPairs) {
    Pairs part;
    for (int64_t k = first; k < std::min(first + kPlannedPairs, pairs->count); ++k)
      part.add(pairs->image(k), pairs->caption(k));
    run_plan(plan_pairs(part, owner, false), first, product_work(images, captions, part));
  }
}

}  // namespace crossret
