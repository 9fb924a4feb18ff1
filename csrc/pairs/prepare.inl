// Brings the two sides of a product to where it reads them: queries packed as columns of panels, contexts as rows, with
// what cross attention asks of either. Whatever the direction, contexts are the rows of products and queries their
// columns: what runs along the queries of an item runs along memory, and what is summed over contexts is summed down
// the columns, whole vectors at a time.
namespace crossret {
namespace CROSSRET_ISA {

static void pack_queries(const Operands& operands, const Rectangle& pairs, const QueryBlock& block, Workspace& memory) {
  const Side& side = operands.queries;
  const Layout& layout = operands.query_layout;
  float* const strip = memory.floats(V::width * layout.ld);
  int64_t item = block.first, row = block.skip;
  for (int64_t column = 0; column < block.columns; column += V::width) {
    const int64_t n = block.columns - column < V::width ? block.columns - column : V::width;
    for (int64_t i = 0; i < n; ++i, ++row) {
      for (; row >= side.length(pairs.queries[item]); ++item) row -= side.length(pairs.queries[item]);
      float scale = 1.0f;
      block.norms[column + i] = copy_row(layout, side, pairs.queries[item], row, strip + i * layout.ld, &scale);
      block.scales[column + i] = scale;
    }
    transpose_to_panels(strip, layout.ld, n, layout.depth, panel_column(block.panels, column, layout.depth));
  }
}

// The rows of contexts where they are read.
struct ContextRows {
  const float* data;
  int64_t ld;
};

static ContextRows rows_of(const Operands& operands, const Rectangle& pairs, const ContextGroup& group) {
  if (!operands.in_place(pairs, group)) return {group.data, operands.context_layout.ld};
  const Item& item = operands.contexts.items[pairs.contexts[group.first]];
  return {reinterpret_cast<const float*>(item.rows + group.skip * item.row_bytes), item.row_bytes / 4};
}

static void copy_contexts(const Operands& operands, const Rectangle& pairs, const ContextGroup& group) {
  if (operands.in_place(pairs, group)) return;
  const Side& side = operands.contexts;
  const Layout& layout = operands.context_layout;
  const bool plain = side.norms == nullptr && layout.kind == Elements::floats;
  int64_t item = group.first, row = group.skip;
  for (int64_t i = 0; i < group.rows; ++i, ++row) {
    for (; row >= side.length(pairs.contexts[item]); ++item) row -= side.length(pairs.contexts[item]);
    float* const out = group.data + i * layout.ld;
    if (plain) {
      widen_row(side, pairs.contexts[item], row, out);
    } else {
      copy_row(layout, side, pairs.contexts[item], row, out, group.scales + i);
    }
  }
}

// Where as many rows begin as will be copied after those of a group or block, whose last item is the `last` and ends at
// `end`: in what is left of it or in the next; and how far apart they lie in the mean, holes included.
static Ahead rows_after(const Side& side, const int64_t* items, int64_t n_items, int64_t last, int64_t end) {
  const bool within = end < side.length(items[last]) || last + 1 == n_items;
  const Item& item = side.items[items[within ? last : last + 1]];
  const int64_t first = within && end < item.length ? end : 0;
  if (item.places == nullptr) return {item.rows + first * item.row_bytes, item.row_bytes, 0};
  const int64_t span = item.places[item.length - 1] + 1 - item.places[first];
  return {item.rows + item.places[first] * item.row_bytes, item.row_bytes * span / (item.length - first), 0};
}

static Ahead contexts_after(const Operands& operands, const Rectangle& pairs, const ContextGroup& group) {
  const int64_t last = group.first + group.count - 1;
  const int64_t end = group.count == 1 ? group.skip + group.rows : operands.contexts.length(pairs.contexts[last]);
  return rows_after(operands.contexts, pairs.contexts, pairs.n_contexts, last, end);
}

// As many rows of queries for a panel as it has columns.
static Ahead queries_after(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                           const QueryBlock& block) {
  const int64_t last = block.first + block.count - 1;
  const int64_t end = block.count == 1 ? block.skip + block.columns : operands.queries.length(pairs.queries[last]);
  const Ahead next = rows_after(operands.queries, pairs.queries, pairs.n_queries, last, end);
  return {next.data, kPanel * next.row_bytes / group.rows, kPanel * next.row_bytes};
}

// What ‖Σ p c‖ of one item is made by: U p, U triangular, or Cᵀ p.
struct Factor {
  bool triangular;
  int64_t n;     // contexts
  int64_t rows;  // of U or Cᵀ
  const float* data;
  int64_t ld;

  Left left() const { return triangular ? Left{data, ld, 1} : Left{data, 1, ld}; }
  Left transposed() const { return triangular ? Left{data, 1, ld} : Left{data, ld, 1}; }
};

// The factor of an item of the group; `row` and `factors` are those of the items ahead of it.
static Factor factor_of(const Operands& operands, const Rectangle& pairs, const ContextGroup& group, int64_t n,
                        int64_t row, int64_t factors) {
  const bool triangular = operands.triangular(n, pairs.columns);
  const int64_t rows = triangular ? n : operands.contexts.dim;
  if (triangular || operands.context_layout.kind != Elements::floats) {
    return {triangular, n, rows, group.factors + factors, operands.factor_row(n, triangular)};
  }
  const ContextRows contexts = rows_of(operands, pairs, group);
  return {false, n, rows, contexts.data + row * contexts.ld, contexts.ld};
}

// Copies the contexts of whole items and makes their factors.
static void prepare_contexts(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                             Workspace& memory) {
  copy_contexts(operands, pairs, group);
  const Side& side = operands.contexts;
  const Layout& layout = operands.context_layout;
  const bool floats = layout.kind == Elements::floats;
  float* const scratch = memory.floats(factor_scratch(operands.most_triangular()));
  float* const copied = floats ? nullptr : memory.floats(operands.limits.rows * pad_row(side.dim));
  const ContextRows contexts = rows_of(operands, pairs, group);
  int64_t row = 0, factors = 0;
  for (int64_t i = group.first; i < group.first + group.count; ++i) {
    const int64_t n = side.length(pairs.contexts[i]);
    const bool triangular = operands.triangular(n, pairs.columns);
    const float* rows = contexts.data + row * contexts.ld;
    int64_t ld = contexts.ld;
    if (!floats) {
      float* const out = triangular ? copied : group.factors + factors;
      ld = pad_row(side.dim);
      for (int64_t r = 0; r < n; ++r) copy_floats(side, pairs.contexts[i], r, out + r * ld);
      rows = out;
    }
    if (triangular) factor_rows(rows, ld, n, side.dim, group.factors + factors, scratch);
    row += n;
    factors += operands.factor_floats(n, pairs.columns);
  }
}

// Epilogue: the similarities, stored; multiplied by the scales of rows and columns at last, where there are such.
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

// The similarities of a group's contexts with all queries of a block, row stride ld. Cut into slices of k so that a
// panel's slice stays in the second cache while every row passes over it. Shorter slices would fit the first cache, and
// lose more by going over the similarities again.
static void similarities_of(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                            const QueryBlock& block, float* similarities, int64_t ld) {
  constexpr int64_t slice = 1024;
  const Layout& layout = operands.context_layout;
  const ContextRows contexts = rows_of(operands, pairs, group);
  Ahead ahead{nullptr, 0, 0};
  if (block.once) ahead = queries_after(operands, pairs, group, block);
  if (group.once) ahead = contexts_after(operands, pairs, group);
  for (int64_t k = 0; k < layout.depth; k += slice) {
    const int64_t part = layout.depth - k < slice ? layout.depth - k : slice;
    const Store store{similarities, ld, k > 0};
    const auto multiply_into = [&](const auto& epilogue) {
      multiply_rows(layout, k, part, group.rows, block.columns, contexts.data, contexts.ld, block.panels, ahead,
                    epilogue);
    };
    if (layout.scaled && k + slice >= layout.depth) {
      multiply_into(StoreScaled{store, group.scales, block.scales});
    } else {
      multiply_into(store);
    }
  }
}

// Workspace of either step, counted by a run without memory.
static void prepare_memory(const Operands& operands, Workspace& memory) {
  memory.floats(V::width * operands.query_layout.ld);
  memory.floats(factor_scratch(operands.most_triangular()));
  memory.floats(operands.limits.rows * pad_row(operands.contexts.dim));
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
