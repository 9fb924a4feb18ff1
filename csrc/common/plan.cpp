#include "common/plan.h"

#include <algorithm>
#include <numeric>

#include "common/parallel.h"

namespace crossret {

namespace {

int64_t total(const Side& side, Range range) {
  return std::accumulate(side.lengths + range.begin, side.lengths + range.end, int64_t{0});
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Places of the pairs sorted by key, equal keys in their order. Sixteen bits of the keys at a time: a few pairs of very
// many items cost what the pairs do. Of pairs in random order std::stable_sort takes 30 ms for as many as are planned
// at once, five times as long, while the other threads wait.
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

// Of one entry of the similarities: its product, and a softmax and a row of a Gram matrix, as far as there are such.
double entry_work(const Side& images, const Side& captions) {
  constexpr int64_t elementwise = 32;
  return static_cast<double>(images.dim + elementwise + std::max(images.longest, captions.longest));
}

constexpr int64_t kVector = 16;  // floats; every ISA's vector width divides it

// Columns of a block, up to `most`: whole panels, or, for items of one length, the number that they fill best.
int64_t fitting_columns(const Side& side, int64_t most) {
  int64_t best = most / kPad * kPad;
  if (std::any_of(side.lengths, side.lengths + side.count, [&](int64_t n) { return n != side.longest; })) return best;
  for (int64_t columns = most; columns > most / 2; columns -= kVector) {
    if ((columns % side.longest) * best < (best % side.longest) * columns) best = columns;
  }
  return best;
}

// Appends the items of a range, ordered so that blocks of `columns` rows, taken greedily from the front, come out full:
// each takes the longest item that still fits. A last panel half empty costs as much as a full one.
void append_packed(const Side& side, Range range, int64_t columns, std::vector<int64_t>& order) {
  std::vector<std::vector<int64_t>> by_length(side.longest + 1);
  for (int64_t item = range.end - 1; item >= range.begin; --item) by_length[side.lengths[item]].push_back(item);
  int64_t longest = side.longest, room = columns;
  for (int64_t left = range.end - range.begin; left > 0;) {
    while (by_length[longest].empty()) --longest;
    int64_t length = std::min(room, longest);
    while (length > 0 && by_length[length].empty()) --length;
    if (length == 0) {
      room = columns;
      continue;
    }
    order.push_back(by_length[length].back());
    by_length[length].pop_back();
    room -= length;
    --left;
  }
}

}  // namespace

double product_work(const Side& images, const Side& captions) {
  return entry_work(images, captions) * static_cast<double>(total(images, {0, images.count})) *
         static_cast<double>(total(captions, {0, captions.count}));
}

double product_work(const Side& images, const Side& captions, const Pairs& pairs) {
  double entries = 0;
  for (int64_t k = 0; k < pairs.size(); ++k) {
    entries += static_cast<double>(images.lengths[pairs.images[k]] * captions.lengths[pairs.captions[k]]);
  }
  return entry_work(images, captions) * entries;
}

std::vector<Range> split(const Side& side, Range range, int64_t rows) {
  std::vector<Range> parts;
  int64_t held = 0;
  for (int64_t item = range.begin; item < range.end; ++item) {
    const int64_t n = side.lengths[item];
    if (parts.empty() || held + n > rows) {
      parts.push_back({item, item});
      held = 0;
    }
    parts.back().end = item + 1;
    held += n;
  }
  return parts;
}

Limits plan_limits(const Side& contexts, const Side& queries) {
  constexpr int64_t block_floats = 144 * 1024;  // what products read of a block at a time: over half of a second cache
  constexpr int64_t slice = 1024;               // of k, in those products
  // Every thread holds a group: 24 MiB together.
  const int64_t group_floats = std::min<int64_t>(1024 * 1024, 6 * 1024 * 1024 / thread_count());
  constexpr int64_t shared_rows = 48;  // four full tiles
  const int64_t rows = std::clamp<int64_t>(group_floats / pad_row(contexts.dim), 1, 4096);
  const int64_t n_rows = total(contexts, {0, contexts.count}), n_columns = total(queries, {0, queries.count});
  Limits limits{};
  limits.rows = contexts.longest;
  limits.product_rows = std::max(contexts.longest, std::min(shared_rows, n_rows));
  const int64_t most = std::clamp<int64_t>(block_floats / std::min(queries.dim, slice) / kVector * kVector, kPad, 192);
  limits.filled_columns = std::max(queries.longest, std::min(fitting_columns(queries, most), n_columns));
  limits.columns = pad_columns(limits.filled_columns);
  // Contexts that meet one block alone are not kept for another.
  limits.group_rows = std::max(limits.product_rows, n_columns <= limits.filled_columns ? 0 : std::min(rows, n_rows));
  return limits;
}

Plan plan_all(const Side& images, const Side& captions, const Limits& limits, Range image_range, Range caption_range,
              int64_t threads, Owner owner, bool whole) {
  const bool by_image = owner == Owner::image;
  const Side &contexts = by_image ? images : captions, &queries = by_image ? captions : images;
  const Range context_range = by_image ? image_range : caption_range;
  const Range query_range = by_image ? caption_range : image_range;
  const int64_t wanted = threads == 1 ? 1 : 4 * threads;  // enough to even out cores of different speed
  constexpr int64_t least_rows = 1024;                    // queries are prepared again for every part
  const std::vector<Range> context_parts =
      split(contexts, context_range,
            std::min(std::max(limits.group_rows, least_rows), divide_up(total(contexts, context_range), wanted)));
  std::vector<Range> query_parts{query_range};
  // Contexts are prepared once per part of queries: parts are cut only as far as threads would idle, and stay long.
  const int64_t parts = divide_up(wanted, static_cast<int64_t>(context_parts.size()));
  if (parts > 1 && !whole) {
    query_parts =
        split(queries, query_range, std::max(2 * limits.columns, divide_up(total(queries, query_range), parts)));
  }
  const int64_t n_contexts = context_range.end - context_range.begin, n_queries = query_range.end - query_range.begin;
  Plan plan;
  plan.indices.reserve(n_contexts + n_queries);
  plan.indices.resize(n_contexts);
  std::iota(plan.indices.begin(), plan.indices.end(), context_range.begin);
  for (const Range& part : query_parts) append_packed(queries, part, limits.filled_columns, plan.indices);
  const int64_t n_captions = caption_range.end - caption_range.begin;
  const int64_t first_slot = image_range.begin * n_captions + caption_range.begin;
  for (const Range& part : context_parts) {
    for (const Range& other : query_parts) {
      const int64_t* own = plan.indices.data() + (part.begin - context_range.begin);
      const int64_t* attending = plan.indices.data() + n_contexts + (other.begin - query_range.begin);
      const int64_t n_own = part.end - part.begin, n_attending = other.end - other.begin;
      plan.rectangles.push_back(by_image
                                    ? Rectangle{own, n_own, attending, n_attending, nullptr, n_captions, first_slot}
                                    : Rectangle{attending, n_attending, own, n_own, nullptr, n_captions, first_slot});
    }
  }
  return plan;
}

Plan plan_pairs(const Pairs& pairs, Owner owner, bool whole) {
  constexpr int64_t longest_run = 256;
  const bool by_image = owner == Owner::image;
  const std::vector<int64_t>& owners = by_image ? pairs.images : pairs.captions;
  const std::vector<int64_t>& others = by_image ? pairs.captions : pairs.images;
  const int64_t count = pairs.size();
  Plan plan;
  plan.indices = sorted_places(owners);
  plan.indices.resize(3 * count);
  int64_t *slots = plan.indices.data(), *own = slots + count, *other = own + count;
  for (int64_t k = 0; k < count; ++k) {
    own[k] = owners[slots[k]];
    other[k] = others[slots[k]];
  }
  for (int64_t begin = 0, end; begin < count; begin = end) {
    end = begin + 1;
    while (end < count && own[end] == own[begin] && (whole || end - begin < longest_run)) ++end;
    const int64_t n = end - begin;
    plan.rectangles.push_back(by_image ? Rectangle{own + begin, 1, other + begin, n, slots + begin, 0, 0}
                                       : Rectangle{other + begin, n, own + begin, 1, slots + begin, 0, 0});
  }
  return plan;
}

ItemPairsPlan plan_items(const Pairs& pairs, Owner side) {
  const std::vector<int64_t>& keys = side == Owner::image ? pairs.images : pairs.captions;
  const std::vector<int64_t>& others = side == Owner::image ? pairs.captions : pairs.images;
  ItemPairsPlan plan;
  plan.slots = sorted_places(keys);
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

}  // namespace crossret
