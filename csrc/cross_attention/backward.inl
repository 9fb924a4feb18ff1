// Backward pass of stacked cross attention over one rectangle of pairs, down to the gradients of the similarities
// (kernels.md §2). Everything is recomputed; what it leaves is turned into the features' gradients by
// feature_gradients.inl.
#pragma once
#include "cross_attention/forward.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Per query, besides the forward pass's: ∂L/∂r, the factors it puts on Σps and pᵀGp, and that of the query's own row.
struct QueryGradients {
  float* relevance;
  float* product;       // ∂L/∂(Σ p s)
  float* twice_square;  // 2 ∂L/∂(pᵀ G p)
  float* own;
};

struct AttentionBackwardBuffers {
  AttentionBuffers forward;
  QueryGradients grads;
  float* attended;        // U p or Cᵀ p, by its rows × queries
  float* weight_grads;    // G p; then ∂L/∂n, contexts × queries
  float* scaled_weights;  // 2 ∂L/∂(pᵀGp) · p, contexts × queries
  float* weight_panels;   // pᵀ as panels
  float* row;             // the queries of one item
  // Of the gradients of more than scores: those of the weights, contexts × queries; contexts as floats, where their
  // layout has others; and where contexts and the gradients of attended vectors lie.
  float* given;
  float* contexts;
  const float** rows;
};

static AttentionBackwardBuffers take_backward_buffers(const CrossAttentionCall& call, Workspace& memory) {
  const Limits& limits = call.limits;
  const int64_t tile = limits.rows * limits.columns;
  AttentionBackwardBuffers buffers{};
  buffers.forward = take_attention_buffers(call, memory);
  for (float** grads : {&buffers.grads.relevance, &buffers.grads.product, &buffers.grads.twice_square,
                        &buffers.grads.own, &buffers.row}) {
    *grads = memory.floats(limits.columns);
  }
  buffers.attended =
      memory.floats((limits.rows > call.contexts.dim ? limits.rows : call.contexts.dim) * limits.columns);
  buffers.weight_grads = memory.floats(tile);
  buffers.scaled_weights = memory.floats(tile);
  buffers.weight_panels = memory.floats(pad_columns(limits.rows) * limits.columns);
  if (call.given.there()) {
    buffers.given = memory.floats(tile);
    buffers.contexts = memory.floats(call.context_layout.pairs() ? limits.rows * pad_row(call.contexts.dim) : 0);
    buffers.rows = reinterpret_cast<const float**>(memory.floats(2 * (limits.rows + limits.columns)));
  }
  return buffers;
}

// From ∂L/∂r to the factors above, for queries [j, j + width). ∂L/∂(Σp), which the cosine's floor would bring, shifts
// ∂L/∂p of all contexts alike and so vanishes in the softmax.
static void relevance_gradient(const Queries& queries, const float* query_norms, int64_t j, QueryGradients& grads) {
  const F norm = V::load(query_norms + j), square = V::load(queries.square + j);
  const F grad = V::load(grads.relevance + j);
  const F length = V::mul(norm, V::sqrt(square)), least = V::mul(V::set(kEps), V::load(queries.total + j));
  const auto valid = V::nonzero(length);
  const F zero = V::zero();
  const F pull = V::sub(zero, V::mul(grad, V::load(queries.relevance + j)));  // −g r
  const F kept = V::select(V::less(length, least), zero, pull);
  V::store(grads.product + j, V::select(valid, V::div(grad, V::max(least, length)), zero));
  V::store(grads.twice_square + j, V::select(valid, V::div(kept, square), zero));
  V::store(grads.own + j, V::select(valid, V::div(kept, V::mul(norm, norm)), zero));
}

// ∂L/∂p of one cell, but for what all contexts of a query have in common.
static inline F weight_gradient(F s, F gram_weight, F product, F twice_square) {
  return V::fma(product, s, V::mul(twice_square, gram_weight));
}

// ∂L/∂x = own · ∂L/∂n − shared · (x or sign x), from Σx² or Σ|x| and Σ x ∂L/∂n; both zero where the norm is zero.
struct NormGradient {
  F own, shared;
};

static inline NormGradient norm_gradient(Norm norm, F sum, F dot, F eps) {
  const F length = finish_norm(sum, norm);
  const auto valid = V::nonzero(length);
  const F inverse = V::div(V::set(1.0f), V::add(length, eps));
  F shared = V::mul(V::mul(dot, inverse), inverse);
  if (norm == Norm::l2) shared = V::div(shared, length);
  return {V::select(valid, inverse, V::zero()), V::select(valid, shared, V::zero())};
}

static inline F direction_of(F x, Norm norm) {
  if (norm == Norm::l2) return x;
  const F one = V::set(1.0f), zero = V::zero();
  return V::sub(V::select(V::less(zero, x), one, zero), V::select(V::less(x, zero), one, zero));
}

// ∂L/∂s of one cell: through the norm and the clip, and directly through q·a.
static inline F similarity_gradient(F s, F slope, F dx, F product, F p) {
  return V::fma(product, p, V::mul(dx, V::select(V::less(V::zero(), s), V::set(1.0f), slope)));
}

// Gradient of a softmax over a row segment of similarities, in place of ∂L/∂n: e · (∂L/∂n − Σ e ∂L/∂n). scratch holds
// n.
static void softmax_segment_gradient(const float* s, int64_t n, float* dn, float* scratch) {
  const F inverse = V::set(softmax_segment(s, n, scratch));
  F dot = V::zero();
  for (int64_t j = 0; j < n; j += V::width) {
    const F e = V::mul(V::load(scratch + j, n - j), inverse);
    V::store(scratch + j, e, n - j);
    dot = V::fma(e, V::load(dn + j, n - j), dot);
  }
  const F shift = V::set(V::reduce_add(dot));
  for (int64_t j = 0; j < n; j += V::width) {
    V::store(dn + j, V::mul(V::load(scratch + j, n - j), V::sub(V::load(dn + j, n - j), shift)), n - j);
  }
}

// ∂L/∂x, in place of ∂L/∂n, of `rows` contexts and one item's n columns, at most V::width, through the norm along its
// queries. As in length_logits x is multiplied by `scale` first; false where the norm overflows.
static bool length_gradients(const float* s, float* dn, int64_t ld, int64_t rows, int64_t n, F slope, Norm norm,
                             float scale) {
  const auto scaled = [&](int64_t i, int64_t j) {
    return V::mul(clip(V::load(s + i * ld + j, n - j), slope), V::set(scale));
  };
  F sums[V::width], dots[V::width];
  for (int i = 0; i < V::width; ++i) {
    sums[i] = dots[i] = V::zero();
    for (int64_t j = 0; i < rows && j < n; j += V::width) {
      const F x = scaled(i, j);
      sums[i] = V::add(sums[i], norm_term(x, norm));
      dots[i] = V::fma(x, V::load(dn + i * ld + j, n - j), dots[i]);
    }
  }
  const F sum = sum_rows(sums), dot = sum_rows(dots);
  if (scale == 1.0f && overflown(sum)) return false;
  const NormGradient gradient = norm_gradient(norm, sum, dot, V::set(kEps * scale));
  alignas(64) float own[V::width], shared[V::width];
  V::store(own, gradient.own);
  V::store(shared, gradient.shared);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; j += V::width) {
      float* at = dn + i * ld + j;
      const F pulled = V::mul(V::set(shared[i]), direction_of(scaled(i, j), norm));
      V::store(at, V::mul(V::sub(V::mul(V::set(own[i]), V::load(at, n - j)), pulled), V::set(scale)), n - j);
    }
  }
  return true;
}

// ∂L/∂x of one item's columns, in place of ∂L/∂n, through the norm along its queries.
static void norm_gradients(const CrossAttentionOptions& options, const AttentionTile& tile, float* weight_grads,
                           int64_t rows, int64_t c0, int64_t n, float* scratch) {
  const F slope = V::set(options.clip_slope);
  const float* s = tile.similarities + c0;
  float* dn = weight_grads + c0;
  const int64_t ld = tile.ld;
  if (options.norm == Norm::softmax) {
    for (int64_t r = 0; r < rows; ++r) softmax_segment_gradient(s + r * ld, n, dn + r * ld, scratch);
    return;
  }
  for (int64_t r = 0; r < rows; r += V::width) {
    const int64_t group = rows - r < V::width ? rows - r : V::width;
    if (length_gradients(s + r * ld, dn + r * ld, ld, group, n, slope, options.norm, 1.0f)) continue;
    for (int64_t row = r * ld; row < (r + group) * ld; row += ld) {
      if (!length_gradients(s + row, dn + row, ld, 1, n, slope, options.norm, 1.0f)) {
        length_gradients(s + row, dn + row, ld, 1, n, slope, options.norm, kSmall);
      }
    }
  }
}

// ∂L/∂ the weights p / Σ p of one context item and a block: what is given of the weights themselves, and through the
// attended vectors. The relevances gain what is given of them.
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

// One context item against one block: its pairs' similarity gradients, and its own Gram gradient summed up.
static void backward_block(const CrossAttentionCall& call, const CrossAttentionGradients& out, const Rectangle& pairs,
                           const ContextGroup& group, int64_t item, int64_t row, const Factor& factor,
                           const QueryBlock& block, AttentionBackwardBuffers& buffers) {
  const CrossAttentionOptions& options = call.options;
  const AttentionTile& tile = buffers.forward.tile;
  Queries& queries = buffers.forward.queries;
  QueryGradients& grads = buffers.grads;
  const int64_t rows = factor.n, ld = tile.ld, last = block.first + block.count;
  attend(options, call.queries, pairs, factor, block, tile, queries, buffers.attended);
  const Right attended{buffers.attended, kPanel, ld};
  const Store gram_weights{buffers.weight_grads, ld, false};
  if (factor.triangular) {
    multiply(rows, block.columns, LowerTriangle{factor.rows}, factor.transposed(), attended, gram_weights);
  } else {
    multiply(rows, block.columns, AllOf{factor.rows}, factor.transposed(), attended, gram_weights);
  }
  int64_t c0 = 0;
  for (int64_t q = block.first; q < last; ++q) {
    const int64_t n = call.queries.length(pairs.queries[q]);
    const float grad = out.grad_scores[pairs.slot(item, q)];
    pool_gradient(queries.relevance + c0, n, options.pooling, options.lambda_lse, grad, grads.relevance + c0);
    c0 += n;
  }
  const bool more = call.given.there();
  if (more) given_gradients(call, out, pairs, group, item, row, block, buffers);
  const F lambda = V::set(options.lambda_softmax);
  for (int64_t j = 0; j < block.columns; j += V::width) {
    relevance_gradient(queries, block.norms, j, grads);
    const F product = V::load(grads.product + j), square = V::load(grads.twice_square + j);
    F dot = V::zero();
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r * ld + j;
      const F p = V::load(tile.weights + at), s = V::load(tile.similarities + at);
      F dp = weight_gradient(s, V::load(buffers.weight_grads + at), product, square);
      if (more) dp = V::fma(V::load(buffers.given + at), V::load(queries.inverse + j), dp);
      dot = V::fma(p, dp, dot);
      V::store(buffers.weight_grads + at, dp);
      V::store(buffers.scaled_weights + at, V::mul(square, p));
    }
    // The softmax takes out the mean. It is zero but for rounding, which λ and long features would blow up.
    const F mean = V::div(dot, V::load(queries.total + j));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r * ld + j;
      const F p = V::mul(lambda, V::load(tile.weights + at));
      V::store(buffers.weight_grads + at, V::mul(p, V::sub(V::load(buffers.weight_grads + at), mean)));
    }
  }
  // ∂L/∂G of this item: Σ over queries of 2 ∂L/∂(pᵀGp) · p pᵀ.
  transpose_to_panels(tile.weights, ld, rows, block.columns, buffers.weight_panels);
  multiply(rows, rows, AllOf{block.columns}, {buffers.scaled_weights, ld, 1},
           {buffers.weight_panels, block.columns * kPanel, kPanel},
           Store{out.gram_grads + out.gram_offsets[pairs.slot(item, block.first)], gram_row(rows), true});
  c0 = 0;
  for (int64_t q = block.first; q < last; ++q) {
    const int64_t n = call.queries.length(pairs.queries[q]), slot = pairs.slot(item, q), ldo = gram_row(n);
    if (options.norm != Norm::none) norm_gradients(options, tile, buffers.weight_grads, rows, c0, n, buffers.row);
    float* ds = out.similarity_grads + out.similarity_offsets[slot];
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; j += V::width) {
        const int64_t at = r * ld + c0 + j;
        const F s = V::load(tile.similarities + at, n - j), dx = V::load(buffers.weight_grads + at, n - j);
        const F product = V::load(grads.product + c0 + j, n - j), p = V::load(tile.weights + at, n - j);
        V::store(ds + r * ldo + j, similarity_gradient(s, V::set(options.clip_slope), dx, product, p), n - j);
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
  AttentionBackwardBuffers buffers = take_backward_buffers(call, memory);
  for_each_context(call, pairs, group, block, buffers.forward, [&](int64_t item, int64_t row, const Factor& factor) {
    backward_block(call, out, pairs, group, item, row, factor, block, buffers);
  });
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
