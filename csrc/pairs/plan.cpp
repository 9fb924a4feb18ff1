#include "pairs/plan.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

namespace crossret {

namespace {

// Places of the pairs sorted by key, a stable radix sort by 16 bits: it is five times as fast as std::stable_sort,
// which takes 30 ms for kPlannedPairs in random order while the other threads wait.
std::vector<int64_t> sorted_places(const std::vector<int64_t>& keys) {
  constexpr int bits = 16;
  constexpr int64_t digits = int64_t{1} << bits;
  std::vector<int64_t> places(keys.size()), sorted(keys.size());
  std::iota(places.begin(), places.end(), int64_t{0});
  if (keys.empty()) return places;
  const auto [least, most] = std::minmax_element(keys.begin(), keys.end());
  const int64_t first = *least, span = *most - first;
  for (int shift = 0; span >> shift > 0; shift += bits) {
    const auto digit = [&](int64_t place) { return ((keys[place] - first) >> shift) % digits; };
    std::vector<int64_t> ends(std::min(span >> shift, digits - 1) + 2, 0);
    for (const int64_t place : places) ++ends[digit(place) + 1];
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    for (const int64_t place : places) sorted[ends[digit(place)]++] = place;
    places.swap(sorted);
  }
  return places;
}

constexpr int64_t kVector = 16;  // floats; a multiple of every instruction set's vector width

// Columns of a block, up to `most`: whole panels, or the number that items of one length fill best.
int64_t fitting_columns(const RaggedView& side, int64_t most) {
  int64_t best = most / kPad * kPad;
  const auto another = [&](const Item& item) { return item.length != side.longest; };
  if (side.longest == 0 || std::any_of(side.items, side.items + side.count, another)) {
    return best;
  }
  for (int64_t columns = most; columns > most / 2; columns -= kVector) {
    if ((columns % side.longest) * best < (best % side.longest) * columns) best = columns;
  }
  return best;
}

// Appends the items of a range that have rows, ordered so that blocks of `columns` rows, filled from the front, are
// full: the longest item that still fits comes next. A panel half empty costs as much as a full one.
void append_packed(const RaggedView& side, Range range, int64_t columns, std::vector<int64_t>& order) {
  if (side.rows <= columns) {
    for (int64_t item = range.begin; item < range.end; ++item) {
      if (side.length(item) > 0) order.push_back(item);
    }
    return;
  }
  std::map<int64_t, std::vector<int64_t>> by_length;
  for (int64_t item = range.end - 1; item >= range.begin; --item) {
    if (side.length(item) > 0) by_length[side.length(item)].push_back(item);
  }
  for (int64_t room = columns; !by_length.empty();) {
    auto longer = by_length.upper_bound(room);  // than the room that is left
    if (longer == by_length.begin() && room < columns) {
      room = columns;
      continue;
    }
    if (longer == by_length.begin()) longer = by_length.end();  // all are longer than a block: it takes several
    const auto fitting = std::prev(longer);
    order.push_back(fitting->second.back());
    fitting->second.pop_back();
    room = std::max<int64_t>(room - fitting->first, 0);
    if (fitting->second.empty()) by_length.erase(fitting);
  }
}

// Whether one side of the rectangle is so short that packing the other would take longer than their product.
bool takes_dots(const Operands& operands, const Rectangle& pairs) {
  constexpr int64_t few_rows = 96;
  constexpr int64_t least_depth = 384;  // below it the sums across lanes cost more than packing
  if (!operands.dots || operands.contexts.dim < least_depth) return false;
  if (pairs.columns <= few_rows) return true;
  int64_t rows = 0;
  for (int64_t i = 0; i < pairs.n_contexts && rows <= few_rows; ++i)
    rows += operands.contexts.length(pairs.contexts[i]);
  return rows <= few_rows;
}

}  // namespace

double product_work(const Operands& operands, double contexts, double queries) {
  // Multiply-adds of one similarity besides its product and a row of a factor.
  constexpr double elementwise = 32;
  const auto per_cell =
      static_cast<double>(operands.contexts.dim + std::min(operands.contexts.longest, operands.contexts.dim));
  return (per_cell + elementwise) * contexts * queries;
}

double product_work(const Operands& operands, const Pairs& pairs) {
  double cells = 0;
  for (int64_t k = 0; k < pairs.size(); ++k) {
    cells +=
        static_cast<double>(operands.contexts.length(pairs.contexts[k]) * operands.queries.length(pairs.queries[k]));
  }
  return product_work(operands, cells, 1);
}

std::vector<Range> split(const RaggedView& side, Range range, int64_t rows) {
  std::vector<Range> parts;
  int64_t held = 0;
  for (int64_t item = range.begin; item < range.end; ++item) {
    const int64_t n = side.length(item);
    if (parts.empty() || held + n > rows) {
      parts.push_back({item, item});
      held = 0;
    }
    parts.back().end = item + 1;
    held += n;
  }
  return parts;
}

int64_t second_cache_floats() {
  static const int64_t found = [] {
    constexpr int64_t least = 256 << 10, usual = 1 << 20, most = 2 << 20;  // bytes; larger ones are not measured
    const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);                  // 0 or −1 where it is unknown
    return (bytes <= 0 ? usual : std::clamp(bytes, least, most)) / 4;
  }();
  return found;
}

Limits plan_limits(const RaggedView& contexts, const RaggedView& queries, const Layout& queries_as) {
  const int64_t block_floats = second_cache_floats() * 9 / 16;  // of a block's slice
  const int64_t once_floats = second_cache_floats() * 3 / 16;
  constexpr int64_t slice = 1024;      // elements of k
  constexpr int64_t shared_rows = 48;  // four full tiles
  Limits limits{};
  limits.rows = std::max(contexts.longest, std::min(shared_rows, contexts.rows));
  const int64_t depth = std::min(queries_as.depth, slice);
  // A block that one group alone takes is packed just ahead, and takes less of the cache.
  const int64_t floats = contexts.rows <= limits.rows ? once_floats : block_floats;
  const int64_t most = std::clamp<int64_t>(floats / depth / kVector * kVector, kPad, 192);
  limits.filled_columns = std::max(queries.longest, std::min(fitting_columns(queries, most), queries.rows));
  limits.columns = pad_columns(limits.filled_columns);
  return limits;
}

Plan plan_all(const Operands& operands, Range contexts, Range queries) {
  Plan plan;
  plan.indices.reserve(contexts.end - contexts.begin + queries.end - queries.begin);
  for (int64_t item = contexts.begin; item < contexts.end; ++item) {
    if (operands.contexts.length(item) > 0) plan.indices.push_back(item);
  }
  const auto n_contexts = static_cast<int64_t>(plan.indices.size());
  append_packed(operands.queries, queries, operands.limits.filled_columns, plan.indices);
  const int64_t n_queries = static_cast<int64_t>(plan.indices.size()) - n_contexts;
  Rectangle pairs{};
  pairs.contexts = plan.indices.data();
  pairs.n_contexts = n_contexts;
  pairs.queries = plan.indices.data() + n_contexts;
  pairs.n_queries = n_queries;
  for (int64_t j = 0; j < n_queries; ++j) pairs.columns += operands.queries.length(pairs.queries[j]);
  pairs.dots = takes_dots(operands, pairs);
  if (n_contexts > 0 && n_queries > 0) plan.rectangles.push_back(pairs);
  return plan;
}

Plan plan_pairs(const Operands& operands, const Pairs& pairs, Owner owner, bool whole) {
  constexpr int64_t longest_run = 256;
  const bool by_context = owner == Owner::context;
  const std::vector<int64_t>& owners = by_context ? pairs.contexts : pairs.queries;
  const std::vector<int64_t>& others = by_context ? pairs.queries : pairs.contexts;
  const int64_t count = pairs.size();
  Plan plan;
  plan.indices = sorted_places(owners);
  plan.indices.resize(3 * count);
  int64_t *slots = plan.indices.data(), *own = slots + count, *other = own + count;
  for (int64_t k = 0; k < count; ++k) {
    own[k] = owners[slots[k]];
    other[k] = others[slots[k]];
    slots[k] = pairs.slots[slots[k]];
  }
  for (int64_t begin = 0, end; begin < count; begin = end) {
    int64_t columns = operands.queries.length(by_context ? other[begin] : own[begin]);
    for (end = begin + 1; end < count && own[end] == own[begin] && (whole || end - begin < longest_run); ++end) {
      if (by_context) columns += operands.queries.length(other[end]);
    }
    const int64_t n = end - begin;
    plan.rectangles.push_back(
        by_context ? Rectangle{own + begin, 1, other + begin, n, slots + begin, 0, 0, 0, columns, false}
                   : Rectangle{other + begin, n, own + begin, 1, slots + begin, 0, 0, 0, columns, false});
    plan.rectangles.back().dots = takes_dots(operands, plan.rectangles.back());
  }
  return plan;
}

ItemPairsPlan plan_items(const Operands& operands, const Pairs& pairs, Owner side) {
  const std::vector<int64_t>& keys = side == Owner::context ? pairs.contexts : pairs.queries;
  const std::vector<int64_t>& others = side == Owner::context ? pairs.queries : pairs.contexts;
  ItemPairsPlan plan;
  plan.slots = sorted_places(keys);
  const auto empty = [&](int64_t k) {
    return operands.contexts.length(pairs.contexts[k]) == 0 || operands.queries.length(pairs.queries[k]) == 0;
  };
  plan.slots.erase(std::remove_if(plan.slots.begin(), plan.slots.end(), empty), plan.slots.end());
  plan.partners.resize(plan.slots.size());
  for (size_t k = 0; k < plan.slots.size(); ++k) {
    const int64_t item = keys[plan.slots[k]];
    if (plan.items.empty() || plan.items.back() != item) {
      plan.items.push_back(item);
      plan.offsets.push_back(static_cast<int64_t>(k));
    }
    plan.partners[k] = others[plan.slots[k]];
  }
  plan.offsets.push_back(static_cast<int64_t>(plan.slots.size()));
  return plan;
}

std::vector<QueryBlock> cut_blocks(const Operands& operands, const Rectangle& pairs, bool whole_items) {
  const RaggedView& side = operands.queries;
  const Limits& limits = operands.limits;
  std::vector<QueryBlock> blocks;
  int64_t column = 0;
  const auto add = [&](int64_t first, int64_t count, int64_t skip, int64_t columns) {
    blocks.push_back({first, count, skip, columns, column, nullptr, nullptr, nullptr, false});
    column += columns;
  };
  for (int64_t q = 0, count; q < pairs.n_queries; q += count) {
    int64_t held = side.length(pairs.queries[q]);
    for (count = 1; q + count < pairs.n_queries; ++count) {
      const int64_t n = side.length(pairs.queries[q + count]);
      if (held + n > limits.filled_columns) break;
      held += n;
    }
    const int64_t n_blocks = whole_items ? 1 : (held + limits.columns - 1) / limits.columns;
    const int64_t columns = n_blocks == 1 ? held : pad_columns((held + n_blocks - 1) / n_blocks);
    for (int64_t skip = 0; skip < held; skip += columns) add(q, count, skip, std::min(columns, held - skip));
  }
  return blocks;
}

std::vector<ContextGroup> cut_groups(const Operands& operands, const Rectangle& pairs, bool whole_items) {
  const RaggedView& side = operands.contexts;
  std::vector<ContextGroup> groups;
  for (int64_t i = 0, count; i < pairs.n_contexts; i += count) {
    const int64_t n = side.length(pairs.contexts[i]);
    int64_t rows = n;
    count = 1;
    for (; whole_items && i + count < pairs.n_contexts; ++count) {
      const int64_t next = side.length(pairs.contexts[i + count]);
      if (rows + next > operands.limits.rows) break;
      rows += next;
    }
    const int64_t most = whole_items ? rows : operands.limits.rows;
    for (int64_t skip = 0; skip < rows; skip += most) {
      groups.push_back({i, count, skip, std::min(most, rows - skip), 0, nullptr, nullptr, nullptr, false});
    }
  }
  return groups;
}

void place(const Operands& operands, const Rectangle& pairs, QueryBlock& block, Workspace& memory) {
  const int64_t columns = pad_columns(block.columns);
  block.panels = memory.floats(columns * (pairs.dots ? operands.query_layout.ld : operands.query_layout.depth));
  block.norms = memory.floats(columns);
  block.scales = memory.floats(columns);
}

void place(const Operands& operands, const Rectangle& pairs, ContextGroup& group, Workspace& memory) {
  constexpr int64_t beyond = 16;  // rows of a tile of AMX
  bool in_place = true;
  for (int64_t i = group.first; i < group.first + group.count; ++i) {
    in_place = in_place && operands.in_place(pairs, group, i);
  }
  if (!in_place) {
    const int64_t rows = operands.context_layout.copied ? round_up(group.rows, 2 * beyond) : group.rows;
    group.data = memory.floats(rows * operands.context_layout.ld);
    group.scales = memory.floats(group.rows);
  }
  int64_t factors = 0;
  for (int64_t i = group.first; operands.factors && i < group.first + group.count; ++i) {
    factors += operands.factor_floats(operands.contexts.length(pairs.contexts[i]), pairs.columns);
  }
  group.factors = memory.floats(factors);
}

}  // namespace crossret
