// The forward pass of a pairwise score over threads, in pieces whose plan is bounded whatever the batch.
#pragma once
#include <functional>

#include "common/plan.h"
#include "common/problem.h"
#include "common/workspace.h"

namespace crossret {

// Calls run(rectangle, first, workspace) until every pair is scored: slots of the rectangle count from score `first`.
// All pairs where `pairs` is null. A workspace has `bytes`.
void run_forward(const Side& images, const Side& captions, const Limits& limits, Owner owner, const PairList* pairs,
                 int64_t bytes, const std::function<void(const Rectangle&, int64_t, Workspace&)>& run);

}  // namespace crossret
