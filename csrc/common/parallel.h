// Runs independent pieces of work over torch's threads, each thread with its own workspace.
#pragma once
#include <cstdint>
#include <functional>

#include "common/memory.h"
#include "common/workspace.h"

namespace crossret {

int64_t thread_count();

// Calls work(item, workspace) for every item in [0, items), in any order. A workspace of `bytes`, taken from `memory`,
// is new to each item.
void parallel(int64_t items, int64_t bytes, Memory& memory, const std::function<void(int64_t, Workspace&)>& work);

}  // namespace crossret
