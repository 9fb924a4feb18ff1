// Backward pass of stacked cross attention, a group of contexts by a block of queries, from gradients of scores to
// those of similarities (kernels.md §2). The forward pass is computed again; feature_gradients.inl goes on to the
// features.
#pragma once
#include "cross_attention/forward.inl"
#include "cross_attention/minmax.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Workspace of the backward pass.
struct AttentionBackwardBuffers {
  AttentionBuffers forward;
  QueryGradients grads;
  float* attended;        // U p or Cᵀ p, rows × queries
  float* weight_grads;    // G p; then ∂L/∂n, contexts × queries
  float* scaled_weights;  // 2 ∂L/∂(pᵀGp) · p, contexts × queries
  float* weight_panels;   // pᵀ as panels
  float* row;             // the queries of one item
  float* turned_grads;    // of both directions ∂L/∂s of the other, group × block; else null
  // Where more than scores has gradients; else null.
  float* given;        // ∂L/∂(p / Σ p), contexts × queries
  float* contexts;     // contexts as floats, where the layout has pairs
  const float** rows;  // addresses of contexts and of the gradients of attended vectors

  AttentionBackwardBuffers(const CrossAttentionCall& call, Workspace& memory) : forward(call, memory) {
    const int64_t most = call.limits.rows, columns = call.limits.columns, tile = most * columns,
                  dim = call.contexts.dim;
    for (float** array : {&grads.relevance, &grads.product, &grads.twice_square, &grads.own, &row}) {
      *array = memory.floats(columns);
    }
    attended = memory.floats((most > dim ? most : dim) * columns);
    weight_grads = memory.floats(tile);
    scaled_weights = memory.floats(tile);
    weight_panels = memory.floats(pad_columns(most) * columns);
    turned_grads = call.turned != nullptr ? memory.floats(tile) : nullptr;
    const bool more = call.given.there();
    given = more ? memory.floats(tile) : nullptr;
    contexts = memory.floats(more && call.context_layout.pairs() ? most * pad_row(dim) : 0);
    rows = memory.addresses<const float>(more ? most + columns : 0);
  }
};

// ∂L/∂(p / Σ p) of one context item and a block: the caller's gradients of weights, and those of attended vectors times
// contexts. Gradients of relevances gain the caller's.
static void given_gradients(const CrossAttentionCall& call, const CrossAttentionGradients& out, const Rectangle& pairs,
                            const ContextGroup& group, int64_t item, int64_t row, const QueryBlock& block,
                            AttentionBackwardBuffers& buffers) {
  const AttentionOf<const float>& given = call.given;
  const Item& contexts = call.contexts.items[pairs.contexts[item]];
  const int64_t ld = buffers.forward.tile.ld, n_contexts = contexts.length;
  const bool of_attended = out.attended.items != nullptr;
  const float **const rows = buffers.rows, **columns = rows + n_contexts;
  if (of_attended) {
    ContextRows lie = {buffers.contexts, pad_row(call.contexts.dim)};
    if (!call.context_layout.pairs()) lie = rows_of(call, pairs, group, item, row);
    for (int64_t r = 0; r < n_contexts; ++r) {
      if (call.context_layout.pairs()) {
        copy_floats(call.contexts, pairs.contexts[item], r, buffers.contexts + r * pad_row(call.contexts.dim));
      }
      rows[r] = lie.data + r * lie.ld;
    }
    for (int64_t q = block.first; q < block.first + block.count; ++q) {
      const int64_t slot = pairs.slot(item, q);
      for (int64_t j = 0; j < out.attended.length(slot); ++j) {
        *columns++ = static_cast<const float*>(out.attended.row(slot, j));
      }
    }
    columns -= block.columns;
    multiply_dots<SinglePrecision>(rows, n_contexts, columns, block.columns, call.contexts.dim, false,
                                   Ahead{reinterpret_cast<const char*>(columns[0]), 0}, buffers.given, ld);
  }
  for (int64_t r = 0; r < n_contexts; ++r) {
    for (int64_t j = of_attended ? block.columns : 0; j < round_up(block.columns, V::width); ++j) {
      buffers.given[r * ld + j] = 0.0f;
    }
  }
  int64_t c0 = 0;
  for (int64_t q = block.first; q < block.first + block.count; ++q) {
    const int64_t place = out.places[pairs.slot(item, q)];
    const float* weights = given.weights + place * given.query_places * given.context_places;
    const float* relevance = given.relevances + place * given.query_places;
    each_place(call.queries.items[pairs.queries[q]], given.query_places, [&](int64_t, int64_t query) {
      for (int64_t c = 0; query >= 0 && c < n_contexts; ++c) {
        buffers.given[c * ld + c0 + query] += weights[contexts.places ? contexts.places[c] : c];
      }
      if (query >= 0) buffers.grads.relevance[c0 + query] += *relevance;
      weights += given.context_places;
      ++relevance;
    });
    c0 += call.queries.length(pairs.queries[q]);
  }
}

// One context item and a block: the similarities' gradients of its pairs, of a turned call in place of ∂L/∂n, and its
// Gram matrix's, which is added to.
static void backward_block(const CrossAttentionCall& call, const CrossAttentionGradients& out, const Rectangle& pairs,
                           const ContextGroup& group, int64_t item, int64_t row, const Factor& factor,
                           const QueryBlock& block, AttentionBackwardBuffers& buffers) {
  const CrossAttentionOptions& options = call.options;
  const AttentionTile& tile = buffers.forward.tile;
  Queries& queries = buffers.forward.queries;
  QueryGradients& grads = buffers.grads;
  const int64_t rows = factor.n, ld = tile.ld, last = block.first + block.count;
  attend(options, call.queries, pairs, factor, block, tile, queries, buffers.attended);
  // G p from U p or Cᵀ p.
  const Right attended{buffers.attended, kPanel, ld};
  const Store gram_weights{buffers.weight_grads, ld, false};
  if (factor.triangular) {
    multiply(rows, block.columns, LowerTriangle{factor.rows}, factor.transposed(), attended, gram_weights);
  } else {
    multiply(rows, block.columns, AllOf{factor.rows}, factor.transposed(), attended, gram_weights);
  }
  // ∂L/∂r, ∂L/∂p, then ∂L/∂n.
  int64_t c0 = 0;
  for (int64_t q = block.first; q < last; ++q) {
    const int64_t n = call.queries.length(pairs.queries[q]);
    const float grad = out.grad_scores[pairs.slot(item, q)];
    pool_gradient(queries.relevance + c0, n, options.pooling, options.lambda_lse, grad, grads.relevance + c0);
    c0 += n;
  }
  const bool more = call.given.there();
  if (more) given_gradients(call, out, pairs, group, item, row, block, buffers);
  for (int64_t j = 0; j < block.columns; j += V::width) {
    const F mean = weight_gradients(rows, tile, queries, query_norms(options, block), j, grads, buffers.given,
                                    buffers.weight_grads, buffers.scaled_weights);
    if (options.norm == Norm::minmax) {
      spread_gradients(options, rows, tile, j, mean, buffers.weight_grads);
    } else {
      logit_gradients(options.lambda_softmax, rows, tile, j, mean, buffers.weight_grads);
    }
  }
  // ∂L/∂G + its transpose: Σ over queries of 2 ∂L/∂(pᵀGp) p pᵀ.
  transpose_to_panels(tile.weights, ld, rows, block.columns, buffers.weight_panels);
  multiply(rows, rows, AllOf{block.columns}, {buffers.scaled_weights, ld, 1},
           {buffers.weight_panels, block.columns * kPanel, kPanel},
           Store{out.gram_grads + out.gram_offsets[pairs.slot(item, block.first)], gram_row(rows), true});
  // ∂L/∂s of every pair, and what feature gradients need besides.
  c0 = 0;
  for (int64_t q = block.first; q < last; ++q) {
    const int64_t n = call.queries.length(pairs.queries[q]), slot = pairs.slot(item, q);
    if (options.along_queries()) norm_gradients(options, tile, buffers.weight_grads, rows, c0, n, buffers.row);
    const bool kept = out.similarity_grads != nullptr;
    float* const ds = kept ? out.similarity_grads + out.similarity_offsets[slot] : buffers.weight_grads + c0;
    const float* const added = buffers.turned_grads != nullptr ? buffers.turned_grads + row * ld : nullptr;
    const int64_t ldo = kept ? gram_row(n) : ld;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; j += V::width) {
        const int64_t at = r * ld + c0 + j;
        const F s = V::load(tile.similarities + at, n - j), dx = V::load(buffers.weight_grads + at, n - j);
        const F product = V::load(grads.product + c0 + j, n - j), p = V::load(tile.weights + at, n - j);
        F grad = similarity_gradient(s, V::set(options.clip_slope), dx, product, p);
        if (added != nullptr) grad = V::add(grad, V::load(added + at, n - j));
        V::store(ds + r * ldo + j, grad, n - j);
        if (more) {
          const F weight = V::mul(p, V::load(queries.inverse + c0 + j, n - j));
          V::store(out.weights + out.similarity_offsets[slot] + r * ldo + j, weight, n - j);
        }
      }
    }
    float* coefs = out.query_coefs + out.query_offsets[slot];
    for (int64_t j = 0; j < n; ++j) coefs[j] = grads.own[c0 + j];
    c0 += n;
  }
}

static void cross_attention_backward(const CrossAttentionCall& call, const CrossAttentionGradients& out,
                                     const Rectangle& pairs, const ContextGroup& group, const QueryBlock& block,
                                     Workspace& memory) {
  AttentionBackwardBuffers buffers(call, memory);
  const int64_t ld = buffers.forward.tile.ld;
  similarities_of(call, pairs, group, block, buffers.forward.similarities, ld, buffers.forward.dots);
  if (call.turned != nullptr) {
    AttentionBackwardBuffers other(*call.turned, memory);
    const Turned turned = turn(call, pairs, group, block, buffers.forward, other.forward);
    for_each_context(
        *call.turned, turned.pairs, turned.group, other.forward, [&](int64_t item, int64_t row, const Factor& factor) {
          backward_block(*call.turned, *out.turned, turned.pairs, turned.group, item, row, factor, turned.block, other);
          transpose(other.weight_grads, other.forward.tile.ld, factor.n, group.rows, buffers.turned_grads + row, ld,
                    factor.n);
        });
  }
  for_each_context(call, pairs, group, buffers.forward, [&](int64_t item, int64_t row, const Factor& factor) {
    backward_block(call, out, pairs, group, item, row, factor, block, buffers);
  });
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
