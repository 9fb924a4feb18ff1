// The Gram matrix of an item's contexts: ‖Σ p c‖² = pᵀ G p needs no attended vector (kernels.md §1).
namespace crossret {
namespace CROSSRET_ISA {

constexpr int kGramTile = 4;

template <class Element, class Load>
static inline void add_products(const float* const* a, const float* const* b, F (*dots)[kGramTile], const Load& load) {
  F right[kGramTile];
  for (int y = 0; y < kGramTile; ++y) right[y] = load(b[y]);
  for (int x = 0; x < kGramTile; ++x) {
    const F left = load(a[x]);
    for (int y = 0; y < kGramTile; ++y) dots[x][y] = Element::multiply_add(left, right[y], dots[x][y]);
  }
}

// Gram matrix (n × n, row stride gram_row(n)) of n rows, by symmetric 4 × 4 tiles of dot products.
template <class Element>
static void gram_products(const CopiedRows& rows, int64_t n, float* gram) {
  constexpr int side = kGramTile;
  const int64_t ldg = gram_row(n);
  for (int64_t i = 0; i < n; i += side) {
    for (int64_t j = i; j < n; j += side) {
      const float *a[side], *b[side];  // rows past the end repeat the last: computed, never stored
      F dots[side][side];
      for (int x = 0; x < side; ++x) {
        a[x] = rows.data + (i + x < n ? i + x : n - 1) * rows.ld;
        b[x] = rows.data + (j + x < n ? j + x : n - 1) * rows.ld;
        for (int y = 0; y < side; ++y) dots[x][y] = V::zero();
      }
      const int64_t whole = rows.depth / V::width * V::width;
      for (int64_t k = 0; k < whole; k += V::width) {
        add_products<Element>(a, b, dots, [&](const float* row) { return V::load(row + k); });
      }
      if (whole < rows.depth) {
        add_products<Element>(a, b, dots, [&](const float* row) { return V::load(row + whole, rows.depth - whole); });
      }
      for (int x = 0; x < side && i + x < n; ++x) {
        for (int y = 0; y < side && j + y < n; ++y) {
          const float dot = V::reduce_add(dots[x][y]);
          gram[(i + x) * ldg + j + y] = dot;
          gram[(j + y) * ldg + i + x] = dot;
        }
      }
    }
  }
}

static void gram_matrix(const CopiedRows& rows, int64_t n, float* gram) {
  with_elements(rows.pairs, [&](auto element) { gram_products<decltype(element)>(rows, n, gram); });
  const int64_t ldg = gram_row(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; rows.scales && j < n; ++j) gram[i * ldg + j] *= rows.scales[i] * rows.scales[j];
    for (int64_t j = n; j < ldg; ++j) gram[i * ldg + j] = 0.0f;
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
