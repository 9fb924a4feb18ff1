// Runs independent pieces of work over torch's threads, each thread with its own workspace.
#pragma once
#include <cstdint>
#include <functional>

#include "pairs/memory.h"
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// Whether this process was forked from one that had the library loaded: it has none of that one's threads, and OpenMP
// would wait for them.
bool in_forked_child();

// torch's threads; one in a forked child.
int64_t thread_count();

// How many of them are worth waking for so many multiply-adds.
int64_t worthwhile_threads(double multiply_adds);

// What a pass over a side's rows costs, which memory bounds, as multiply-adds.
double pass_work(const RaggedView& side);

// Calls work(item, workspace) for every item in [0, items), in any order; all of them together cost about so many
// multiply-adds. A workspace of `bytes`, taken from `memory`, is new to each item.
void parallel(int64_t items, double multiply_adds, int64_t bytes, Memory& memory,
              const std::function<void(int64_t, Workspace&)>& work);

}  // namespace crossret
