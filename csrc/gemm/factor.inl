// The factor U of an item's Gram matrix, UᵀU = C Cᵀ: ‖Σ p c‖ = ‖U p‖ needs no attended vector (kernels.md §1). As a sum
// of squares it keeps its digits where contexts nearly cancel; pᵀ C Cᵀ p would be a small difference of large terms.
namespace crossret {
namespace CROSSRET_ISA {

// The upper half of the Gram matrix (row stride gram_row(n)) of n rows; below it some cells are written too.
template <class Precision>
static void gram_products(const float* const* rows, int64_t n, int64_t depth, double* gram) {
  const int64_t ld = gram_row(n);
  for (int64_t i = 0; i < n; i += kDotRows) {
    const int64_t height = n - i < kDotRows ? n - i : kDotRows;
    multiply_dots<Precision>(rows + i, height, rows + i, n - i, depth, {true, nullptr}, gram + i * ld + i, ld);
  }
}

// Turns the upper half of a Gram matrix into its factor, in place, by the columns that come first. False, and the work
// left half done, where a row is so nearly a combination of the rows before it that no more than `least` of its square
// is left. A row that is such a combination as far as double precision tells gets a factor of zero.
static bool factorise(double* gram, double* diagonal, int64_t n, double least) {
  constexpr double unit = 1e-14;
  const int64_t ld = gram_row(n);
  for (int64_t j = 0; j < n; ++j) diagonal[j] = gram[j * ld + j];
  for (int64_t j = 0; j < n; ++j) {
    double* const row = gram + j * ld;
    const double left = row[j];
    if (least > 0 && !(left > least * diagonal[j])) return false;
    if (left <= unit * diagonal[j]) {
      for (int64_t k = j; k < n; ++k) row[k] = 0.0;
      continue;
    }
    const double inverse = 1.0 / __builtin_sqrt(left);
    for (int64_t k = j; k < n; ++k) row[k] *= inverse;
    for (int64_t i = j + 1; i < n; ++i) {
      double* const out = gram + i * ld;
      const double factor = row[i];
      for (int64_t k = i; k < n; ++k) out[k] -= factor * row[k];
    }
  }
  return true;
}

static int64_t factor_scratch(int64_t n) { return 2 * (n * gram_row(n) + 2 * n); }  // floats

// The factor of n rows, row stride gram_row(n), zero below its diagonal. Rows that are far from dependent are summed in
// float32: what its rounding adds to ‖U p‖² is then small beside it, whatever p.
static void factor_rows(const float* rows, int64_t ld, int64_t n, int64_t depth, float* factor, float* scratch) {
  constexpr double independent = 1.0 / 16;
  const int64_t ldg = gram_row(n);
  double* const gram = reinterpret_cast<double*>(scratch);
  double* const diagonal = gram + n * ldg;
  const float** const at = reinterpret_cast<const float**>(diagonal + n);
  for (int64_t r = 0; r < n; ++r) at[r] = rows + r * ld;
  gram_products<SinglePrecision>(at, n, depth, gram);
  if (!factorise(gram, diagonal, n, independent)) {
    gram_products<DoublePrecision>(at, n, depth, gram);
    factorise(gram, diagonal, n, 0.0);
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < ldg; ++k) {
      factor[j * ldg + k] = k < j || k >= n ? 0.0f : static_cast<float>(gram[j * ldg + k]);
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
