// Min-max attention (SPARC) of queries to the contexts of one item, and its gradients: n = (s − min s) / (max s − min
// s) along an item's contexts, and p = n, or 0 below a threshold. The relevance is that of `relevance.inl`.
#pragma once
#include "cross_attention/relevance.inl"

namespace crossret {
namespace CROSSRET_ISA {

// The similarities of one vector of queries with an item's contexts: the least, and the greatest less the least.
struct Extent {
  F least, width;
};

static inline Extent extent_of(int64_t rows, const AttentionTile& tile, int64_t j) {
  F least = V::load(tile.similarities + j), most = least;
  for (int64_t at = j + tile.ld; at < rows * tile.ld; at += tile.ld) {
    const F s = V::load(tile.similarities + at);
    least = V::min(least, s);
    most = V::max(most, s);
  }
  return {least, V::sub(most, least)};
}

// p, Σ p s and Σ p of one vector of queries of min-max attention. p is 1 where all similarities agree; NaN stays. The
// greatest is exactly 1, as only a quotient is: so some always reach the threshold.
static void spread(const CrossAttentionOptions& options, int64_t rows, const AttentionTile& tile, int64_t j,
                   Queries& queries) {
  const F zero = V::zero(), one = V::set(1.0f);
  const Extent extent = extent_of(rows, tile, j);
  const auto differ = V::nonzero(extent.width);
  const F divisor = V::select(differ, extent.width, one), base = V::select(differ, zero, one);
  const F threshold = V::set(options.threshold < 0 ? 1.0f / static_cast<float>(rows) : options.threshold);
  F product = zero, total = zero;
  for (int64_t at = j; at < rows * tile.ld; at += tile.ld) {
    const F s = V::load(tile.similarities + at);
    const F n = V::add(V::div(V::sub(s, extent.least), divisor), base);
    const F p = V::select(V::less(n, threshold), zero, n);
    V::store(tile.weights + at, p);
    product = V::fma(p, s, product);
    total = V::add(total, p);
  }
  keep_sums(queries, j, product, total);
  if (options.focal) focus(rows, tile, j, queries);
}

// ∂L/∂s through p of one vector of queries of min-max attention, in place of ∂L/∂p, whose mean it takes out. Nothing
// goes through max s, as results are the same of all multiples of p; what goes through min s is shared by its ties.
static void spread_gradients(const CrossAttentionOptions& options, int64_t rows, const AttentionTile& tile, int64_t j,
                             F mean, float* weight_grads) {
  const F zero = V::zero(), one = V::set(1.0f);
  const Extent extent = extent_of(rows, tile, j);
  const F divisor = V::select(V::nonzero(extent.width), extent.width, V::set(__builtin_inff()));
  // Weights of zero have no gradient, unless zero reaches the threshold.
  const F lift = options.threshold == 0 && !options.focal ? one : zero;
  F sum = zero, ties = zero;
  for (int64_t at = j; at < rows * tile.ld; at += tile.ld) {
    const F gradient = V::div(V::sub(V::load(weight_grads + at), mean), divisor);
    const F kept = V::select(V::nonzero(V::add(V::load(tile.weights + at), lift)), gradient, zero);
    V::store(weight_grads + at, kept);
    sum = V::add(sum, kept);
    ties = V::add(ties, V::select(V::nonzero(V::sub(V::load(tile.similarities + at), extent.least)), zero, one));
  }
  const F share = V::div(sum, ties);
  for (int64_t at = j; at < rows * tile.ld; at += tile.ld) {
    const auto above = V::nonzero(V::sub(V::load(tile.similarities + at), extent.least));
    V::store(weight_grads + at, V::sub(V::load(weight_grads + at), V::select(above, zero, share)));
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
