// Cuts a batch of pairs into pieces that can be scored independently of each other.
#pragma once
#include <cstdint>
#include <vector>

#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// Pairs as a caller lists them, row by row: (image, caption), one of which is the context.
struct PairList {
  const int64_t* data;
  int64_t count;
  int context_column;

  int64_t context(int64_t k) const { return data[2 * k + context_column]; }
  int64_t query(int64_t k) const { return data[2 * k + 1 - context_column]; }
};

// Listed pairs planned at once: their plans take some MiB, whatever the list.
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

// About how many multiply-adds so many contexts and queries take.
double product_work(const Operands& operands, double contexts, double queries);
double product_work(const Operands& operands, const Pairs& pairs);

struct Plan {
  std::vector<Rectangle> rectangles;
  std::vector<int64_t> indices;  // what the rectangles point into
};

struct ItemPairsPlan {
  std::vector<int64_t> items, offsets, partners, slots;

  ItemPairs view() const {
    return {items.data(), offsets.data(), partners.data(), slots.data(), static_cast<int64_t>(items.size())};
  }
};

// What the cache holds that a core has for itself.
int64_t second_cache_floats();

Limits plan_limits(const RaggedView& contexts, const RaggedView& queries, const Layout& queries_as);

struct Range {
  int64_t begin, end;

  bool contains(int64_t item) const { return begin <= item && item < end; }
};

// Splits a range of items into successive parts of about `rows` rows each, of more only where one item has more.
std::vector<Range> split(const RaggedView& side, Range range, int64_t rows);

// All pairs of two ranges of items, those with no rows left out, in one rectangle without strides. Queries are ordered
// so that their blocks come out full.
Plan plan_all(const Operands& operands, Range contexts, Range queries);

enum class Owner { context, query };

// Listed pairs, a rectangle for each item of the owner's side; with `whole` never more than one.
Plan plan_pairs(const Operands& operands, const Pairs& pairs, Owner owner, bool whole);

// The same pairs, but for those of an item with no rows, seen from one side; slots are their places among all.
ItemPairsPlan plan_items(const Operands& operands, const Pairs& pairs, Owner side);

// The queries of a rectangle in blocks, its contexts in groups. Of whole items; or (Sum-Max) contexts item by item, in
// parts that stay in the second cache while panels pass over them, and long queries in several blocks.
std::vector<QueryBlock> cut_blocks(const Operands& operands, const Rectangle& pairs, bool whole_items);
std::vector<ContextGroup> cut_groups(const Operands& operands, const Rectangle& pairs, bool whole_items);

// Memory for what is packed of a block, and copied and made of a group.
void place(const Operands& operands, const Rectangle& pairs, QueryBlock& block, Workspace& memory);
void place(const Operands& operands, const Rectangle& pairs, ContextGroup& group, Workspace& memory);

}  // namespace crossret
