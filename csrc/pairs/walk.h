// Takes an operation over the pairs of a batch in two phases: all threads together bring both sides to where products
// read them, once, then take tasks of a context group and a query block each. What is held at a time is bounded
// whatever the batch, and who computes a pair does not show in its score.
#pragma once
#include <functional>
#include <vector>

#include "pairs/memory.h"
#include "pairs/plan.h"
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// What an operation does, under the instruction set that runs.
struct Steps {
  std::function<void(const Rectangle&, const QueryBlock&, Workspace&)> pack;
  std::function<void(const Rectangle&, const ContextGroup&, Workspace&)> prepare;
  std::function<void(const Rectangle&, const ContextGroup&, const QueryBlock&, const Partial&, Workspace&)> run;
  // Where items are not taken whole, what is done at last: with the groups of one item and a block that some query
  // items begin in, all of whose blocks are done too.
  std::function<void(const Rectangle&, const ContextGroup* parts, int64_t n_parts, const QueryBlock&, const Partial&,
                     Workspace&)>
      finish;
  int64_t bytes;  // of workspace that any of them takes, besides one block and one group
  bool in_turn;   // whether a group's blocks are taken one after the other: it sums something up over them
  bool whole_items;
  bool numbers;  // whether partial results have numbers
};

// Memory that one walk after another uses.
struct WalkMemory {
  Memory blocks, groups, partial, workspaces;
};

// One rectangle, by all threads.
void walk(const Operands& operands, const Rectangle& pairs, const Steps& steps, WalkMemory& memory);

// Many of them: those that are large one after the other by all threads, of the others each by one of them.
void walk_each(const Operands& operands, const std::vector<Rectangle>& rectangles, const Steps& steps,
               WalkMemory& memory);

// All pairs of a batch, or those listed: the slot of a pair is its place in the list, or follows from the strides.
void walk_batch(const Operands& operands, const PairList* pairs, int64_t context_stride, int64_t query_stride,
                Owner owner, const Steps& steps);

}  // namespace crossret
