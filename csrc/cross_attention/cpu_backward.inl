// Backward pass of stacked cross attention over one rectangle of pairs, down to the gradients of the similarities
// (kernels.md §2). Everything is recomputed; what it leaves is turned into the features' gradients by
// cpu_feature_gradients.inl.
namespace crossret {
namespace CROSSRET_ISA {

// Per query, besides the forward pass's: ∂L/∂r, the factors it puts on Σps and pᵀGp, and that of the query's own row.
struct QueryGradients {
  float* relevance;
  float* product;       // ∂L/∂(Σ p s)
  float* twice_square;  // 2 ∂L/∂(pᵀ G p)
  float* own;
};

struct CrossAttentionBackwardBuffers {
  CrossAttentionBuffers forward;
  QueryGradients grads;
  float* scaled_weights;  // 2 ∂L/∂(pᵀGp) · p, contexts × queries
  float* weight_panels;   // pᵀ as panels
  float* row;             // the queries of one item
};

static CrossAttentionBackwardBuffers take_backward_buffers(const CrossAttentionCall& call, Workspace& memory) {
  const Limits& limits = call.limits;
  CrossAttentionBackwardBuffers buffers{};
  buffers.forward = take_attention_buffers(call, memory);
  for (float** grads : {&buffers.grads.relevance, &buffers.grads.product, &buffers.grads.twice_square,
                        &buffers.grads.own, &buffers.row}) {
    *grads = memory.floats(limits.columns);
  }
  buffers.scaled_weights = memory.floats(limits.rows * limits.columns);
  buffers.weight_panels = memory.floats(pad_columns(limits.rows) * limits.columns);
  return buffers;
}

// From ∂L/∂r to the factors above, for queries [j, j + width). ∂L/∂(Σp), which the cosine's floor would bring, shifts
// ∂L/∂p of all contexts alike and so vanishes in the softmax.
static void relevance_gradient(const Queries& queries, const float* query_norms, int64_t j, QueryGradients& grads) {
  const F norm = V::load(query_norms + j), square = V::max(V::zero(), V::load(queries.square + j));
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

static inline NormGradient norm_gradient(Norm norm, F sum, F dot) {
  const F length = finish_norm(sum, norm);
  const auto valid = V::nonzero(length);
  const F inverse = V::div(V::set(1.0f), V::add(length, V::set(kEps)));
  F shared = V::mul(dot, V::mul(inverse, inverse));
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

// ∂L/∂x of one item's columns, in place of ∂L/∂n, through the norm along its queries.
static void norm_gradients(const CrossAttentionOptions& options, const Tiles& tiles, int64_t rows, int64_t c0,
                           int64_t n, float* scratch) {
  const F slope = V::set(options.clip_slope);
  const float* s = tiles.similarities + c0;
  float* dn = tiles.gram_weights + c0;
  const int64_t ld = tiles.ld;
  if (options.norm == Norm::softmax) {
    for (int64_t r = 0; r < rows; ++r) softmax_segment_gradient(s + r * ld, n, dn + r * ld, scratch);
    return;
  }
  for (int64_t r0 = 0; r0 < rows; r0 += V::width) {
    const int64_t group = rows - r0 < V::width ? rows - r0 : V::width;
    F sums[V::width], dots[V::width];
    for (int i = 0; i < V::width; ++i) {
      sums[i] = dots[i] = V::zero();
      for (int64_t j = 0; i < group && j < n; j += V::width) {
        const F x = clip(V::load(s + (r0 + i) * ld + j, n - j), slope);
        sums[i] = V::add(sums[i], norm_term(x, options.norm));
        dots[i] = V::fma(x, V::load(dn + (r0 + i) * ld + j, n - j), dots[i]);
      }
    }
    const F sum = sum_rows(sums), dot = sum_rows(dots);
    const NormGradient gradient = norm_gradient(options.norm, sum, dot);
    alignas(64) float own[V::width], shared[V::width];
    V::store(own, gradient.own);
    V::store(shared, gradient.shared);
    for (int64_t i = 0; i < group; ++i) {
      for (int64_t j = 0; j < n; j += V::width) {
        float* at = dn + (r0 + i) * ld + j;
        const F x = clip(V::load(s + (r0 + i) * ld + j, n - j), slope);
        const F pulled = V::mul(V::set(shared[i]), direction_of(x, options.norm));
        V::store(at, V::sub(V::mul(V::set(own[i]), V::load(at, n - j)), pulled), n - j);
      }
    }
  }
}

// One context item against one block: its pairs' similarity gradients, and its own Gram gradient summed up.
static void backward_block(const CrossAttentionOptions& options, const CrossAttentionGradients& out, const Roles& roles,
                           const ContextItem& item, const QueryBlock& block, CrossAttentionBackwardBuffers& buffers) {
  Tiles& tiles = buffers.forward.tiles;
  Queries& queries = buffers.forward.queries;
  QueryGradients& grads = buffers.grads;
  const int64_t rows = item.n, ld = tiles.ld;
  attend(options, roles, item, block, tiles, queries);
  int64_t c0 = 0;
  for (int64_t q = block.first; q < block.first + block.count; ++q) {
    const int64_t n = roles.query_rows(q);
    const float grad = out.grad_scores[roles.slot(item.index, q)];
    pool_gradient(queries.relevance + c0, n, options.pooling, options.lambda_lse, grad, grads.relevance + c0);
    c0 += n;
  }
  const F lambda = V::set(options.lambda_softmax);
  for (int64_t j = 0; j < block.columns; j += V::width) {
    relevance_gradient(queries, block.norms, j, grads);
    const F product = V::load(grads.product + j), square = V::load(grads.twice_square + j);
    F dot = V::zero();
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r * ld + j;
      const F p = V::load(tiles.weights + at), s = V::load(tiles.similarities + at);
      const F dp = weight_gradient(s, V::load(tiles.gram_weights + at), product, square);
      dot = V::fma(p, dp, dot);
      V::store(tiles.gram_weights + at, dp);
      V::store(buffers.scaled_weights + at, V::mul(square, p));
    }
    // The softmax takes out the mean. It is zero but for rounding, which λ and long features would blow up.
    const F mean = V::div(dot, V::load(queries.total + j));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r * ld + j;
      const F p = V::mul(lambda, V::load(tiles.weights + at));
      V::store(tiles.gram_weights + at, V::mul(p, V::sub(V::load(tiles.gram_weights + at), mean)));
    }
  }
  // ∂L/∂G of this item: Σ over queries of 2 ∂L/∂(pᵀGp) · p pᵀ.
  transpose_to_panels(tiles.weights, ld, rows, block.columns, buffers.weight_panels);
  block_product(rows, rows, block.columns, {buffers.scaled_weights, ld, 1}, buffers.weight_panels,
                block.columns * kPanel, kPanel, out.gram_grads + out.gram_offsets[roles.slot(item.index, block.first)],
                gram_row(rows), true);
  c0 = 0;
  for (int64_t q = block.first; q < block.first + block.count; ++q) {
    const int64_t n = roles.query_rows(q), slot = roles.slot(item.index, q), ldo = gram_row(n);
    if (options.norm != Norm::none) norm_gradients(options, tiles, rows, c0, n, buffers.row);
    float* ds = out.similarity_grads + out.similarity_offsets[slot];
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; j += V::width) {
        const int64_t at = r * ld + c0 + j;
        const F s = V::load(tiles.similarities + at, n - j), dx = V::load(tiles.gram_weights + at, n - j);
        const F product = V::load(grads.product + c0 + j, n - j), p = V::load(tiles.weights + at, n - j);
        V::store(ds + r * ldo + j, similarity_gradient(s, V::set(options.clip_slope), dx, product, p), n - j);
      }
    }
    float* coefs = out.query_coefs + out.query_offsets[slot];
    for (int64_t j = 0; j < n; ++j) coefs[j] = grads.own[c0 + j];
    c0 += n;
  }
}

static void cross_attention_backward(const CrossAttentionCall& call, const CrossAttentionGradients& out,
                                     const Rectangle& pairs, Workspace& memory) {
  CrossAttentionBackwardBuffers buffers = take_backward_buffers(call, memory);
  const Roles roles(call.images, call.captions, pairs, call.options.direction);
  for_each_block(roles, call.limits, buffers.forward.blocks, [&](const ContextItem& item, const QueryBlock& block) {
    backward_block(call.options, out, roles, item, block, buffers);
  });
}

static int64_t cross_attention_backward_bytes(const CrossAttentionCall& call) {
  Workspace count;
  take_backward_buffers(call, count);
  return count.bytes();
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
