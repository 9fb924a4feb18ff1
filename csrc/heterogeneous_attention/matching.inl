// The matching of one pair's rows, of unit length or zero (HAN §3.3): stacked cross attention of their cosines, and its
// gradients, by attended vectors, as each pair has contexts of its own.
#pragma once
#include "cross_attention/backward.inl"
#include "heterogeneous_attention/layer.inl"

namespace crossret {
namespace CROSSRET_ISA {

struct MatchedRows {
  const float* data;
  int64_t n, ld;
  const float* forms;            // 1 of every row, or 0 of a zero one
  const float* pairs = nullptr;  // the rows as pairs of bfloat16, where cosines are products of these
};

// Some of the rows that `unit_rows` made.
static inline MatchedRows matched_rows(const HeterogeneousCall& call, const float* units, const float* pairs,
                                       const float* forms, int64_t first, int64_t n) {
  const int64_t ld = layered_row(call);
  return {units + first * ld, n, ld, forms + first,
          layered_pairs(call) ? pairs + first * unit_pair_row(call) : nullptr};
}

// n rows, ld apart, and where products are of them as pairs.
static MatchedRows as_rows(const HeterogeneousCall& call, const float* data, int64_t n, int64_t ld, float* pairs) {
  if (!layered_pairs(call)) return {data, n, ld, nullptr, nullptr};
  pair_left({data, ld, 1}, n, call.dim, layered_depth(call, call.dim), pairs, unit_pair_row(call));
  return {data, n, ld, nullptr, pairs};
}

// What products of so many rows with so many columns are read through.
struct DotScratch {
  const float** rows;
  float* panels;  // of columns, where tiles multiply pairs

  DotScratch(const HeterogeneousCall& call, int64_t n, int64_t columns, Workspace& memory)
      : rows(reinterpret_cast<const float**>(memory.floats(2 * (n + columns)))),
        panels(memory.floats(Tiles::present ? pad_columns(columns) * unit_pair_row(call) : 0)) {}
};

struct MatchScratch {
  AttentionTile tile;
  float* similarities;
  Queries queries;
  QueryGradients grads;
  DotScratch dots;
  PairedFactors factors;  // of gradients alone, as all that follow
  float *attended, *attended_pairs, *weight_grads, *scaled_weights;

  MatchScratch(const HeterogeneousCall& call, bool differentiates, Workspace& memory)
      : dots(call, of_contexts(call), of_queries(call), memory),
        factors(call, differentiates ? longest(call) : 0, call.dim, longest(call), memory) {
    const int64_t most = of_queries(call), ld = pad_columns(most), cells = of_contexts(call) * ld;
    similarities = memory.floats(cells);
    tile = {similarities, memory.floats(cells), ld, nullptr};
    queries = take_queries(most, memory);
    if (!differentiates) return;
    for (float** grad : {&grads.relevance, &grads.product, &grads.twice_square, &grads.own}) *grad = memory.floats(ld);
    attended = memory.floats(most * layered_row(call));
    attended_pairs = memory.floats(most * unit_pair_row(call));
    weight_grads = memory.floats(cells);
    scaled_weights = memory.floats(cells);
  }

 private:
  static int64_t of_queries(const HeterogeneousCall& call) {
    return call.words_attend ? call.captions.longest : call.images.longest;
  }
  static int64_t of_contexts(const HeterogeneousCall& call) {
    return call.words_attend ? call.images.longest : call.captions.longest;
  }
  static int64_t longest(const HeterogeneousCall& call) {
    return of_queries(call) > of_contexts(call) ? of_queries(call) : of_contexts(call);
  }
};

// out (row stride ld) = rows · columns.
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

// The same; columns up to the next whole vector become zero.
static void match_dots(const HeterogeneousCall& call, const MatchedRows& rows, const MatchedRows& columns,
                       const MatchScratch& scratch, float* out, int64_t ld) {
  for (int64_t r = 0; r < rows.n && columns.n % V::width != 0; ++r) {
    V::store(out + r * ld + columns.n / V::width * V::width, V::zero());
  }
  row_dots(call, rows, columns, scratch.dots, out, ld);
}

// The relevances of all queries, in the scratch's queries.
static void match(const HeterogeneousCall& call, const MatchedRows& contexts, const MatchedRows& queries,
                  MatchScratch& scratch) {
  match_dots(call, contexts, queries, scratch, scratch.similarities, scratch.tile.ld);
  QueryBlock block{};
  block.columns = queries.n;
  block.norms = const_cast<float*>(queries.forms);
  const Factor rows{false, contexts.n, round_up(call.dim, V::width), contexts.data, contexts.ld};
  attend(call.matching, RaggedView{}, Rectangle{}, rows, block, scratch.tile, scratch.queries, nullptr);
}

static float matched_score(const HeterogeneousCall& call, const MatchedRows& regions, const MatchedRows& words,
                           MatchScratch& scratch) {
  if (!call.local) {
    F sum = V::zero();
    for (int64_t k = 0; k < call.dim; k += V::width) {
      sum = V::fma(V::load(regions.data + k), V::load(words.data + k), sum);
    }
    return V::reduce_add(sum);
  }
  const MatchedRows &contexts = call.words_attend ? regions : words, &queries = call.words_attend ? words : regions;
  match(call, contexts, queries, scratch);
  return pool(scratch.queries.relevance, queries.n, call.matching.pooling, call.matching.lambda_lse);
}

// ∂L/∂ the rows of both sides, but for what lies along them, from ∂L/∂score (kernels.md §2).
static void match_gradients(const HeterogeneousCall& call, const MatchedRows& regions, const MatchedRows& words,
                            float grad, float* of_regions, float* of_words, MatchScratch& scratch) {
  const int64_t dim = round_up(call.dim, V::width);
  if (!call.local) {
    for (int64_t k = 0; k < dim; k += V::width) {
      V::store(of_regions + k, V::mul(V::set(grad), V::load(words.data + k)));
      V::store(of_words + k, V::mul(V::set(grad), V::load(regions.data + k)));
    }
    return;
  }
  const MatchedRows &contexts = call.words_attend ? regions : words, &queries = call.words_attend ? words : regions;
  float* const of_contexts = call.words_attend ? of_regions : of_words;
  float* const of_queries = call.words_attend ? of_words : of_regions;
  const int64_t ld = scratch.tile.ld, row = contexts.ld;
  Queries& sums = scratch.queries;
  float* const weights = scratch.tile.weights;
  match_dots(call, contexts, queries, scratch, scratch.similarities, ld);
  for (int64_t j = 0; j < queries.n; j += V::width) weigh<1>(call.matching, contexts.n, scratch.tile, j, sums);
  multiply_placed(call, queries.n, dim, contexts.n, {weights, 1, ld}, contexts.data, row, scratch.factors,
                  Store{scratch.attended, row, false});
  for (int64_t q = 0; q < queries.n; ++q) {
    F square = V::zero();
    for (int64_t k = 0; k < dim; k += V::width) {
      const F x = V::load(scratch.attended + q * row + k);
      square = V::fma(x, x, square);
    }
    sums.square[q] = V::reduce_add(square);
  }
  match_dots(call, contexts, as_rows(call, scratch.attended, queries.n, row, scratch.attended_pairs), scratch,
             scratch.weight_grads, ld);
  for (int64_t j = 0; j < queries.n; j += V::width) finish_relevance(sums, j, queries.forms);
  pool_gradient(sums.relevance, queries.n, call.matching.pooling, call.matching.lambda_lse, grad,
                scratch.grads.relevance);
  const F lambda = V::set(call.matching.lambda_softmax);
  for (int64_t j = 0; j < queries.n; j += V::width) {
    relevance_gradient(sums, queries.forms, j, scratch.grads);
    const F product = V::load(scratch.grads.product + j), square = V::load(scratch.grads.twice_square + j);
    F dot = V::zero();
    for (int64_t at = j; at < contexts.n * ld; at += ld) {
      const F p = V::load(weights + at);
      const F dp =
          weight_gradient(V::load(scratch.similarities + at), V::load(scratch.weight_grads + at), product, square);
      dot = V::fma(p, dp, dot);
      V::store(scratch.weight_grads + at, dp);
      V::store(scratch.scaled_weights + at, V::mul(square, p));
    }
    const F mean = V::div(dot, V::load(sums.total + j));  // zero but for rounding
    for (int64_t at = j; at < contexts.n * ld; at += ld) {
      const F p = V::load(weights + at),
              dn = V::mul(V::mul(lambda, p), V::sub(V::load(scratch.weight_grads + at), mean));
      V::store(scratch.weight_grads + at, V::fma(product, p, dn));
    }
  }
  multiply_placed(call, contexts.n, dim, queries.n, {scratch.weight_grads, ld, 1}, queries.data, row, scratch.factors,
                  Store{of_contexts, row, false});
  multiply_placed(call, contexts.n, dim, queries.n, {scratch.scaled_weights, ld, 1}, scratch.attended, row,
                  scratch.factors, Store{of_contexts, row, true});
  multiply_placed(call, queries.n, dim, contexts.n, {scratch.weight_grads, 1, ld}, contexts.data, row, scratch.factors,
                  Store{of_queries, row, false});
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
