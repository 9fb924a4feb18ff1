// The first layer of heterogeneous attention between one image and a block of captions (HAN §3.2): logits across, their
// softmax merged with each row's attention to its own item, and the weighted sums of values.
#pragma once
#include "heterogeneous_attention/products.inl"
#include "heterogeneous_attention/softmax.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Workspace of an image and a block: the image's rows, its queries and keys multiplied by λ, and all weights.
struct LayerScratch {
  int64_t n_queries;                       // of the image, at most
  int64_t key_row, query_row;              // row strides: pad_row of the block's keys and queries
  int64_t region_factor_row;               // row stride of region_factors
  int64_t word_factor_row;                 // row stride of word_factors; 0 where products take floats
  float *queries, *keys, *values;          // rows; values as panels by (region, head)
  float *query_pairs, *key_pairs;          // queries and keys as pairs of bfloat16
  float* region_weights;                   // (queries, heads, key_row)
  float* region_own;                       // (captions, queries, heads)
  float* region_factors;                   // weights with one caption as a product reads them, by (head, word)
  float* word_weights;                     // (keys, heads, query_row)
  float* word_factors;                     // weights with the image as pairs, by (region, head)
  float* word_own;                         // (heads, query_row)
  const float **region_rows, **word_rows;  // addresses of every query's own values

  // `kept` has what the gradients of captions read again.
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
    region_rows = memory.addresses<const float>(n_queries);
    word_rows = memory.addresses<const float>(query_row);
  }
};

// Copies an image's rows and computes all weights.
static void weigh_across(const HeterogeneousCall& call, const CaptionBlock& block, const PackedCaptions& packed,
                         int64_t image, const LayerScratch& scratch) {
  const FirstLayer& side = call.images;
  const int64_t heads = call.heads, dim = call.dim, ld = packed.ld, depth = layered_depth(call, head_size(call));
  const int64_t n = side.lengths[image], queries = call.local ? n : 1, first = image * side.width;
  const int64_t key_row = scratch.key_row, query_row = scratch.query_row;
  scale_rows(side.queries + first * dim, queries, dim, call.lambda_attention, scratch.queries, ld);
  scale_rows(side.keys + first * dim, n, dim, call.lambda_attention, scratch.keys, ld);
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

// Weights of own values: of pair p, row m and head h at data[p * pair + m * row + h * head].
struct OwnWeights {
  const float* data;
  int64_t pair, row, head;
};

// out = residual + Σ over heads of own weight · own value, of n rows in `pairs` pairs. own[m] holds (heads + 1, dim),
// the residual last; each is read once for all pairs, as it exceeds the first cache.
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

// Weights of n rows with a caption as a product reads them, by (head, word).
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

// Rows of all words of a block with an image: own values and the image's, weighted.
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

// Captions for which an image's own values are read once.
constexpr int kTogether = 2;

// Rows of an image with the k-th caption of a block, whose first key is `key`; returns where they are in `rows`, which
// holds kTogether captions'. Captions are visited in order.
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

}  // namespace CROSSRET_ISA
}  // namespace crossret
