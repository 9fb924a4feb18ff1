// Packing of queries as columns of panels, copies of contexts as rows, their norms and Gram factors, and the product of
// both. Contexts are the rows of products and queries their columns in either direction: norms along the queries of an
// item run along memory, and sums over contexts are sums of whole vectors.
#pragma once
#include "gemm/factor.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Calls visit(i, item, row) for n successive rows of the listed items, from row `skip` of the first on.
template <class Visit>
static inline void for_each_row(const RaggedView& side, const int64_t* items, int64_t skip, int64_t n,
                                const Visit& visit) {
  int64_t row = skip;
  for (int64_t i = 0; i < n; ++i, ++row) {
    for (; row >= side.length(*items); ++items) row -= side.length(*items);
    visit(i, *items, row);
  }
}

// Norms of a block's rows that are read in place.
static void norms_as_given(const Operands& operands, const Rectangle& pairs, const QueryBlock& block) {
  const RaggedView& side = operands.queries;
  const auto norm = [&](int64_t i, int64_t item, int64_t row) {
    if (!Operands::as_given(side, operands.query_layout, side.items[item])) return;
    block.norms[i] = row_norm(side.row(item, row), side.dtype, side.dim);
  };
  for_each_row(side, pairs.queries + block.first, block.skip, block.columns, norm);
}

static void pack_queries(const Operands& operands, const Rectangle& pairs, const QueryBlock& block, Workspace& memory) {
  const RaggedView& side = operands.queries;
  const Layout& layout = operands.query_layout;
  const int64_t* const items = pairs.queries + block.first;
  if (pairs.dots) {
    for_each_row(side, items, block.skip, block.columns, [&](int64_t i, int64_t item, int64_t row) {
      if (Operands::as_given(side, layout, side.items[item])) return;
      block.norms[i] = copy_row(layout, side, item, row, block.panels + i * layout.ld, block.scales + i);
    });
    if (!block.once) norms_as_given(operands, pairs, block);
    return;
  }
  float* const strip = memory.floats(V::width * layout.ld);
  for_each_row(side, items, block.skip, block.columns, [&](int64_t i, int64_t item, int64_t row) {
    const int64_t of_strip = i % V::width;
    block.scales[i] = 1.0f;
    block.norms[i] = copy_row(layout, side, item, row, strip + of_strip * layout.ld, block.scales + i);
    if (of_strip + 1 == V::width || i + 1 == block.columns) {
      float* const panel = panel_column(block.panels, i - of_strip, layout.depth);
      transpose_to_panels(strip, layout.ld, of_strip + 1, layout.depth, panel);
    }
  });
}

// Rows of contexts as products read them.
struct ContextRows {
  const float* data;
  int64_t ld;
};

// The rows of item i of the group, the first of which is row `row` of the group.
static ContextRows rows_of(const Operands& operands, const Rectangle& pairs, const ContextGroup& group, int64_t i,
                           int64_t row) {
  const int64_t ld = operands.context_layout.ld;
  if (!operands.in_place(pairs, group, i)) return {group.data + row * ld, ld};
  const Item& item = operands.contexts.items[pairs.contexts[i]];
  return {reinterpret_cast<const float*>(item.rows + group.skip * item.row_bytes), item.row_bytes / 4};
}

// All rows of a group, except for dot products.
static ContextRows rows_of(const Operands& operands, const Rectangle& pairs, const ContextGroup& group) {
  return rows_of(operands, pairs, group, group.first, 0);
}

// Copies rows [first, first + rows) of a group to `out` and their scales to `scales`, but rows that are read in place.
static void copy_rows(const Operands& operands, const Rectangle& pairs, const ContextGroup& group, int64_t first,
                      int64_t rows, float* out, float* scales) {
  const RaggedView& side = operands.contexts;
  const Layout& layout = operands.context_layout;
  const bool plain = side.norms == nullptr && (layout.kind == Elements::floats || layout.kind == Elements::pairs);
  int64_t i = group.first, row = group.skip + first;
  for (int64_t copied = 0, n; copied < rows; copied += n, row += n) {
    for (; row >= side.length(pairs.contexts[i]); ++i) row -= side.length(pairs.contexts[i]);
    const int64_t item = pairs.contexts[i], left = side.length(item) - row;
    n = left < rows - copied ? left : rows - copied;
    if (operands.in_place(pairs, group, i)) continue;
    float* const at = out + copied * layout.ld;
    if (plain && layout.pairs()) copy_as_pairs(layout, side, item, row, n, at);
    if (plain && !layout.pairs()) widen_rows(side, item, row, n, at, layout.ld);
    for (int64_t r = 0; !plain && r < n; ++r) {
      copy_row(layout, side, item, row + r, at + r * layout.ld, scales + copied + r);
    }
  }
}

static void copy_contexts(const Operands& operands, const Rectangle& pairs, const ContextGroup& group) {
  copy_rows(operands, pairs, group, 0, group.rows, group.data, group.scales);
}

// The next rows, as many as `rows`, after those of items [first, first + count) without the first `skip`: in the rest
// of the last item or in the item after it, rows that a mask leaves out included.
static Ahead rows_after(const RaggedView& side, const int64_t* items, int64_t n_items, int64_t first, int64_t count,
                        int64_t skip, int64_t rows) {
  const int64_t last = first + count - 1, end = count == 1 ? skip + rows : side.length(items[last]);
  const bool within = end < side.length(items[last]) || last + 1 == n_items;
  const Item& item = side.items[items[within ? last : last + 1]];
  const int64_t from = within && end < item.length ? end : 0;
  if (item.places == nullptr) return {item.rows + from * item.row_bytes, rows * item.row_bytes};
  const int64_t span = item.places[item.length - 1] + 1 - item.places[from];
  return {item.rows + item.places[from] * item.row_bytes, rows * item.row_bytes * span / (item.length - from)};
}

// The rows that are read after a product: the next of the side that comes from memory, or the next group's where both
// sides are packed.
static Ahead rows_after(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                        const QueryBlock& block) {
  if (!group.once && !block.once) {
    const auto [data, ld] = rows_of(operands, pairs, group);
    const int64_t bytes = group.rows * ld * 4;
    return {reinterpret_cast<const char*>(data) + bytes, bytes};
  }
  return group.once ? rows_after(operands.contexts, pairs.contexts, pairs.n_contexts, group.first, group.count,
                                 group.skip, group.rows)
                    : rows_after(operands.queries, pairs.queries, pairs.n_queries, block.first, block.count, block.skip,
                                 block.columns);
}

// The factor by which ‖Σ p c‖ of one item is ‖U p‖, U triangular, or ‖Cᵀ p‖.
struct Factor {
  bool triangular;
  int64_t n;     // contexts
  int64_t rows;  // rows of U or Cᵀ
  const float* data;
  int64_t ld;

  Left left() const { return triangular ? Left{data, ld, 1} : Left{data, 1, ld}; }
  Left transposed() const { return triangular ? Left{data, 1, ld} : Left{data, ld, 1}; }
};

// The factor of item i of the group; `row` and `factors` count rows and floats of factors of the items ahead of it.
static Factor factor_of(const Operands& operands, const Rectangle& pairs, const ContextGroup& group, int64_t i,
                        int64_t row, int64_t factors) {
  const int64_t n = operands.contexts.length(pairs.contexts[i]);
  if (operands.kept_factors != nullptr) {
    const int64_t context = pairs.contexts[i], first = operands.contexts.items[context].first * operands.kept_row;
    const int64_t at = operands.kept_floats > 0 ? context * operands.kept_floats : first;
    return {true, n, n, operands.kept_factors + at, operands.kept_row};
  }
  const bool triangular = operands.triangular(n, pairs.columns);
  const int64_t rows = triangular ? n : operands.contexts.dim;
  if (triangular || operands.context_layout.kind != Elements::floats) {
    return {triangular, n, rows, group.factors + factors, operands.factor_row(n, triangular)};
  }
  const ContextRows contexts = rows_of(operands, pairs, group, i, row);
  return {false, n, rows, contexts.data, contexts.ld};
}

// Workspace of factors.
struct FactorBuffers {
  float* copied;  // rows as floats, where the layout has pairs
  float* scratch;
};

static FactorBuffers take_factor_buffers(const Operands& operands, Workspace& memory) {
  const bool floats = operands.context_layout.kind == Elements::floats;
  return {memory.floats(floats ? 0 : operands.limits.rows * pad_row(operands.contexts.dim)),
          memory.floats(factor_scratch(operands.most_triangular()))};
}

// Computes the factors of a group's items.
static void make_factors(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                         const FactorBuffers& buffers) {
  if (operands.kept_factors != nullptr) return;
  const RaggedView& side = operands.contexts;
  const bool floats = operands.context_layout.kind == Elements::floats;
  int64_t row = 0, factors = 0;
  for (int64_t i = group.first; i < group.first + group.count; ++i) {
    const int64_t n = side.length(pairs.contexts[i]);
    const bool triangular = operands.triangular(n, pairs.columns);
    auto [rows, ld] = rows_of(operands, pairs, group, i, row);
    if (!floats) {
      float* const out = triangular ? buffers.copied : group.factors + factors;
      ld = pad_row(side.dim);
      for (int64_t r = 0; r < n; ++r) copy_floats(side, pairs.contexts[i], r, out + r * ld);
      rows = out;
    }
    if (triangular) factor_rows(rows, ld, n, side.dim, group.factors + factors, buffers.scratch);
    row += n;
    factors += operands.factor_floats(n, pairs.columns);
  }
}

// Stores an item's triangular factor in (longest, ld), padded with zeros, and unless it is null the norms of its rows;
// counts the workspace where `out` is null.
static void keep_factor(const RaggedView& side, int64_t item, int64_t longest, int64_t ld, float* out, float* norms,
                        Workspace& memory) {
  const int64_t row = pad_row(side.dim);
  float* const copied = memory.floats(side.longest * row);
  float* const factor = memory.floats(side.longest * gram_row(side.longest));
  float* const scratch = memory.floats(factor_scratch(side.longest));
  if (out == nullptr) return;
  const int64_t n = side.length(item);
  for (int64_t r = 0; r < n; ++r) {
    const float norm = copy_floats(side, item, r, copied + r * row);
    if (norms != nullptr) norms[r] = norm;
  }
  factor_rows(copied, row, n, side.dim, factor, scratch);
  for (int64_t r = 0; r < longest; ++r) {
    for (int64_t k = 0; k < ld; ++k) out[r * ld + k] = r < n && k < n ? factor[r * gram_row(n) + k] : 0.0f;
  }
}

// Copies the contexts of whole items and computes their factors, unless dot products do so.
static void prepare_contexts(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                             Workspace& memory) {
  copy_contexts(operands, pairs, group);
  if (!pairs.dots || !group.once) make_factors(operands, pairs, group, take_factor_buffers(operands, memory));
}

// Epilogue: stores similarities times the scales of rows and columns.
struct StoreScaled {
  Store store;
  const float* row_scales;
  const float* column_scales;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
    store.take(m, n, sums);
    for (int i = 0; i < MR; ++i) {
      for (int j = 0; j < NV; ++j) {
        float* at = store.c + (m + i) * store.ld + n + j * V::width;
        const F scale = V::mul(V::set(row_scales[m + i]), V::load(column_scales + n + j * V::width));
        V::store(at, V::mul(V::load(at), scale));
      }
    }
  }
};

// Workspace of similarities by dot products.
struct DotBuffers {
  const float** rows;  // addresses of contexts and queries
  FactorBuffers factors;
};

static DotBuffers take_dot_buffers(const Operands& operands, Workspace& memory) {
  const float** const rows = memory.addresses<const float>(operands.limits.rows + operands.limits.columns);
  return {rows, take_factor_buffers(operands, memory)};
}

// Similarities as dot products of rows, wherever they lie. Columns up to a whole vector become zero.
static void dot_similarities(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                             const QueryBlock& block, float* similarities, int64_t ld, const DotBuffers& buffers) {
  const float **const at = buffers.rows, **const columns = at + group.rows;
  int64_t row = 0;
  for (int64_t i = group.first; i < group.first + group.count; ++i) {
    const ContextRows contexts = rows_of(operands, pairs, group, i, row);
    for (int64_t r = 0; r < operands.contexts.length(pairs.contexts[i]); ++r)
      at[row++] = contexts.data + r * contexts.ld;
  }
  const RaggedView& side = operands.queries;
  const Layout& layout = operands.query_layout;
  for_each_row(side, pairs.queries + block.first, block.skip, block.columns, [&](int64_t i, int64_t item, int64_t r) {
    const bool given = Operands::as_given(side, layout, side.items[item]);
    columns[i] = given ? static_cast<const float*>(side.row(item, r)) : block.panels + i * layout.ld;
  });
  multiply_dots<SinglePrecision>(at, group.rows, columns, block.columns, layout.depth, group.once || !block.once,
                                 rows_after(operands, pairs, group, block), similarities, ld);
  // After the product, which prefetches rows from memory. The first block of a task computes the factors.
  if (block.once) norms_as_given(operands, pairs, block);
  if (group.once && block.column == 0) make_factors(operands, pairs, group, buffers.factors);
  for (int64_t r = 0; r < group.rows; ++r) {
    for (int64_t j = block.columns; j < round_up(block.columns, V::width); ++j) similarities[r * ld + j] = 0.0f;
  }
}

// The similarities of a group's contexts with all queries of a block, row stride ld. k is cut into slices, so that a
// panel's slice stays in the second cache for all rows; slices for the first cache would add to the similarities too
// often.
static void similarities_of(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                            const QueryBlock& block, float* similarities, int64_t ld, const DotBuffers& dots) {
  constexpr int64_t slice = 1024;
  if (pairs.dots) return dot_similarities(operands, pairs, group, block, similarities, ld, dots);
  const Layout& layout = operands.context_layout;
  const Tiles configured;
  const ContextRows contexts = rows_of(operands, pairs, group);
  const Ahead after = rows_after(operands, pairs, group, block);
  const int64_t slices = (layout.depth + slice - 1) / slice;
  for (int64_t k = 0; k < layout.depth; k += slice) {
    const int64_t part = layout.depth - k < slice ? layout.depth - k : slice;
    const Store store{similarities, ld, k > 0};
    const auto multiply_into = [&](const auto& epilogue) {
      multiply_rows(layout, k, part, group.rows, block.columns, contexts.data, contexts.ld, block.panels,
                    after.share(slices, k / slice), epilogue);
    };
    if (layout.scaled && k + slice >= layout.depth) {
      multiply_into(StoreScaled{store, group.scales, block.scales});
    } else {
      multiply_into(store);
    }
  }
}

// Counts the workspace of packing and of factors.
static void prepare_memory(const Operands& operands, Workspace& memory) {
  memory.floats(V::width * operands.query_layout.ld);
  take_factor_buffers(operands, memory);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
