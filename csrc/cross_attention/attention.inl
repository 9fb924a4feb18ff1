// Stacked cross attention of one context item and one query block, from its similarities to the relevance of every
// query. kernels.md §1: the softmax denominator cancels in the cosine, and ‖a‖² = pᵀ G p needs no attended vector.
namespace crossret {
namespace CROSSRET_ISA {

// Of the published code: added to norms after the root, and the cosine's least denominator.
constexpr float kEps = 1e-8f;

// Similarity-shaped arrays, contexts × queries of the block, row stride ld.
struct Tiles {
  const float* similarities;
  float* weights;       // p, the unnormalised attention
  float* gram_weights;  // G p
  int64_t ld;
};

// Per query of the block. Each holds whole vectors.
struct Queries {
  float* product;    // Σ p s = q·a
  float* total;      // Σ p
  float* square;     // pᵀ G p = ‖a‖²
  float* diagonal;   // Σ p² ‖c‖², what the square is where contexts are orthogonal
  float* relevance;  // cos(q, a)
};

static Queries take_queries(int64_t n, Workspace& memory) {
  const int64_t size = pad_columns(n);
  return {memory.floats(size), memory.floats(size), memory.floats(size), memory.floats(size), memory.floats(size)};
}

// λ / (norm + eps): what a similarity of that norm is multiplied by. Zero where the norm is: λ / eps may overflow.
static inline F norm_factor(F norm, F lambda) {
  return V::select(V::nonzero(norm), V::div(lambda, V::add(norm, V::set(kEps))), V::zero());
}

static inline F norm_term(F x, Norm norm) { return norm == Norm::l1 ? V::max(V::sub(V::zero(), x), x) : V::mul(x, x); }

static inline F finish_norm(F sum, Norm norm) { return norm == Norm::l1 ? sum : V::sqrt(sum); }

// exp(x − max) of a row segment into out; returns 1 / Σ.
static float softmax_segment(const float* x, int64_t n, float* out) {
  const F best = V::set(max_of(x, n));
  F sum = V::zero();
  for (int64_t j = 0; j < n; j += V::width) {
    const F e = V::keep_first(exp(V::sub(V::load(x + j, n - j), best)), n - j);
    V::store(out + j, e, n - j);
    sum = V::add(sum, e);
  }
  return 1.0f / V::reduce_add(sum);
}

// λ softmax(s) of one item's queries, n columns of every context.
static void softmax_logits(const float* s, float* out, int64_t ld, int64_t rows, int64_t n, F lambda) {
  for (int64_t r = 0; r < rows; ++r) {
    const F factor = V::mul(lambda, V::set(softmax_segment(s + r * ld, n, out + r * ld)));
    for (int64_t j = 0; j < n; j += V::width) {
      float* at = out + r * ld + j;
      V::store(at, V::mul(V::load(at, n - j), factor), n - j);
    }
  }
}

// λ x / (‖x‖ + eps) of one item's queries, n columns of every context, x = clip(s); `vectors` is how many vectors hold
// n, known so that they stay in registers, or 0 for any number.
template <int vectors>
static void length_logits(const float* s, float* out, int64_t ld, int64_t rows, int64_t n, F slope, F lambda,
                          Norm norm) {
  constexpr int kept = vectors > 0 ? vectors : 1;
  const int64_t count = vectors > 0 ? vectors : (n + V::width - 1) / V::width;
  for (int64_t r0 = 0; r0 < rows; r0 += V::width) {
    const int64_t group = rows - r0 < V::width ? rows - r0 : V::width;
    F x[V::width][kept], sums[V::width];
    const auto clipped = [&](int64_t i, int64_t v) {
      const int64_t j = v * V::width;
      return clip(V::load(s + (r0 + i) * ld + j, n - j), slope);
    };
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      sums[i] = V::zero();
      for (int v = 0; v < kept; ++v) x[i][v] = V::zero();
      if (i >= group) continue;
      for (int64_t v = 0; v < count; ++v) {
        const F value = clipped(i, v);
        if (vectors > 0) x[i][v] = value;
        sums[i] = V::add(sums[i], norm_term(value, norm));
      }
    }
    alignas(64) float factors[V::width];
    V::store(factors, norm_factor(finish_norm(sum_rows(sums), norm), lambda));
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      if (i >= group) break;
      const F factor = V::set(factors[i]);
      for (int64_t v = 0; v < count; ++v) {
        const int64_t j = v * V::width;
        V::store(out + (r0 + i) * ld + j, V::mul(vectors > 0 ? x[i][v] : clipped(i, v), factor), n - j);
      }
    }
  }
}

// λn of one item's queries, columns [c0, c0 + n), normalised along them for every context.
static void normalised_logits(const CrossAttentionOptions& options, const Tiles& tiles, int64_t rows, int64_t c0,
                              int64_t n) {
  const F slope = V::set(options.clip_slope), lambda = V::set(options.lambda_softmax);
  const float* s = tiles.similarities + c0;
  float* out = tiles.weights + c0;
  if (options.norm == Norm::softmax) return softmax_logits(s, out, tiles.ld, rows, n, lambda);
  const auto logits = n <= V::width       ? length_logits<1>
                      : n <= 2 * V::width ? length_logits<2>
                      : n <= 3 * V::width ? length_logits<3>
                                          : length_logits<0>;
  logits(s, out, tiles.ld, rows, n, slope, lambda, options.norm);
}

// λn of all queries, where they are normalised: zero in the columns of the last vector that no item owns.
static void block_logits(const CrossAttentionOptions& options, const Roles& roles, const QueryBlock& block,
                         const Tiles& tiles, int64_t rows) {
  int64_t c0 = 0;
  for (int64_t q = 0; q < block.count; ++q) {
    const int64_t n = roles.query_rows(block.first + q);
    normalised_logits(options, tiles, rows, c0, n);
    c0 += n;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = c0; j < (c0 + V::width - 1) / V::width * V::width; ++j) tiles.weights[r * tiles.ld + j] = 0.0f;
  }
}

// Where the attended vector is far shorter than orthogonal contexts would make it, pᵀ G p is a small difference of
// large terms. It is then summed as ‖Σ p c‖², from the contexts themselves: as many products as the query's
// similarities took, though not at the block product's speed.
template <class Element>
static float attended_square(const float* weights, int64_t weight_stride, const CopiedRows& contexts, int64_t n) {
  constexpr int count = 4;
  F square = V::zero();
  for (int64_t k0 = 0; k0 < contexts.depth; k0 += count * V::width) {
    F attended[count][Element::parts];
    for (int i = 0; i < count; ++i) {
      for (int part = 0; part < Element::parts; ++part) attended[i][part] = V::zero();
    }
    for (int64_t c = 0; c < n; ++c) {
      const F p = V::set(weights[c * weight_stride] * (contexts.scales ? contexts.scales[c] : 1.0f));
      const float* row = contexts.data + c * contexts.ld + k0;
      for (int i = 0; i < count && k0 + i * V::width < contexts.depth; ++i) {
        const F x = V::load(row + i * V::width, contexts.depth - k0 - i * V::width);
        for (int part = 0; part < Element::parts; ++part) {
          attended[i][part] = V::fma(p, Element::part(x, part), attended[i][part]);
        }
      }
    }
    for (int i = 0; i < count; ++i) {
      for (int part = 0; part < Element::parts; ++part) {
        square = V::fma(attended[i][part], attended[i][part], square);
      }
    }
  }
  return V::reduce_add(square);
}

// Squares of the queries [j, j + width) that need it are replaced; weights contexts × queries, row stride ld.
static inline void mend_squares(Queries& queries, int64_t j, int64_t n, const float* weights, int64_t ld,
                                const CopiedRows& contexts, int64_t n_contexts) {
  const auto cancelled = V::less(V::load(queries.square + j), V::mul(V::set(0.25f), V::load(queries.diagonal + j)));
  if (!V::any(cancelled)) return;
  with_elements(contexts.pairs, [&](auto element) {
    for (int i = 0; i < V::width && j + i < n; ++i) {
      if (V::at(cancelled, i)) {
        queries.square[j + i] = attended_square<decltype(element)>(weights + j + i, ld, contexts, n_contexts);
      }
    }
  });
}

// cos(q, a) = Σ p s / max(‖q‖ ‖a‖, eps), the floor scaled by the denominator that p lacks; zero where a norm is zero.
static inline void finish_relevance(Queries& queries, int64_t j, const float* query_norms) {
  const F attended = V::sqrt(V::max(V::zero(), V::load(queries.square + j)));
  const F length = V::mul(V::load(query_norms + j), attended);
  const F least = V::mul(V::set(kEps), V::load(queries.total + j));
  const F cosine = V::div(V::load(queries.product + j), V::max(least, length));
  V::store(queries.relevance + j, V::select(V::nonzero(length), cosine, V::zero()));
}

// p, Σ p s, Σ p and Σ p² ‖c‖² of the queries in `vectors` vectors of columns from j on: several at once, for each sum
// waits for itself.
template <int vectors>
static void weigh(const CrossAttentionOptions& options, const ContextItem& item, const Tiles& tiles, int64_t j,
                  Queries& queries) {
  const int64_t rows = item.n, ld = tiles.ld;
  const float* s = tiles.similarities + j;
  float* p = tiles.weights + j;
  if (options.norm == Norm::none) {
    const F slope = V::set(options.clip_slope), lambda = V::set(options.lambda_softmax);
    for (int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < vectors; ++v) {
        const int64_t at = r * ld + v * V::width;
        V::store(p + at, V::mul(clip(V::load(s + at), slope), lambda));
      }
    }
  }
  // Without the maximum taken out, weights of 1e-18 squared would leave pᵀGp no digits.
  F shift[vectors], product[vectors], total[vectors], diagonal[vectors];
  for (int v = 0; v < vectors; ++v) shift[v] = V::load(p + v * V::width);
  for (int64_t r = 1; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) shift[v] = V::max(shift[v], V::load(p + r * ld + v * V::width));
  }
  for (int v = 0; v < vectors; ++v) product[v] = total[v] = diagonal[v] = V::zero();
  for (int64_t r = 0; r < rows; ++r) {
    const F norm = V::set(item.norms[r]);
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = r * ld + v * V::width;
      const F weight = exp(V::sub(V::load(p + at), shift[v]));
      V::store(p + at, weight);
      product[v] = V::fma(weight, V::load(s + at), product[v]);
      total[v] = V::add(total[v], weight);
      const F length = V::mul(weight, norm);
      diagonal[v] = V::fma(length, length, diagonal[v]);
    }
  }
  for (int v = 0; v < vectors; ++v) {
    V::store(queries.product + j + v * V::width, product[v]);
    V::store(queries.total + j + v * V::width, total[v]);
    V::store(queries.diagonal + j + v * V::width, diagonal[v]);
  }
}

// The attention of all queries of the block over one context item: fills weights, G p and the queries.
static void attend(const CrossAttentionOptions& options, const Roles& roles, const ContextItem& item,
                   const QueryBlock& block, Tiles& tiles, Queries& queries) {
  const int64_t rows = item.n, ld = tiles.ld;
  tiles.similarities = item.similarities;
  if (options.norm != Norm::none) block_logits(options, roles, block, tiles, rows);
  int64_t j = 0;
  for (; j + V::width < block.columns; j += 2 * V::width) weigh<2>(options, item, tiles, j, queries);
  if (j < block.columns) weigh<1>(options, item, tiles, j, queries);
  block_product(rows, block.columns, rows, {item.gram, gram_row(rows), 1}, tiles.weights, kPanel, ld,
                tiles.gram_weights, ld, false);
  for (j = 0; j < block.columns; j += V::width) {
    F square = V::zero();
    for (int64_t r = 0; r < rows; ++r) {
      square = V::fma(V::load(tiles.weights + r * ld + j), V::load(tiles.gram_weights + r * ld + j), square);
    }
    V::store(queries.square + j, square);
    mend_squares(queries, j, block.columns, tiles.weights, ld, item.rows, rows);
    finish_relevance(queries, j, block.norms);
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
