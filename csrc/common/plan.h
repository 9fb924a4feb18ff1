// Cuts a batch of pairs into rectangles that can be scored independently of each other.
#pragma once
#include <cstdint>
#include <vector>

#include "common/problem.h"

namespace crossret {

// The attended side. A rectangle of listed pairs holds one item of it, whose Gram matrix is then made once.
enum class Owner { image, caption };

// Pairs as a caller lists them: (image, caption) row by row.
struct PairList {
  const int64_t* data;
  int64_t count;

  int64_t image(int64_t k) const { return data[2 * k]; }
  int64_t caption(int64_t k) const { return data[2 * k + 1]; }
};

// Listed pairs planned at once: their plans take some MiB, whatever the list.
constexpr int64_t kPlannedPairs = 1 << 17;

struct Pairs {
  std::vector<int64_t> images;
  std::vector<int64_t> captions;

  void add(int64_t image, int64_t caption) {
    images.push_back(image);
    captions.push_back(caption);
  }
  int64_t size() const { return static_cast<int64_t>(images.size()); }
};

// About how many multiply-adds the pairs take, all of them or those listed.
double product_work(const Side& images, const Side& captions);
double product_work(const Side& images, const Side& captions, const Pairs& pairs);

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

Limits plan_limits(const Side& contexts, const Side& queries);

struct Range {
  int64_t begin, end;

  bool contains(int64_t item) const { return begin <= item && item < end; }
};

// Splits a range of items into successive parts of about `rows` rows each, of more only where one item has more.
std::vector<Range> split(const Side& side, Range range, int64_t rows);

// All pairs of two ranges of items. With `whole` an owner is in one rectangle only.
Plan plan_all(const Side& images, const Side& captions, const Limits& limits, Range image_range, Range caption_range,
              int64_t threads, Owner owner, bool whole);

// Listed pairs, grouped by owner; slot k is the k-th pair. With `whole` an owner is in one rectangle only.
Plan plan_pairs(const Pairs& pairs, Owner owner, bool whole);

// The same pairs seen from one side; slots[k] is the place of pair k.
ItemPairsPlan plan_items(const Pairs& pairs, Owner side);

}  // namespace crossret
