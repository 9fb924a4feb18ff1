// What every pairwise kernel is given: the two ragged sides, and the rectangles of pairs to score. Plain data, no
// headers beyond integers, so that it may be read under any instruction set.
#pragma once
#include <cstdint>

namespace crossret {

enum class Dtype : int { float32, bfloat16, float16 };
enum class Direction : int { t2i, i2t };
enum class Pooling : int { lse, avg, sum, max };

constexpr int64_t kPad = 32;  // floats; every ISA's panel width divides it

inline int64_t pad_columns(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

// Row stride of Gram matrices, and of the similarity gradients of one pair.
inline int64_t gram_row(int64_t n) { return (n + 15) / 16 * 16; }

constexpr int64_t kSlice = 256;  // columns of a feature gradient computed at once

// Row stride of copied features: an odd number of cache lines, so that the rows of a tile fall into different sets.
inline int64_t pad_row(int64_t dim) { return ((dim + 15) / 16 | 1) * 16; }

// One modality: item k has rows starts[k] … starts[k] + lengths[k] − 1 of `values`.
struct Side {
  const void* values;
  int64_t row_stride;  // elements
  const int64_t* starts;
  const int64_t* lengths;
  int64_t count;
  int64_t dim;
  int64_t longest;
  int64_t padded_rows;  // of every item in a gradient, which has none between items; 0: those of the features
  Dtype dtype;
  const float* norms;  // where the side is normalised, ‖row‖ of every row (infinity for zero rows); else null

  // First row of an item's gradient.
  int64_t gradient_start(int64_t item) const { return padded_rows > 0 ? item * padded_rows : starts[item]; }

  int64_t element_bytes() const { return dtype == Dtype::float32 ? 4 : 2; }

  const void* row(int64_t index) const {
    return static_cast<const char*>(values) + index * row_stride * element_bytes();
  }
};

// Every listed image meets every listed caption. slots[i * n_captions + c] is the pair's place in whatever is kept by
// pair; without slots it is images[i] * slot_row + captions[c] − first_slot, a dense matrix.
struct Rectangle {
  const int64_t* images;
  int64_t n_images;
  const int64_t* captions;
  int64_t n_captions;
  const int64_t* slots;
  int64_t slot_row;
  int64_t first_slot;

  int64_t slot(int64_t i, int64_t c) const {
    return slots ? slots[i * n_captions + c] : images[i] * slot_row + captions[c] - first_slot;
  }
};

// The pairs of each item of one side: item items[k] has partners partners[offsets[k] … offsets[k + 1] − 1] of the other
// side, in pairs of the same places in slots.
struct ItemPairs {
  const int64_t* items;
  const int64_t* offsets;
  const int64_t* partners;
  const int64_t* slots;
  int64_t count;
};

// Jobs [first, first + count) of an ItemPairs, whose items have the same partners in the same order. The gradient of
// the k-th item's rows is summed at sums[k].
struct JobGroup {
  int64_t first, count;
  float* const* sums;
};

constexpr int64_t kGroupJobs = 24;   // of a group, at most …
constexpr int64_t kGroupRows = 288;  // … and as many rows of its items, where that is more than one item

// Bounds on what a worker holds at once, whatever the batch.
struct Limits {
  int64_t group_rows;      // contexts of the items that are prepared together
  int64_t rows;            // contexts of the largest item
  int64_t product_rows;    // contexts of the items that share a product
  int64_t filled_columns;  // queries of a block
  int64_t columns;         // the same, padded to whole panels
};

}  // namespace crossret
