// The first layer of heterogeneous attention between one image and a block of captions (HAN §3.2): logits across, their
// softmax merged with what each row has of its own item, and the rows that come of it, normalised.
#pragma once
#include "gemm/dense.inl"
#include "heterogeneous_attention/problem.h"
#include "pairs/prepare.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Row stride of copied rows; a head's part is read up to whole vectors.
static inline int64_t layered_row(const HeterogeneousCall& call) { return pad_row(call.dim + V::width); }

static inline int64_t head_size(const HeterogeneousCall& call) { return call.dim / call.heads; }

// Whether products take pairs of bfloat16, and how many elements a product then goes over.
static inline bool layered_pairs(const HeterogeneousCall& call) { return call.bfloat16 && V::bf16_dots; }
static inline int64_t layered_depth(const HeterogeneousCall& call, int64_t depth) {
  return layered_pairs(call) ? paired_depth(depth) : depth;
}

// Rows of pairs that a product reads where it takes n.
static inline int64_t read_rows(int64_t n) { return round_up(n, Tiles::rows); }

// Where the values of an item begin as panels, so many items and rows being ahead of it.
static inline int64_t value_panels(const HeterogeneousCall& call, int64_t items, int64_t rows) {
  const int64_t most = rows * call.heads;
  return pad_columns(call.dim) * (layered_pairs(call) ? most / 2 + items * Tiles::depth : most);
}

// Rows that row(i) finds, null where there is none, as panels so deep; of pairs two of them at each place.
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

// An item's values, n rows of (heads, dim), as panels: row by row, or head by head.
static void pack_values(const HeterogeneousCall& call, const float* values, int64_t n, bool by_head, float* out) {
  const int64_t count = n * call.heads;
  const auto row = [&](int64_t i) {
    return i < count ? values + (by_head ? i % n * call.heads + i / n : i) * call.dim : nullptr;
  };
  rows_to_panels(layered_pairs(call), row, call.dim, layered_depth(call, count), out);
}

// n rows of a left-hand side, so deep, as pairs of bfloat16, zeros behind in so many places as there are.
static void pair_left(const Left& from, int64_t n, int64_t depth, int64_t places, float* out, int64_t ld) {
  const Layout pairs{Elements::pairs, places, ld, false, false};
  dense_rows<DenseElements::pairs>({from.data, from.row, from.k}, {0, depth}, 0, n, pairs, out);
}

// Where factors of a product become pairs of bfloat16: the left-hand side's rows and the right one's panels.
struct PairedFactors {
  float *rows, *panels;

  // Of products of so many rows and columns, and so deep, at most.
  PairedFactors(const HeterogeneousCall& call, int64_t n, int64_t columns, int64_t depth, Workspace& memory) {
    const int64_t places = layered_pairs(call) ? paired_depth(depth) : 0;
    rows = memory.floats(read_rows(n) * (places > 0 ? pad_row(places) : 0));
    panels = memory.floats(pad_columns(columns) * places);
  }
};

// A product with rows that lie in place, ld apart.
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

// Row stride of logits' factors as pairs, and n rows so: the pairs of every head begin with the first of its features.
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

// n rows of `dim`, multiplied by a factor; zeros up to a whole vector behind each.
static void copy_rows(const float* rows, int64_t n, int64_t dim, float factor, float* out, int64_t ld) {
  for (int64_t r = 0; r < n; ++r, rows += dim, out += ld) {
    for (int64_t k = 0; k < dim; k += V::width) {
      V::store(out + k, V::mul(V::load(rows + k, dim - k), V::set(factor)));
    }
  }
}

// Rows as products of logits read them, heads side by side.
static Left logit_rows(const HeterogeneousCall& call, const float* rows, const float* pairs, int64_t head) {
  if (layered_pairs(call)) return {pairs + head * layered_depth(call, head_size(call)), paired_row(call), 1};
  return {rows + head * head_size(call), layered_row(call), 1};
}

// The same as the columns of panels of every head, each `panels_of_head` floats.
static void pack_logit_columns(const HeterogeneousCall& call, const float* rows, int64_t n, float* pairs,
                               int64_t panels_of_head, float* panels) {
  if (layered_pairs(call)) pair_heads(call, rows, n, pairs);
  for (int64_t h = 0; h < call.heads; ++h) {
    const Left own = logit_rows(call, rows, pairs, h);
    transpose_to_panels(own.data, own.row, n, layered_depth(call, head_size(call)), panels + h * panels_of_head);
  }
}

// The rows of a block's captions as products read them. Of the global matching each caption has one query.
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
    copy_rows(side.keys + first * dim, side.lengths[caption], dim, 1.0f, packed.keys + key * ld, ld);
    copy_rows(side.queries + first * dim, queries, dim, 1.0f, packed.queries + query * ld, ld);
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

// An image against a block: its rows copied, queries and keys multiplied by λ; and the weights of either side.
struct LayerScratch {
  int64_t n_queries;                       // of the image
  int64_t key_row, query_row;              // pad_row of the block's
  int64_t region_factor_row;               // of regions' weights with one caption, as a product reads them
  int64_t word_factor_row;                 // of words' with the image, where these are pairs
  float *queries, *keys, *values;          // rows; panels, row by row
  float *query_pairs, *key_pairs;          // where logits are products of these
  float* region_weights;                   // (queries, heads, key_row)
  float* region_own;                       // (captions, queries, heads)
  float* region_factors;                   // (queries, region_factor_row), head by head
  float* word_weights;                     // (keys, heads, query_row)
  float* word_factors;                     // (queries, word_factor_row), region by region
  float* word_own;                         // (heads, query_row)
  const float **region_rows, **word_rows;  // own values of every query

  // In `kept` is what the gradients of captions take, too.
  LayerScratch(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& memory, Workspace& kept) {
    const int64_t most = call.images.longest, heads = call.heads, ld = layered_row(call);
    n_queries = call.local ? most : 1;
    key_row = pad_row(block.words);
    query_row = pad_row(call.local ? block.words : block.count);
    region_factor_row = pad_row(layered_depth(call, heads * block.longest) + V::width);
    word_factor_row = layered_pairs(call) ? pad_row(layered_depth(call, heads * most)) : 0;
    queries = kept.floats(n_queries * ld);
    keys = kept.floats(most * ld);
    values = memory.floats(value_panels(call, 1, most));
    region_weights = kept.floats(n_queries * heads * key_row);
    region_own = memory.floats(block.count * round_up(n_queries * heads, V::width));
    region_factors = memory.floats(read_rows(n_queries) * region_factor_row);
    query_pairs = memory.floats(read_rows(n_queries) * paired_row(call));
    key_pairs = memory.floats(read_rows(most) * paired_row(call));
    word_weights = memory.floats(most * heads * query_row);
    word_factors = memory.floats(read_rows(query_row) * word_factor_row);
    word_own = kept.floats(heads * query_row);
    region_rows = reinterpret_cast<const float**>(memory.floats(2 * n_queries));
    word_rows = reinterpret_cast<const float**>(memory.floats(2 * query_row));
  }
};

struct Max {
  F operator()(F a, F b) const { return V::max(a, b); }
};

// Of rows of queries, heads side by side, their softmax over one caption's n keys and `own`, the logit that each has of
// its own item; the weight of that goes to `own_weights`.
static void softmax_across(float* logits, int64_t ld, int64_t rows, int64_t n, const float* own, float* own_weights) {
  for (int64_t first = 0; first < rows; first += V::width, logits += V::width * ld) {
    const int64_t count = rows - first < V::width ? rows - first : V::width;
    const F own_logit = V::load(own + first, count);
    alignas(64) float factors[V::width];
    F parts[V::width];
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      parts[i] = V::zero();
      if (i >= count) continue;
      const F first_of_row = V::set(logits[i * ld]);
      F most = first_of_row;
      for (int64_t j = 0; j < n; j += V::width) {
        const F x = V::load(logits + i * ld + j, n - j);
        most = V::max(n - j < V::width ? V::select(V::lanes(n - j), x, first_of_row) : x, most);
      }
      parts[i] = most;
    }
    const F most = V::max(V::reduce_rows(parts, Max{}), own_logit);
    V::store(factors, most);
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      parts[i] = V::zero();
      if (i >= count) continue;
      for (int64_t j = 0; j < n; j += V::width) {
        float* const at = logits + i * ld + j;
        const F e = V::keep_first(exp(V::sub(V::load(at, n - j), V::set(factors[i]))), n - j);
        V::store(at, e, n - j);
        parts[i] = V::add(parts[i], e);
      }
    }
    const F own_weight = exp(V::sub(own_logit, most));
    const F inverse = V::div(V::set(1.0f), V::add(sum_rows(parts), own_weight));
    V::store(own_weights + first, V::mul(own_weight, inverse));
    V::store(factors, inverse);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < n; j += V::width) {
        float* const at = logits + i * ld + j;
        V::store(at, V::mul(V::load(at, n - j), V::set(factors[i])), n - j);
      }
    }
  }
}

// The same of queries as columns, of one head: over n keys, `step` apart.
static void softmax_down(float* logits, int64_t step, int64_t n, int64_t columns, const float* own,
                         float* own_weights) {
  for (int64_t j = 0; j < columns; j += V::width) {
    float* const at = logits + j;
    const F own_logit = V::load(own + j);
    F most = own_logit, sum;
    for (int64_t r = 0; r < n; ++r) most = V::max(V::load(at + r * step), most);
    const F own_weight = sum = exp(V::sub(own_logit, most));
    for (int64_t r = 0; r < n; ++r) {
      const F e = exp(V::sub(V::load(at + r * step), most));
      V::store(at + r * step, e);
      sum = V::add(sum, e);
    }
    const F inverse = V::div(V::set(1.0f), sum);
    V::store(own_weights + j, V::mul(own_weight, inverse));
    for (int64_t r = 0; r < n; ++r) V::store(at + r * step, V::mul(V::load(at + r * step), inverse));
  }
}

// Copies an image's rows and makes all weights.
static void weigh_across(const HeterogeneousCall& call, const CaptionBlock& block, const PackedCaptions& packed,
                         int64_t image, const LayerScratch& scratch) {
  const FirstLayer& side = call.images;
  const int64_t heads = call.heads, dim = call.dim, ld = packed.ld, depth = layered_depth(call, head_size(call));
  const int64_t n = side.lengths[image], queries = call.local ? n : 1, first = image * side.width;
  const int64_t key_row = scratch.key_row, query_row = scratch.query_row;
  copy_rows(side.queries + first * dim, queries, dim, call.lambda_attention, scratch.queries, ld);
  copy_rows(side.keys + first * dim, n, dim, call.lambda_attention, scratch.keys, ld);
  if (layered_pairs(call)) {
    pair_heads(call, scratch.queries, queries, scratch.query_pairs);
    pair_heads(call, scratch.keys, n, scratch.key_pairs);
  }
  pack_values(call, side.values + first * heads * dim, n, false, scratch.values);
  for (int64_t r = 0; r < queries; ++r) scratch.region_rows[r] = side.own_values + (first + r) * (heads + 1) * dim;
  each_caption(call, block, [&](int64_t caption, int64_t, int64_t query, int64_t n_queries) {
    for (int64_t q = 0; q < n_queries; ++q) {
      scratch.word_rows[query + q] = call.captions.own_values + (caption * call.captions.width + q) * (heads + 1) * dim;
    }
  });
  for (int64_t h = 0; h < heads; ++h) {
    multiply_either(layered_pairs(call), queries, packed.n_keys, depth,
                    logit_rows(call, scratch.queries, scratch.query_pairs, h),
                    {packed.key_panels + h * packed.keys_of_head, depth * kPanel, kPanel},
                    Store{scratch.region_weights + h * key_row, heads * key_row, false});
    float* const logits = scratch.word_weights + h * query_row;
    multiply_either(layered_pairs(call), n, packed.n_queries, depth,
                    logit_rows(call, scratch.keys, scratch.key_pairs, h),
                    {packed.query_panels + h * packed.queries_of_head, depth * kPanel, kPanel},
                    Store{logits, heads * query_row, false});
    softmax_down(logits, heads * query_row, n, packed.n_queries, packed.own_logits + h * packed.row,
                 scratch.word_own + h * query_row);
  }
  if (layered_pairs(call)) {
    pair_left({scratch.word_weights, 1, query_row}, packed.n_queries, n * heads, paired_depth(n * heads),
              scratch.word_factors, scratch.word_factor_row);
  }
  each_caption(call, block, [&](int64_t caption, int64_t key, int64_t, int64_t) {
    softmax_across(scratch.region_weights + key, key_row, queries * heads, call.captions.lengths[caption],
                   side.own_logits + first * heads,
                   scratch.region_own + (caption - block.first) * round_up(scratch.n_queries * heads, V::width));
  });
}

// Rows that begin with the residual and what each has of its own item, (heads + 1, dim), in so many pairs: in pair p
// the weight of row m and head h is at p * pair + m * row + h * head. What is read of the item serves them all, as it
// is more than the first caches hold.
struct OwnWeights {
  const float* data;
  int64_t pair, row, head;
};

template <int pairs>
static void own_rows(const HeterogeneousCall& call, const float* const* own, const OwnWeights& weights, int64_t n,
                     float* out, int64_t ld, int64_t out_of_pair) {
  const int64_t heads = call.heads, dim = call.dim;
  for (int64_t m = 0; m < n; ++m) {
    const float *const values = own[m], *const of_row = weights.data + m * weights.row;
    for (int64_t k = 0; k < dim; k += 2 * V::width) {
      const int64_t left = dim - k;
      const auto load = [&](int64_t h, int64_t j) {
        return left > j ? V::load(values + h * dim + k + j, left - j) : V::zero();
      };
      F sums[pairs][2];
#pragma GCC unroll 4
      for (auto& sum : sums) sum[0] = load(heads, 0), sum[1] = load(heads, V::width);
      for (int64_t h = 0; h < heads; ++h) {
        const F first = load(h, 0), second = load(h, V::width);
#pragma GCC unroll 4
        for (int p = 0; p < pairs; ++p) {
          const F weight = V::set(of_row[p * weights.pair + h * weights.head]);
          sums[p][0] = V::fma(weight, first, sums[p][0]);
          sums[p][1] = V::fma(weight, second, sums[p][1]);
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < pairs; ++p) {
        float* const to = out + p * out_of_pair + m * ld + k;
        V::store(to, sums[p][0]);
        if (left > V::width) V::store(to + V::width, sums[p][1]);
      }
    }
  }
}

// Weights of n rows with a caption as a product reads them, every head's behind the one before.
static void gather_weights(const HeterogeneousCall& call, const float* weights, int64_t row, int64_t n, int64_t words,
                           float* out, int64_t ld) {
  const int64_t count = call.heads * words;
  for (int64_t m = 0; m < n; ++m, out += ld) {
    uint16_t* const bits = reinterpret_cast<uint16_t*>(out);
    for (int64_t k = 0; layered_pairs(call) && k < layered_depth(call, count); k += V::width) {
      V::store(out + k, V::zero());
    }
    for (int64_t at = 0; at < count; at += words, weights += row) {
      for (int64_t j = 0; j < words; j += V::width) {
        const F x = V::load(weights + j, words - j);
        if (layered_pairs(call)) {
          V::store_bf16(bits + at + j, x, V::width);
        } else {
          V::store(out + at + j, x);
        }
      }
    }
  }
}

// The rows of all words of a block, with an image: to what each has of its own item the other's values are added.
static void word_rows(const HeterogeneousCall& call, const PackedCaptions& packed, int64_t image,
                      const LayerScratch& scratch, float* out) {
  const int64_t row = scratch.query_row, n = packed.n_queries;
  const int64_t depth = layered_depth(call, call.images.lengths[image] * call.heads);
  own_rows<1>(call, scratch.word_rows, {scratch.word_own, 0, 1, row}, n, out, packed.ld, 0);
  const Left weights =
      layered_pairs(call) ? Left{scratch.word_factors, scratch.word_factor_row, 1} : Left{scratch.word_weights, 1, row};
  multiply_either(layered_pairs(call), n, call.dim, depth, weights, {scratch.values, depth * kPanel, kPanel},
                  Store{out, packed.ld, true});
}

// Captions whose rows of an image are begun together.
constexpr int kTogether = 2;

// The rows of an image with the k-th caption of a block, whose first key is `key`, where they are. Captions are visited
// in order.
static float* region_rows(const HeterogeneousCall& call, const CaptionBlock& block, const PackedCaptions& packed,
                          int64_t image, int64_t k, int64_t key, const LayerScratch& scratch, float* rows) {
  const int64_t heads = call.heads, n = call.local ? call.images.lengths[image] : 1;
  const int64_t words = call.captions.lengths[block.first + k], depth = layered_depth(call, heads * words);
  const int64_t own_of_caption = round_up(scratch.n_queries * heads, V::width), of_caption = n * packed.ld;
  if (k % kTogether == 0) {
    const OwnWeights own{scratch.region_own + k * own_of_caption, own_of_caption, heads, 1};
    static_assert(kTogether == 2, "or fewer than these may be left");
    const auto begin = k + 1 < block.count ? own_rows<kTogether> : own_rows<1>;
    begin(call, scratch.region_rows, own, n, rows, packed.ld, of_caption);
  }
  float* const out = rows + k % kTogether * of_caption;
  gather_weights(call, scratch.region_weights + key, scratch.key_row, n, words, scratch.region_factors,
                 scratch.region_factor_row);
  multiply_either(layered_pairs(call), n, call.dim, depth, {scratch.region_factors, scratch.region_factor_row, 1},
                  {packed.values + value_panels(call, k, key), depth * kPanel, kPanel}, Store{out, packed.ld, true});
  return out;
}

// Σ term(k) over the vectors of a row. Four sums: one waits for itself.
template <class Term>
static inline float sum_along(int64_t dim, const Term& term) {
  F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t k = 0;
  for (; k + 4 * V::width <= dim; k += 4 * V::width) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] = term(k + j * V::width, sums[j]);
  }
  for (; k < dim; k += V::width) sums[0] = term(k, sums[0]);
  return V::reduce_add(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
}

constexpr float kLayerNormEps = 1e-5f;

// Of a row: its mean, 1 / its deviation, and 1 / the norm of its normalisation, 0 where that is zero.
struct RowForm {
  float mean, scale, inverse;
};

// Row stride of rows of unit length as pairs of bfloat16.
static inline int64_t unit_pair_row(const HeterogeneousCall& call) {
  return layered_pairs(call) ? pad_row(layered_depth(call, call.dim)) : 0;
}

// Rows normalised by the layer and then to unit length, which is all that the matching sees of them; `out` may be the
// rows. They go to pairs, too, where cosines are products of these. Of each there is a 1, or a 0 if it became zero; its
// form is kept where it is wanted.
static void unit_rows(const HeterogeneousCall& call, const float* rows, int64_t n, int64_t ld, float* out, float* pairs,
                      float* nonzero, RowForm* forms) {
  const int64_t dim = call.dim;
  const float share = 1.0f / static_cast<float>(dim);
  for (int64_t r = 0; r < n; ++r, rows += ld, out += ld) {
    const float mean = sum_along(dim, [&](int64_t k, F sum) { return V::add(sum, V::load(rows + k)); }) * share;
    const float square = sum_along(dim, [&](int64_t k, F sum) {  // zeros behind the row are no features
      const F x = V::keep_first(V::sub(V::load(rows + k), V::set(mean)), dim - k);
      return V::fma(x, x, sum);
    });
    const float scale = 1.0f / __builtin_sqrtf(square * share + kLayerNormEps);
    const float length = __builtin_sqrtf(sum_along(dim, [&](int64_t k, F sum) {
      const F x = V::mul(V::sub(V::load(rows + k), V::set(mean)), V::set(scale));
      const F y = V::fma(x, V::load(call.norm_weight + k, dim - k), V::load(call.norm_bias + k, dim - k));
      V::store(out + k, y);
      return V::fma(y, y, sum);
    }));
    const float inverse = length != 0.0f ? 1.0f / length : 0.0f;
    for (int64_t k = 0; k < dim; k += V::width) {
      const F x = V::mul(V::load(out + k), V::set(inverse));
      V::store(out + k, x);
      if (layered_pairs(call)) V::store_bf16(reinterpret_cast<uint16_t*>(pairs) + k, x, V::width);
    }
    for (int64_t k = round_up(dim, V::width); k < 2 * layered_depth(call, dim) && layered_pairs(call); k += V::width) {
      V::store_bf16(reinterpret_cast<uint16_t*>(pairs) + k, V::zero(), V::width);
    }
    pairs += unit_pair_row(call);
    nonzero[r] = inverse != 0.0f ? 1.0f : 0.0f;
    if (forms != nullptr) forms[r] = {mean, scale, inverse};
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
