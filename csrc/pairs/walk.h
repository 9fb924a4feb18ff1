// The walk over the pairs of a batch in two phases: all threads pack and prepare a section of both sides, then take
// tasks of a context group and a query block each. Memory is bounded whatever the batch, and a score's bits do not
// depend on the thread that computes it.
#pragma once
#include <functional>
#include <vector>

#include "pairs/memory.h"
#include "pairs/plan.h"
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// The steps of an operation, bound to an instruction set.
struct Steps {
  std::function<void(const Rectangle&, const QueryBlock&, Workspace&)> pack;
  std::function<void(const Rectangle&, const ContextGroup&, Workspace&)> prepare;
  std::function<void(const Rectangle&, const ContextGroup&, const QueryBlock&, const Partial&, Workspace&)> run;
  // Last step where items are cut: takes the groups of one context item and a block in which query items begin, after
  // all blocks of these.
  std::function<void(const Rectangle&, const ContextGroup* parts, int64_t n_parts, const QueryBlock&, const Partial&,
                     Workspace&)>
      finish;
  int64_t bytes;  // workspace of any step, besides one block and one group
  bool in_turn;   // whether a group's blocks are taken in order, as the step sums over them
  bool whole_items;
  bool numbers;  // whether partial results have numbers
};

// Memory that successive walks share.
struct WalkMemory {
  Memory blocks, groups, partial, workspaces;
};

// Walks one rectangle by all threads.
void walk(const Operands& operands, const Rectangle& pairs, const Steps& steps, WalkMemory& memory);

// Walks many rectangles: large ones in turn by all threads, each of the others by one thread.
void walk_each(const Operands& operands, const std::vector<Rectangle>& rectangles, const Steps& steps,
               WalkMemory& memory);

// Walks all pairs of a batch, whose slots follow from the strides, or the listed ones, whose slots are their places.
void walk_batch(const Operands& operands, const PairList* pairs, int64_t context_stride, int64_t query_stride,
                Owner owner, const Steps& steps);

}  // namespace crossret
