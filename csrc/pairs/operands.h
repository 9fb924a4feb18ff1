// What every pairwise kernel is given: two ragged sides, oriented (queries attend to contexts), and the pairs to score.
// Plain data, no headers beyond integers, so that it may be read under any instruction set.
//
// How a batch is cut, from the whole to what registers hold:
//   rectangle  context items × query items, every one with every other: all pairs, or those listed of one item
//   chunk      pairs of a backward pass whose gradients of similarities are kept at a time
//   section    blocks × groups of a rectangle that are packed and prepared together
//   block      successive queries, packed; group: successive contexts, prepared; a task takes one with the other
//   part       a group of Sum-Max that has some rows of a long item, not all
//   strip      a few rows of a group, or of what is to be packed, that are copied and used while the first cache has
//   them panel      columns of the right-hand side of a product, two vectors wide tile       the rows of one panel
//   whose sums registers hold slice      so many features of a depth, or columns of a gradient, at a time
#pragma once
#include <cstdint>

namespace crossret {

enum class Dtype : int { float32, bfloat16, float16 };
enum class Pooling : int { lse, avg, sum, max, softmax };

constexpr int64_t kPad = 32;  // floats; every ISA's panel width divides it

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

inline int64_t pad_columns(int64_t n) { return round_up(n, kPad); }

// Row stride of Gram matrices and their factors, and of the similarity gradients of one pair.
inline int64_t gram_row(int64_t n) { return round_up(n, 16); }

constexpr int64_t kSlice = 256;  // columns of a feature gradient computed at once

// Row stride of copied rows: an odd number of cache lines, so that the rows of a tile fall into different sets.
inline int64_t pad_row(int64_t elements) { return ((elements + 15) / 16 | 1) * 16; }

// One image or caption.
struct Item {
  const char* rows;       // its first row
  int64_t row_bytes;      // from row to row
  const int32_t* places;  // which of the rows are valid, in order; null: the first `length`
  int64_t length;         // valid rows
  int64_t first;          // valid rows of the items ahead of it
  int64_t gradient;       // of its first row, in the side's gradient
};

// One modality.
struct RaggedView {
  const Item* items;
  int64_t count;
  int64_t dim;
  int64_t longest;
  int64_t rows;  // valid ones of all items
  Dtype dtype;
  bool masked;         // whether any item has places
  const float* norms;  // where the side is normalised, ‖row‖ of every valid row (infinity for zero rows); else null

  int64_t length(int64_t item) const { return items[item].length; }
  int64_t element_bytes() const { return dtype == Dtype::float32 ? 4 : 2; }

  const void* row(int64_t item, int64_t r) const {
    const Item& at = items[item];
    return at.rows + (at.places ? at.places[r] : r) * at.row_bytes;
  }
  int64_t gradient_row(int64_t item, int64_t r) const {
    const Item& at = items[item];
    return at.gradient + (at.places ? at.places[r] : r);
  }
  float norm(int64_t item, int64_t r) const { return norms[items[item].first + r]; }
};

// How rows lie where products read them: 32-bit elements, each a float or two bfloat16.
enum class Elements : int {
  floats,
  pairs,          // bfloat16 as they come, two at a time
  split_context,  // float32 x as bfloat16 halves x ≈ high + low: (high, high, low) against …
  split_query     // … (high, low, high): three products, all but that of the low halves
};

struct Layout {
  Elements kind;
  int64_t depth;  // elements of a row
  int64_t ld;     // row stride of copied rows
  bool scaled;    // whether products are to be multiplied by the rows' scales
  bool copied;    // whether rows may not be read where the caller has them, as products read beyond an item's last

  bool pairs() const { return kind != Elements::floats; }
};

// Every listed context item meets every listed query item. slots[i * n_queries + j] is the pair's place in whatever is
// kept by pair; without slots the place follows from the items.
struct Rectangle {
  const int64_t* contexts;
  int64_t n_contexts;
  const int64_t* queries;
  int64_t n_queries;
  const int64_t* slots;
  int64_t context_stride, query_stride, first_slot;
  int64_t columns;  // rows of all its queries
  bool dots;        // whether products are dot products of rows: one side is too short to pay for packing the other

  int64_t slot(int64_t i, int64_t j) const {
    return slots ? slots[i * n_queries + j] : contexts[i] * context_stride + queries[j] * query_stride - first_slot;
  }
};

// Successive queries of a rectangle, packed tight as the right-hand side of products, or for dot products copied row by
// row, unless they are read in place. Cross attention has whole items in a block; Sum-Max may begin and end within one.
struct QueryBlock {
  int64_t first, count;  // of the rectangle's queries
  int64_t skip;          // rows of the first that belong to the block before
  int64_t columns;       // rows
  int64_t column;        // of the first row, among the blocks that are held together
  float* panels;
  float* norms;   // of every row
  float* scales;  // where the layout is scaled
  bool once;      // whether it is for one group alone: the next block's rows come from memory then
};

// Successive contexts of a rectangle, as the left-hand side of products: whole items, or of Sum-Max part of one.
struct ContextGroup {
  int64_t first, count;  // of the rectangle's contexts
  int64_t skip;          // rows of the first that belong to the group before
  int64_t rows;
  int64_t place;   // of the group, among those that are held together
  float* data;     // copied rows, where they are not read in place
  float* scales;   // of every row, where the layout is scaled
  float* factors;  // of one item behind the other, where ‖attended‖ is wanted
  bool once;       // whether it is for one task alone, which may then leave part of preparing it to its products
};

// What an operation that takes context items in parts has found of every column of blocks that are held together:
// group.place * ld + block.column.
struct Partial {
  float* values;
  float* numbers;  // null where they are not wanted
  int64_t ld;
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
  int64_t rows;            // contexts of a group, at most
  int64_t filled_columns;  // queries of a block
  int64_t columns;         // the same, padded to whole panels
};

// The two sides of a call as the kernels lay them out.
struct Operands {
  RaggedView contexts, queries;
  Layout context_layout, query_layout;
  Limits limits;
  bool factors;  // whether ‖attended‖ is wanted of the contexts
  bool vectors;  // whether the attended vectors are, which no triangular factor makes
  // Where triangular factors of the contexts are kept already, one item behind the other; else null.
  const float* kept_factors;
  int64_t kept_floats, kept_row;  // from item to item, and from row to row
  bool dots;                      // whether products may be dot products, whose sums differ in their last bits

  // How ‖Σ p c‖ of an item of n contexts is made, for so many queries (kernels.md §1): by a triangular factor U of
  // their Gram matrix, UᵀU = C Cᵀ, or, where that costs more than it saves, by the contexts themselves, ‖Cᵀp‖.
  bool triangular(int64_t n, int64_t columns) const {
    if (vectors) return false;
    if (kept_factors != nullptr) return true;
    const double rows = static_cast<double>(n), dim = static_cast<double>(contexts.dim);
    const double made = rows * rows * dim * 0.75 + rows * rows * rows / 6;
    return static_cast<double>(columns) * rows * (dim - rows / 2) > made;
  }
  int64_t factor_row(int64_t n, bool by_triangle) const { return by_triangle ? gram_row(n) : pad_row(contexts.dim); }
  // Whether the rows of an item may be read where the caller has them: aligned elements and nothing else.
  static bool as_given(const RaggedView& side, const Layout& layout, const Item& item) {
    const bool whole = layout.pairs() ? side.dim % 2 == 0 : side.dtype == Dtype::float32;
    return whole && !layout.copied && side.norms == nullptr && item.row_bytes % 4 == 0 &&
           reinterpret_cast<uintptr_t>(item.rows) % 4 == 0;
  }
  // Whether those of a group's item are: all of the group by one stride, and not so far apart that the rows of a tile
  // fall into the same few sets of the first cache. Dot products read fewer rows at a time, wherever each is; what they
  // save outweighs what attended vectors then lose.
  bool in_place(const Rectangle& pairs, const ContextGroup& group, int64_t i) const {
    constexpr int64_t set_bytes = 4096;
    const Item& item = contexts.items[pairs.contexts[i]];
    return item.places == nullptr && as_given(contexts, context_layout, item) &&
           (pairs.dots || (group.count == 1 && item.row_bytes % set_bytes != 0));
  }

  // Contexts of an item whose factor may be triangular, at most; and floats that the factors of a group take, at most.
  int64_t most_triangular() const { return limits.rows < 2 * contexts.dim ? limits.rows : 2 * contexts.dim; }
  int64_t most_factor_floats() const {
    const int64_t triangle = gram_row(most_triangular());
    const int64_t row = context_layout.pairs() && pad_row(contexts.dim) > triangle ? pad_row(contexts.dim) : triangle;
    return factors && kept_factors == nullptr ? limits.rows * row : 0;
  }

  // Floats that an item's factor takes; the contexts themselves may be there already.
  int64_t factor_floats(int64_t n, int64_t columns) const {
    if (!factors || kept_factors != nullptr) return 0;
    const bool by_triangle = triangular(n, columns);
    return by_triangle || context_layout.kind != Elements::floats ? n * factor_row(n, by_triangle) : 0;
  }
};

}  // namespace crossret
