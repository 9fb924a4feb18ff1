// Products of the first layer and of the matching: rows and panels of float32 or of pairs of bfloat16.
#pragma once
#include "gemm/dense.inl"
#include "gemm/dots.inl"
#include "heterogeneous_attention/problem.h"

namespace crossret {
namespace CROSSRET_ISA {

// Row stride of copied rows: a head's part is read up to whole vectors.
static inline int64_t layered_row(const HeterogeneousCall& call) { return pad_row(call.dim + V::width); }

static inline int64_t head_size(const HeterogeneousCall& call) { return call.dim / call.heads; }

// Whether products take pairs of bfloat16, and the elements of such a product of `depth` features.
static inline bool layered_pairs(const HeterogeneousCall& call) { return call.bfloat16 && V::bf16_dots; }
static inline int64_t layered_depth(const HeterogeneousCall& call, int64_t depth) {
  return layered_pairs(call) ? paired_depth(depth) : depth;
}

// Row stride of rows of `dim` features as pairs of bfloat16.
static inline int64_t unit_pair_row(const HeterogeneousCall& call) {
  return layered_pairs(call) ? pad_row(layered_depth(call, call.dim)) : 0;
}

// Rows that a product of n rows of pairs reads: whole tiles of AMX.
static inline int64_t read_rows(int64_t n) { return round_up(n, Tiles::rows); }

// Floats of the values' panels of some items, which together have `rows` rows.
static inline int64_t value_panels(const HeterogeneousCall& call, int64_t items, int64_t rows) {
  const int64_t most = rows * call.heads;
  return pad_columns(call.dim) * (layered_pairs(call) ? most / 2 + items * Tiles::depth : most);
}

// Panels `depth` deep of the rows row(i), zeros for null. Pairs of bfloat16 take two successive rows each.
template <class Find>
static void rows_to_panels(bool pairs, const Find& row, int64_t columns, int64_t depth, float* out) {
  const auto load = [&](const float* from, int64_t k) { return from ? V::load(from + k, columns - k) : V::zero(); };
  for (int64_t d = 0; d < depth; ++d) {
    const float *const first = row(pairs ? 2 * d : d), *const second = pairs ? row(2 * d + 1) : nullptr;
    for (int64_t k = 0; k < columns; k += V::width) {
      F x = load(first, k);
      if (pairs) x = pair_of(x, load(second, k));
      V::store(panel_column(out, k, depth) + d * kPanel, x);
    }
  }
}

// Panels of an item's values, (n, heads, dim), whose rows are ordered by (row, head) or by (head, row).
static void pack_values(const HeterogeneousCall& call, const float* values, int64_t n, bool by_head, float* out) {
  const int64_t count = n * call.heads;
  const auto row = [&](int64_t i) {
    return i < count ? values + (by_head ? i % n * call.heads + i / n : i) * call.dim : nullptr;
  };
  rows_to_panels(layered_pairs(call), row, call.dim, layered_depth(call, count), out);
}

// Pairs of bfloat16 of n rows of a left-hand side, `depth` elements each, then zeros up to `places` pairs.
static void pair_left(const Left& from, int64_t n, int64_t depth, int64_t places, float* out, int64_t ld) {
  const Layout pairs{Elements::pairs, places, ld, false, false};
  dense_rows<DenseElements::pairs>({from.data, from.row, from.k}, {0, depth}, 0, n, pairs, out);
}

// Workspace for both sides of a product as pairs of bfloat16: rows of the left one, panels of the right one.
struct PairedFactors {
  float *rows, *panels;

  // The largest n, `columns` and `depth` of the products.
  PairedFactors(const HeterogeneousCall& call, int64_t n, int64_t columns, int64_t depth, Workspace& memory) {
    const int64_t places = layered_pairs(call) ? paired_depth(depth) : 0;
    rows = memory.floats(read_rows(n) * (places > 0 ? pad_row(places) : 0));
    panels = memory.floats(pad_columns(columns) * places);
  }
};

// The product of A, n × depth, with rows in place, depth × columns, row stride ld.
template <class Epilogue>
static void multiply_placed(const HeterogeneousCall& call, int64_t n, int64_t columns, int64_t depth, const Left& a,
                            const float* rows, int64_t ld, const PairedFactors& factors, const Epilogue& epilogue) {
  if (!layered_pairs(call)) return multiply(n, columns, AllOf{depth}, a, {rows, kPanel, ld}, epilogue);
  const int64_t places = paired_depth(depth);
  pair_left(a, n, depth, places, factors.rows, pad_row(places));
  rows_to_panels(true, [&](int64_t i) { return i < depth ? rows + i * ld : nullptr; }, columns, places, factors.panels);
  multiply_either(true, n, columns, places, {factors.rows, pad_row(places), 1},
                  {factors.panels, places * kPanel, kPanel}, epilogue);
}

// Row stride of queries and keys as pairs of bfloat16; each head's pairs begin with its first feature.
static inline int64_t paired_row(const HeterogeneousCall& call) {
  return layered_pairs(call) ? pad_row(call.heads * layered_depth(call, head_size(call))) : 0;
}

static void pair_heads(const HeterogeneousCall& call, const float* rows, int64_t n, float* out) {
  const int64_t size = head_size(call), depth = layered_depth(call, size);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t h = 0; h < call.heads; ++h) {
      const float* const from = rows + r * layered_row(call) + h * size;
      uint16_t* const to = reinterpret_cast<uint16_t*>(out + r * paired_row(call) + h * depth);
      for (int64_t k = 0; k < 2 * depth; k += V::width) {
        V::store_bf16(to + k, k < size ? V::load(from + k, size - k) : V::zero(), 2 * depth - k);
      }
    }
  }
}

// n rows of `dim` features times a factor, zeros behind each up to a whole vector.
static void scale_rows(const float* rows, int64_t n, int64_t dim, float factor, float* out, int64_t ld) {
  for (int64_t r = 0; r < n; ++r, rows += dim, out += ld) {
    for (int64_t k = 0; k < dim; k += V::width) {
      V::store(out + k, V::mul(V::load(rows + k, dim - k), V::set(factor)));
    }
  }
}

// One head of queries or keys as the left-hand side of their logits.
static Left logit_rows(const HeterogeneousCall& call, const float* rows, const float* pairs, int64_t head) {
  if (layered_pairs(call)) return {pairs + head * layered_depth(call, head_size(call)), paired_row(call), 1};
  return {rows + head * head_size(call), layered_row(call), 1};
}

// The rows as panels of every head, `panels_of_head` floats each.
static void pack_logit_columns(const HeterogeneousCall& call, const float* rows, int64_t n, float* pairs,
                               int64_t panels_of_head, float* panels) {
  if (layered_pairs(call)) pair_heads(call, rows, n, pairs);
  for (int64_t h = 0; h < call.heads; ++h) {
    const Left own = logit_rows(call, rows, pairs, h);
    transpose_to_panels(own.data, own.row, n, layered_depth(call, head_size(call)), panels + h * panels_of_head);
  }
}

// A block's captions as products read them. The global matching has one query a caption.
struct PackedCaptions {
  int64_t ld, n_keys, n_queries;
  float *keys, *queries;                  // rows
  float *key_panels, *query_panels;       // of every head
  int64_t keys_of_head, queries_of_head;  // floats
  float* values;                          // panels of each caption, head by head
  float* own_logits;                      // (heads, row)
  int64_t row;                            // pad_row(n_queries)
  float* pairs;                           // rows on their way to panels

  PackedCaptions(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& memory)
      : ld(layered_row(call)), n_keys(block.words), n_queries(call.local ? block.words : block.count) {
    keys = memory.floats(n_keys * ld);
    queries = memory.floats(n_queries * ld);
    const int64_t depth = layered_depth(call, head_size(call));
    keys_of_head = pad_columns(n_keys) * depth;
    queries_of_head = pad_columns(n_queries) * depth;
    key_panels = memory.floats(call.heads * keys_of_head);
    query_panels = memory.floats(call.heads * queries_of_head);
    values = memory.floats(value_panels(call, block.count, n_keys));
    row = pad_row(n_queries);
    own_logits = memory.floats(call.heads * row);
    pairs = memory.floats(n_keys * paired_row(call));
  }
};

static inline PackedCaptions packed_of(const HeterogeneousCall& call, const CaptionBlock& block) {
  Workspace memory(block.memory);
  return PackedCaptions(call, block, memory);
}

// Calls visit(caption, its first key, its first query, its queries) for every caption of a block.
template <class Visit>
static inline void each_caption(const HeterogeneousCall& call, const CaptionBlock& block, const Visit& visit) {
  int64_t key = 0, query = 0;
  for (int64_t caption = block.first; caption < block.first + block.count; ++caption) {
    const int64_t queries = call.local ? call.captions.lengths[caption] : 1;
    visit(caption, key, query, queries);
    key += call.captions.lengths[caption];
    query += queries;
  }
}

static void pack_captions(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& memory) {
  const PackedCaptions packed(call, block, memory);
  if (block.memory == nullptr) return;
  const FirstLayer& side = call.captions;
  const int64_t heads = call.heads, dim = call.dim, ld = packed.ld;
  each_caption(call, block, [&](int64_t caption, int64_t key, int64_t query, int64_t queries) {
    const int64_t first = caption * side.width;
    scale_rows(side.keys + first * dim, side.lengths[caption], dim, 1.0f, packed.keys + key * ld, ld);
    scale_rows(side.queries + first * dim, queries, dim, 1.0f, packed.queries + query * ld, ld);
    pack_values(call, side.values + first * heads * dim, side.lengths[caption], true,
                packed.values + value_panels(call, caption - block.first, key));
    for (int64_t q = 0; q < queries; ++q) {
      for (int64_t h = 0; h < heads; ++h) {
        packed.own_logits[h * packed.row + query + q] = side.own_logits[(first + q) * heads + h];
      }
    }
  });
  pack_logit_columns(call, packed.keys, packed.n_keys, packed.pairs, packed.keys_of_head, packed.key_panels);
  pack_logit_columns(call, packed.queries, packed.n_queries, packed.pairs, packed.queries_of_head, packed.query_panels);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t q = packed.n_queries; q < round_up(packed.n_queries, V::width); ++q) {
      packed.own_logits[h * packed.row + q] = 0.0f;
    }
  }
}

// n rows of `dim` features.
struct MatchedRows {
  const float* data;
  int64_t n, ld;
  const float* nonzero;          // norm of every unit row: 1, or 0 of a zero row; null where it is not needed
  const float* pairs = nullptr;  // the rows as pairs of bfloat16, where products take these
};

// Rows [first, first + n) of those that `unit_rows` wrote.
static inline MatchedRows matched_rows(const HeterogeneousCall& call, const float* units, const float* pairs,
                                       const float* nonzero, int64_t first, int64_t n) {
  const int64_t ld = layered_row(call);
  return {units + first * ld, n, ld, nonzero + first,
          layered_pairs(call) ? pairs + first * unit_pair_row(call) : nullptr};
}

// Rows with row stride ld; `pairs` receives them as pairs of bfloat16, where products take these.
static MatchedRows as_rows(const HeterogeneousCall& call, const float* data, int64_t n, int64_t ld, float* pairs) {
  if (!layered_pairs(call)) return {data, n, ld, nullptr, nullptr};
  pair_left({data, ld, 1}, n, call.dim, layered_depth(call, call.dim), pairs, unit_pair_row(call));
  return {data, n, ld, nullptr, pairs};
}

// Workspace of dot products of n rows with `columns` rows.
struct DotScratch {
  const float** rows;  // addresses of both
  float* panels;       // the columns, where AMX multiplies

  DotScratch(const HeterogeneousCall& call, int64_t n, int64_t columns, Workspace& memory)
      : rows(memory.addresses<const float>(n + columns)),
        panels(memory.floats(Tiles::present ? pad_columns(columns) * unit_pair_row(call) : 0)) {}
};

// out = rows · columnsᵀ, row stride ld.
static void row_dots(const HeterogeneousCall& call, const MatchedRows& rows, const MatchedRows& columns,
                     const DotScratch& scratch, float* out, int64_t ld) {
  const bool pairs = rows.pairs != nullptr && columns.pairs != nullptr;
  const int64_t row = unit_pair_row(call), depth = pairs ? layered_depth(call, call.dim) : call.dim;
  if (pairs && Tiles::present) {
    transpose_to_panels(columns.pairs, row, columns.n, depth, scratch.panels);
    return multiply_either(true, rows.n, columns.n, depth, {rows.pairs, row, 1},
                           {scratch.panels, depth * kPanel, kPanel}, DenseStore{out, ld, columns.n, nullptr, false});
  }
  const float **const of_rows = scratch.rows, **const of_columns = of_rows + rows.n;
  for (int64_t r = 0; r < rows.n; ++r) of_rows[r] = pairs ? rows.pairs + r * row : rows.data + r * rows.ld;
  for (int64_t c = 0; c < columns.n; ++c) {
    of_columns[c] = pairs ? columns.pairs + c * row : columns.data + c * columns.ld;
  }
  multiply_either_dots(pairs, of_rows, rows.n, of_columns, columns.n, depth, out, ld);
}

// Epilogue: C += factor · product, `columns` of it.
struct AddScaled {
  float* c;
  int64_t ld, columns;
  float factor;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        const int64_t left = columns - n - j * V::width;
        float* const out = c + (m + i) * ld + n + j * V::width;
        V::store(out, V::fma(V::set(factor), sums[i][j], V::load(out, left)), left);
      }
    }
  }
};

// One term of a sum of products A · B: B in place, row stride k.
struct Term {
  Left a;
  const float* b;
  int64_t k, depth;
};

template <class Find>
struct SumOfProducts {
  int64_t count;
  const Find& find;  // find(i): the i-th term
  AddScaled out;

  template <int MR, int NV>
  __attribute__((noinline)) void tile(int64_t m, int64_t n) const {
    F sums[MR][NV];
    clear_tile(sums);
    for (int64_t i = 0; i < count; ++i) {
      const Term term = find(i);
      add_to_tile<Floats, false>(sums, term.depth, {term.a.data + m * term.a.row, term.a.row, term.a.k}, term.b + n,
                                 term.k, {});
    }
    out.take(m, n, sums);
  }
};

template <class Find>
static void add_products(int64_t rows, int64_t columns, int64_t count, const Find& find, const AddScaled& out) {
  for_each_tile(rows, columns, SumOfProducts<Find>{count, find, out});
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
