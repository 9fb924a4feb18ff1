#include "pairs/walk.h"

#include <algorithm>

#include "pairs/parallel.h"

namespace crossret {

namespace {

constexpr int64_t kHeldBytes = 8 << 20;    // either side of a section, packed
constexpr int64_t kPartial = 1 << 20;      // partial results of a section that all threads share
constexpr int64_t kTaskPartial = 1 << 15;  // partial results of a section that one task takes
// A task prepares its own context group where a rectangle has few blocks and more groups than threads.
constexpr int64_t kFewBlocks = 4, kManyGroups = 64;

// Successive pieces from `begin` on, at most `most` of at most kHeldBytes together, or all pieces of one item.
template <class Pieces, class Cost>
Range held(const Pieces& pieces, int64_t begin, int64_t most, const Cost& cost) {
  Range range{begin, begin};
  int64_t costs = 0;
  for (int64_t k = begin; k < static_cast<int64_t>(pieces.size()); ++k) {
    costs += cost(pieces[k]);
    if (pieces[k].skip == 0 && k > begin) {
      range.end = k;
      if (costs > kHeldBytes || k - begin >= most) return range;
    }
  }
  range.end = static_cast<int64_t>(pieces.size());
  return range;
}

// Floats of a task's partial results. A section of a small rectangle with more columns than kTaskPartial has one query
// item, and no more parts of one context item than its work allows.
int64_t task_partial(const Operands& operands) { return 2 * std::max(kTaskPartial, operands.queries.longest); }

// Bytes of a task's workspace: a block, a group and what a step takes.
int64_t task_bytes(const Operands& operands, const Steps& steps) {
  const Limits& limits = operands.limits;
  Workspace count;
  count.floats(limits.columns * operands.query_layout.ld);
  for (int k = 0; k < 2; ++k) count.floats(limits.columns);
  count.floats(round_up(limits.rows, kPad) * operands.context_layout.ld);
  count.floats(limits.rows);
  count.floats(operands.most_factor_floats());
  for (int k = 0; steps.finish && k < 2; ++k) count.floats(task_partial(operands));
  return count.bytes() + steps.bytes;
}

// A rectangle's blocks and groups, and the tasks over them.
class Walk {
 public:
  Walk(const Operands& operands, const Rectangle& pairs, const Steps& steps)
      : operands_(operands),
        pairs_(pairs),
        steps_(steps),
        groups_(cut_groups(operands, pairs, steps.whole_items)),
        blocks_(cut_blocks(operands, pairs, steps.whole_items)) {}

  void by_all_threads(WalkMemory& memory) {
    // A task packs a block or group that it alone takes, which is then in its cache.
    const auto n_groups = static_cast<int64_t>(groups_.size()), n_blocks = static_cast<int64_t>(blocks_.size());
    const bool in_turn = steps_.in_turn || (n_blocks <= kFewBlocks && n_groups >= kManyGroups);
    const Ready ready{n_groups > 1, n_blocks > (in_turn ? kFewBlocks : 1), true};
    bool all_held = false;  // whether memory holds every group, prepared by an earlier section
    const auto bytes = [&](auto piece) { return place_one(piece, Workspace()); };
    for_each_section(kPartial, bytes, bytes, [&](Range blocks, Range groups, int64_t columns) {
      const bool all_groups = groups.end - groups.begin == n_groups;
      const bool packs = ready.packed && groups.begin == 0, prepares = ready.prepared && !(all_groups && all_held);
      all_held = all_groups;
      if (packs) place_all(blocks_, blocks, memory.blocks);
      if (prepares) place_all(groups_, groups, memory.groups);
      int64_t rows = 0;
      for (int64_t k = groups.begin; k < groups.end; ++k) rows += groups_[k].rows;
      prepare(packs ? blocks : Range{0, 0}, prepares ? groups : Range{0, 0}, columns, rows, memory.workspaces);
      Workspace count;
      take_partial(groups, columns, count);
      Workspace results(memory.partial.bytes(count.bytes() + 1));
      const Partial partial = take_partial(groups, columns, results);
      const double work = product_work(operands_, static_cast<double>(rows), static_cast<double>(columns));
      const int64_t tasks = groups.end - groups.begin, parts = in_turn ? 1 : blocks.end - blocks.begin;
      const auto parallel_tasks = [&](int64_t n, const auto& run) {
        parallel(n, work, task_bytes(operands_, steps_), memory.workspaces, run);
      };
      // Successive tasks take the same block, whose panels stay in the second cache.
      parallel_tasks(tasks * parts, [&](int64_t task, Workspace& own) {
        const int64_t k = groups.begin + task % tasks, b = blocks.begin + task / tasks;
        take(in_turn ? blocks : Range{b, b + 1}, {k, k + 1}, ready, partial, own);
      });
      if (!steps_.finish) return;
      parallel_tasks(tasks, [&](int64_t k, Workspace& own) { finish(groups.begin + k, groups, blocks, partial, own); });
    });
  }

  // Everything in one task's workspace.
  void by_one(const Workspace& memory) {
    const auto columns_of = [&](const QueryBlock& block) {
      return steps_.finish ? block.columns * (kHeldBytes / kTaskPartial) : 0;
    };
    const auto nothing = [](const ContextGroup&) { return int64_t{0}; };
    for_each_section(kTaskPartial, columns_of, nothing, [&](Range blocks, Range groups, int64_t columns) {
      Workspace rest = memory;
      const Partial partial = take_partial(groups, columns, rest);
      take(blocks, groups, {false, false, false}, partial, rest);
      for (int64_t k = groups.begin; steps_.finish && k < groups.end; ++k) finish(k, groups, blocks, partial, rest);
    });
  }

 private:
  // Which pieces are packed and prepared ahead of tasks; `by_products` whether products may copy the others themselves.
  struct Ready {
    bool packed, prepared, by_products;
  };

  // Calls run(blocks, groups, columns) for the sections of the rectangle, each with at most so many partial results.
  template <class BlockCost, class GroupCost, class Run>
  void for_each_section(int64_t most_partial, const BlockCost& block_cost, const GroupCost& group_cost,
                        const Run& run) {
    const auto n_groups = static_cast<int64_t>(groups_.size()), n_blocks = static_cast<int64_t>(blocks_.size());
    for (Range blocks{0, 0}; blocks.end < n_blocks;) {
      blocks = held(blocks_, blocks.end, n_blocks, block_cost);
      const int64_t columns = number_columns(blocks);
      const int64_t most = steps_.finish ? std::max<int64_t>(most_partial / columns, 1) : n_groups;
      for (Range groups{0, 0}; groups.end < n_groups;) {
        groups = held(groups_, groups.end, most, group_cost);
        for (int64_t k = groups.begin; k < groups.end; ++k) groups_[k].place = k - groups.begin;
        run(blocks, groups, columns);
      }
    }
  }

  // Numbers the columns of a section's blocks; returns their count.
  int64_t number_columns(Range blocks) {
    int64_t columns = 0;
    for (int64_t k = blocks.begin; k < blocks.end; ++k) {
      blocks_[k].column = columns;
      columns += blocks_[k].columns;
    }
    return columns;
  }

  Partial take_partial(Range groups, int64_t columns, Workspace& memory) const {
    if (!steps_.finish) return {nullptr, nullptr, 0};
    const int64_t size = (groups.end - groups.begin) * columns;
    float* const values = memory.floats(size);
    return {values, steps_.numbers ? memory.floats(size) : nullptr, columns};
  }

  // Places a block or a group; returns the bytes used.
  template <class Piece>
  int64_t place_one(Piece& piece, Workspace&& memory) const {
    place(operands_, pairs_, piece, memory);
    return memory.bytes();
  }

  template <class Pieces>
  void place_all(Pieces& pieces, Range range, Memory& memory) const {
    Workspace count;
    for (int64_t k = range.begin; k < range.end; ++k) place(operands_, pairs_, pieces[k], count);
    Workspace held(memory.bytes(count.bytes() + 1));
    for (int64_t k = range.begin; k < range.end; ++k) place(operands_, pairs_, pieces[k], held);
  }

  void prepare(Range blocks, Range groups, int64_t columns, int64_t rows, Memory& workspaces) {
    const int64_t n_blocks = blocks.end - blocks.begin, n_groups = groups.end - groups.begin;
    const int64_t longest = operands_.factors ? operands_.contexts.longest : 0;
    const double work = static_cast<double>(operands_.contexts.dim) *
                        static_cast<double>((n_blocks ? 4 * columns : 0) + (n_groups ? (4 + longest) * rows : 0));
    parallel(n_blocks + n_groups, work, task_bytes(operands_, steps_), workspaces,
             [&](int64_t task, Workspace& memory) {
               if (task < n_blocks) {
                 steps_.pack(pairs_, blocks_[blocks.begin + task], memory);
               } else {
                 steps_.prepare(pairs_, groups_[groups.begin + task - n_blocks], memory);
               }
             });
  }

  // One task: every block with every group. Pieces that are not ready are packed and prepared in its own memory.
  void take(Range blocks, Range groups, Ready ready, const Partial& partial, const Workspace& memory) {
    const bool one_group = groups.end - groups.begin == 1;
    const auto group_at = [&](int64_t k, Workspace& own) {
      ContextGroup group = groups_[k];
      group.once = !ready.prepared && ready.by_products;
      if (ready.prepared) return group;
      place(operands_, pairs_, group, own);
      Workspace rest = own;
      steps_.prepare(pairs_, group, rest);
      return group;
    };
    Workspace with_group = memory;
    ContextGroup group{};
    if (one_group) group = group_at(groups.begin, with_group);
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      Workspace with_block = with_group;
      QueryBlock block = blocks_[b];
      block.once = !ready.packed && ready.by_products;
      if (!ready.packed) {
        place(operands_, pairs_, block, with_block);
        Workspace rest = with_block;
        steps_.pack(pairs_, block, rest);
      }
      for (int64_t k = groups.begin; k < groups.end; ++k) {
        Workspace own = with_block;
        if (!one_group) group = group_at(k, own);
        steps_.run(pairs_, group, block, partial, own);
      }
    }
  }

  // Finishes the item that begins in group k, if any.
  void finish(int64_t k, Range groups, Range blocks, const Partial& partial, const Workspace& memory) {
    if (groups_[k].skip > 0) return;
    int64_t end = k + 1;
    while (end < groups.end && groups_[end].skip > 0) ++end;
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      Workspace rest = memory;
      if (blocks_[b].skip == 0) steps_.finish(pairs_, &groups_[k], end - k, blocks_[b], partial, rest);
    }
  }

  const Operands& operands_;
  const Rectangle& pairs_;
  const Steps& steps_;
  std::vector<ContextGroup> groups_;
  std::vector<QueryBlock> blocks_;
};

}  // namespace

void walk(const Operands& operands, const Rectangle& pairs, const Steps& steps, WalkMemory& memory) {
  Walk(operands, pairs, steps).by_all_threads(memory);
}

void walk_each(const Operands& operands, const std::vector<Rectangle>& rectangles, const Steps& steps,
               WalkMemory& memory) {
  constexpr double large = 1 << 26;  // multiply-adds: some milliseconds
  std::vector<const Rectangle*> small;
  double work = 0;
  for (const Rectangle& pairs : rectangles) {
    double rows = 0;
    for (int64_t i = 0; i < pairs.n_contexts; ++i)
      rows += static_cast<double>(operands.contexts.length(pairs.contexts[i]));
    const double own = product_work(operands, rows, static_cast<double>(pairs.columns));
    if (own > large && !steps.in_turn) {
      walk(operands, pairs, steps, memory);
    } else {
      small.push_back(&pairs);
      work += own;
    }
  }
  parallel(static_cast<int64_t>(small.size()), work, task_bytes(operands, steps), memory.workspaces,
           [&](int64_t k, Workspace& workspace) { Walk(operands, *small[k], steps).by_one(workspace); });
}

void walk_batch(const Operands& operands, const PairList* pairs, int64_t context_stride, int64_t query_stride,
                Owner owner, const Steps& steps) {
  if (operands.contexts.rows == 0 || operands.queries.rows == 0) return;
  WalkMemory memory;
  if (pairs == nullptr) {
    Plan plan = plan_all(operands, {0, operands.contexts.count}, {0, operands.queries.count});
    for (Rectangle& all : plan.rectangles) {
      all.context_stride = context_stride;
      all.query_stride = query_stride;
      walk(operands, all, steps, memory);
    }
    return;
  }
  for (int64_t first = 0; first < pairs->count; first += kPlannedPairs) {
    Pairs part;
    for (int64_t k = first; k < std::min(first + kPlannedPairs, pairs->count); ++k) {
      const int64_t context = pairs->context(k), query = pairs->query(k);
      if (operands.contexts.length(context) > 0 && operands.queries.length(query) > 0) part.add(context, query, k);
    }
    const Plan plan = plan_pairs(operands, part, owner, false);
    walk_each(operands, plan.rectangles, steps, memory);
  }
}

}  // namespace crossret
