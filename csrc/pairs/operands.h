// Operands of pairwise kernels: two ragged sides, oriented (queries attend to contexts), and the pairs to score. Plain
// data without standard headers, so that files of any instruction set may include it.
//
// Units that a batch is cut into, from the largest to the registers:
//
// - rectangle: context items × query items, all pairs of these
// - chunk: pairs of a backward pass whose similarities' gradients are kept at a time
// - section: blocks × groups of a rectangle that are packed and prepared together
// - block: successive queries, packed; group: successive contexts, prepared; a task takes one of each
// - part: a group of Sum-Max with some rows of a long item
// - strip: a few rows, copied and used while they are in the first cache
// - panel: columns of a product's right-hand side, two vectors wide
// - tile: rows of a panel whose sums fill the registers
// - slice: features of a product's depth, or columns of a gradient, that are taken at a time
#pragma once
#include <cstdint>

namespace crossret {

enum class Dtype : int { float32, bfloat16, float16 };
enum class Pooling : int { lse, avg, sum, max, softmax, topk };  // topk: of Sum-Max alone

constexpr int64_t element_bytes(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

constexpr int64_t kPad = 32;  // floats; a multiple of every instruction set's panel width

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

inline int64_t pad_columns(int64_t n) { return round_up(n, kPad); }

// Row stride of Gram matrices and their factors, and of the similarity gradients of one pair.
inline int64_t gram_row(int64_t n) { return round_up(n, 16); }

constexpr int64_t kSlice = 256;  // columns of a feature gradient computed at once

// Row stride of copied rows: an odd number of cache lines, so that rows of a tile fall into different cache sets.
inline int64_t pad_row(int64_t elements) { return ((elements + 15) / 16 | 1) * 16; }

// One image or caption.
struct Item {
  const char* rows;       // its first row
  int64_t row_bytes;      // row stride
  const int32_t* places;  // indices of the valid rows, ascending; null where they are the first `length`
  int64_t length;         // valid rows
  int64_t first;          // valid rows of the items ahead of it
  int64_t gradient;       // row of the side's gradient for its first row
};

// Items of any number of rows, as kernels read them.
struct RaggedView {
  const Item* items;
  int64_t count;    // items
  int64_t dim;      // features of a row
  int64_t longest;  // valid rows of an item, at most
  int64_t rows;     // valid rows of all items
  Dtype dtype;
  bool masked;         // whether an item has places
  const float* norms;  // ‖row‖ of every valid row, infinity for zero rows; null where rows are not normalised

  int64_t length(int64_t item) const { return items[item].length; }
  int64_t element_bytes() const { return crossret::element_bytes(dtype); }

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

// 32-bit elements of rows that products read.
enum class Elements : int {
  floats,
  pairs,          // two successive bfloat16
  split_context,  // float32 x as bfloat16 halves x ≈ high + low: rows (high, high, low) of contexts …
  split_query     // … by rows (high, low, high) of queries give three of the four products, all but low · low
};

struct Layout {
  Elements kind;
  int64_t depth;  // elements of a row
  int64_t ld;     // row stride of copied rows, elements
  bool scaled;    // whether products are multiplied by the rows' scales
  bool copied;    // whether rows are always copied, as products read rows behind an item's last

  bool pairs() const { return kind != Elements::floats; }
};

// All pairs of some context items with some query items. The slot of a pair, its place in arrays by pair, is
// slots[i * n_queries + j], or follows from the items where slots are null.
struct Rectangle {
  const int64_t* contexts;
  int64_t n_contexts;
  const int64_t* queries;
  int64_t n_queries;
  const int64_t* slots;
  int64_t context_stride, query_stride, first_slot;
  int64_t columns;  // rows of all query items
  bool dots;        // whether products are dot products of rows: one side is too short to repay packing the other

  int64_t slot(int64_t i, int64_t j) const {
    return slots ? slots[i * n_queries + j] : contexts[i] * context_stride + queries[j] * query_stride - first_slot;
  }
};

// Successive queries of a rectangle, packed as panels, the right-hand side of products; for dot products copied row by
// row, or read in place. Cross attention takes whole items; Sum-Max may cut them.
struct QueryBlock {
  int64_t first, count;  // items of the rectangle's queries
  int64_t skip;          // rows of the first item that belong to the block before
  int64_t columns;       // rows of the block
  int64_t column;        // first column of the block in its section
  float* panels;
  float* norms;   // of every row
  float* scales;  // of every row, where the layout is scaled
  bool once;      // whether one group alone takes it: the next block's rows then come from memory
};

// Successive contexts of a rectangle, the left-hand side of products: whole items, or for Sum-Max rows of one.
struct ContextGroup {
  int64_t first, count;  // items of the rectangle's contexts
  int64_t skip;          // rows of the first item that belong to the group before
  int64_t rows;          // rows of the group
  int64_t place;         // index of the group in its section
  float* data;           // copied rows, where they are not read in place
  float* scales;         // of every row, where the layout is scaled
  float* factors;        // Gram factors, item by item, where ‖attended‖ is wanted
  bool once;             // whether one task alone takes it, whose products may then copy rows themselves
};

// Results of Sum-Max by group and column of a section, at group.place * ld + block.column.
struct Partial {
  float* values;
  float* numbers;  // of the best contexts; null where they are not wanted
  int64_t ld;
};

// Pairs by the items of one side: partners and slots of item items[k] are at offsets[k] … offsets[k + 1] − 1.
struct ItemPairs {
  const int64_t* items;
  const int64_t* offsets;
  const int64_t* partners;
  const int64_t* slots;
  int64_t count;
};

// Items [first, first + count) of an ItemPairs with the same partners in the same order; sums[k] is the k-th gradient.
struct JobGroup {
  int64_t first, count;
  float* const* sums;
};

constexpr int64_t kGroupJobs = 24;   // items of a JobGroup, at most
constexpr int64_t kGroupRows = 288;  // rows of a JobGroup of several items, at most

// Rows of a group and of a block, at most, whatever the batch.
struct Limits {
  int64_t rows;            // contexts of a group
  int64_t filled_columns;  // queries of a block
  int64_t columns;         // queries of a block, padded to whole panels
};

// The two sides of a call, their layouts and the Gram factors of contexts.
struct Operands {
  RaggedView contexts, queries;
  Layout context_layout, query_layout;
  Limits limits;
  bool factors;                   // whether ‖attended‖ is wanted
  bool vectors;                   // whether attended vectors are wanted, for which triangular factors do not serve
  const float* kept_factors;      // triangular factors made ahead of the call; else null
  int64_t kept_floats, kept_row;  // item and row stride of these; items without a stride lie one behind the other
  bool dots;                      // whether products may be dot products, whose last bits differ

  // Whether ‖Σ p c‖ of n contexts is ‖U p‖, U the triangular factor of their Gram matrix, UᵀU = C Cᵀ, or ‖Cᵀp‖, by
  // which takes fewer multiply-adds for `columns` queries (kernels.md §1).
  bool triangular(int64_t n, int64_t columns) const {
    if (vectors) return false;
    if (kept_factors != nullptr) return true;
    const double rows = static_cast<double>(n), dim = static_cast<double>(contexts.dim);
    const double factorising = rows * rows * dim * 0.75 + rows * rows * rows / 6;
    return static_cast<double>(columns) * rows * (dim - rows / 2) > factorising;
  }
  // Row stride of either factor.
  int64_t factor_row(int64_t n, bool by_triangle) const { return by_triangle ? gram_row(n) : pad_row(contexts.dim); }

  // Whether products may read the rows of an item where the caller has them: aligned elements of the layout's kind.
  static bool as_given(const RaggedView& side, const Layout& layout, const Item& item) {
    const bool whole = layout.pairs() ? side.dim % 2 == 0 : side.dtype == Dtype::float32;
    return whole && !layout.copied && side.norms == nullptr && item.row_bytes % 4 == 0 &&
           reinterpret_cast<uintptr_t>(item.rows) % 4 == 0;
  }
  // Whether the rows of a group's item are read in place: the group has one row stride, and not one by which the rows
  // of a tile fall into the same cache sets. Dot products take rows of any stride.
  bool in_place(const Rectangle& pairs, const ContextGroup& group, int64_t i) const {
    constexpr int64_t set_bytes = 4096;
    const Item& item = contexts.items[pairs.contexts[i]];
    return item.places == nullptr && as_given(contexts, context_layout, item) &&
           (pairs.dots || (group.count == 1 && item.row_bytes % set_bytes != 0));
  }

  // Contexts of an item with a triangular factor, and floats of a group's factors, at most.
  int64_t most_triangular() const { return limits.rows < 2 * contexts.dim ? limits.rows : 2 * contexts.dim; }
  int64_t most_factor_floats() const {
    const int64_t triangle = gram_row(most_triangular());
    const int64_t row = context_layout.pairs() && pad_row(contexts.dim) > triangle ? pad_row(contexts.dim) : triangle;
    return factors && kept_factors == nullptr ? limits.rows * row : 0;
  }

  // Floats of an item's factor; none where it is kept or is the copied contexts themselves.
  int64_t factor_floats(int64_t n, int64_t columns) const {
    if (!factors || kept_factors != nullptr) return 0;
    const bool by_triangle = triangular(n, columns);
    return by_triangle || context_layout.kind != Elements::floats ? n * factor_row(n, by_triangle) : 0;
  }
};

}  // namespace crossret
