// The planner: cuts a batch of pairs into pieces that are scored independently of each other.
#pragma once
#include <cstdint>
#include <vector>

#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// The caller's pairs, rows (image, caption); `context_column` is the context's.
struct PairList {
  const int64_t* data;
  int64_t count;
  int context_column;

  int64_t context(int64_t k) const { return data[2 * k + context_column]; }
  int64_t query(int64_t k) const { return data[2 * k + 1 - context_column]; }
};

// Listed pairs that are planned at a time, so that plans take some MiB.
constexpr int64_t kPlannedPairs = 1 << 17;

struct Pairs {
  std::vector<int64_t> contexts, queries;
  std::vector<int64_t> slots;

  void add(int64_t context, int64_t query, int64_t slot) {
    contexts.push_back(context);
    queries.push_back(query);
    slots.push_back(slot);
  }
  int64_t size() const { return static_cast<int64_t>(slots.size()); }
};

// Multiply-adds of the rows of contexts and queries, about.
double product_work(const Operands& operands, double contexts, double queries);
double product_work(const Operands& operands, const Pairs& pairs);

struct Plan {
  std::vector<Rectangle> rectangles;
  std::vector<int64_t> indices;  // of the rectangles
};

struct ItemPairsPlan {
  std::vector<int64_t> items, offsets, partners, slots;

  ItemPairs view() const {
    return {items.data(), offsets.data(), partners.data(), slots.data(), static_cast<int64_t>(items.size())};
  }
};

// Capacity of a core's second cache.
int64_t second_cache_floats();

Limits plan_limits(const RaggedView& contexts, const RaggedView& queries, const Layout& queries_as);

struct Range {
  int64_t begin, end;

  bool contains(int64_t item) const { return begin <= item && item < end; }
};

// Splits a range of items into successive parts of at most `rows` rows, or of one longer item.
std::vector<Range> split(const RaggedView& side, Range range, int64_t rows);

// All pairs of two ranges of items but empty ones, in one rectangle without strides, queries ordered to fill blocks.
Plan plan_all(const Operands& operands, Range contexts, Range queries);

enum class Owner { context, query };

// Listed pairs in rectangles of one item of the owner's side each, of bounded size unless `whole`.
Plan plan_pairs(const Operands& operands, const Pairs& pairs, Owner owner, bool whole);

// The pairs, but those of empty items, by the items of one side; slots are places in `pairs`.
ItemPairsPlan plan_items(const Operands& operands, const Pairs& pairs, Owner side);

// The queries of a rectangle in blocks, its contexts in groups: of whole items; or, for Sum-Max, contexts item by item
// in parts that stay in the second cache while panels pass over them, and long queries in several blocks.
std::vector<QueryBlock> cut_blocks(const Operands& operands, const Rectangle& pairs, bool whole_items);
std::vector<ContextGroup> cut_groups(const Operands& operands, const Rectangle& pairs, bool whole_items);

// Takes memory for a packed block, and for a group's copies and factors.
void place(const Operands& operands, const Rectangle& pairs, QueryBlock& block, Workspace& memory);
void place(const Operands& operands, const Rectangle& pairs, ContextGroup& group, Workspace& memory);

}  // namespace crossret
