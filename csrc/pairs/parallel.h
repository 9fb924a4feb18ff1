// Independent pieces of work over torch's threads, each thread with its own workspace.
#pragma once
#include <cstdint>
#include <functional>

#include "pairs/memory.h"
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// Whether this process was forked after the library was loaded: OpenMP would wait for threads that are not there.
bool in_forked_child();

// Number of torch's threads; 1 in a forked child.
int64_t thread_count();

// Number of threads that are worth waking for so many multiply-adds.
int64_t worthwhile_threads(double multiply_adds);

// Cost of a pass over a side's rows, which memory bounds, in multiply-adds.
double pass_work(const RaggedView& side);

// Calls work(item, workspace) for every item in [0, items), in any order; together they cost about so many
// multiply-adds. Each item starts with an empty workspace of `bytes` from `memory`.
void parallel(int64_t items, double multiply_adds, int64_t bytes, Memory& memory,
              const std::function<void(int64_t, Workspace&)>& work);

}  // namespace crossret
