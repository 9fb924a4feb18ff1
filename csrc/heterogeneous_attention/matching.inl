// The matching of one pair's unit rows (HAN §3.3): stacked cross attention of their cosines, and its gradients. Norms
// are of attended vectors: a Gram matrix would serve one pair alone.
#pragma once
#include "cross_attention/attention.inl"
#include "heterogeneous_attention/unit_rows.inl"
#include "pairs/pooling.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Workspace of the matching.
struct MatchScratch {
  AttentionTile tile;
  float* similarities;
  Queries queries;
  QueryGradients grads;
  DotScratch dots;
  PairedFactors factors;  // this and what follows for gradients alone
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

// Dot products of rows, with zeros behind the columns up to a whole vector.
static void match_dots(const HeterogeneousCall& call, const MatchedRows& rows, const MatchedRows& columns,
                       const MatchScratch& scratch, float* out, int64_t ld) {
  for (int64_t r = 0; r < rows.n && columns.n % V::width != 0; ++r) {
    V::store(out + r * ld + columns.n / V::width * V::width, V::zero());
  }
  row_dots(call, rows, columns, scratch.dots, out, ld);
}

// The relevances of all queries, in scratch.queries.
static void match(const HeterogeneousCall& call, const MatchedRows& contexts, const MatchedRows& queries,
                  MatchScratch& scratch) {
  match_dots(call, contexts, queries, scratch, scratch.similarities, scratch.tile.ld);
  QueryBlock block{};
  block.columns = queries.n;
  block.norms = const_cast<float*>(queries.nonzero);
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

// ∂L/∂rows of both sides from ∂L/∂score (kernels.md §2), but for the part along each row, which the normalisation
// removes.
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
  for (int64_t j = 0; j < queries.n; j += V::width) finish_relevance(sums, j, queries.nonzero);
  pool_gradient(sums.relevance, queries.n, call.matching.pooling, call.matching.lambda_lse, grad,
                scratch.grads.relevance);
  for (int64_t j = 0; j < queries.n; j += V::width) {
    const F mean = weight_gradients(contexts.n, scratch.tile, sums, queries.nonzero, j, scratch.grads, nullptr,
                                    scratch.weight_grads, scratch.scaled_weights);
    logit_gradients(call.matching.lambda_softmax, contexts.n, scratch.tile, j, mean, scratch.weight_grads);
    const F product = V::load(scratch.grads.product + j);
    for (int64_t at = j; at < contexts.n * ld; at += ld) {
      V::store(scratch.weight_grads + at,
               V::fma(product, V::load(weights + at), V::load(scratch.weight_grads + at)));  // ∂L/∂s
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
