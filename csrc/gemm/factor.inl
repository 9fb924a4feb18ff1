// The factor U of an item's Gram matrix, UᵀU = C Cᵀ: ‖Σ p c‖ = ‖U p‖ needs no attended vector (kernels.md §1). As a sum
// of squares it keeps its digits where contexts nearly cancel; pᵀ C Cᵀ p would be a small difference of large terms.
namespace crossret {
namespace CROSSRET_ISA {

constexpr int kGramTile = 4;

// What dot products of rows are summed in.
struct SinglePrecision {
  using Sum = F;
  using Loaded = F;
  static Sum zero() { return V::zero(); }
  static Loaded load(const float* p, int64_t n) { return V::load(p, n); }
  static Sum multiply_add(Loaded a, Loaded b, Sum sum) { return V::fma(a, b, sum); }
  static double total(Sum sum) { return static_cast<double>(V::reduce_add(sum)); }
};

struct DoublePrecision {
  struct Loaded {
    V::Double low, high;
  };
  using Sum = V::Double;
  static Sum zero() { return V::zero_double(); }
  static Loaded load(const float* p, int64_t n) {
    const F x = V::load(p, n);
    return {V::low(x), V::high(x)};
  }
  static Sum multiply_add(const Loaded& a, const Loaded& b, Sum sum) {
    return V::fma(a.low, b.low, V::fma(a.high, b.high, sum));
  }
  static double total(Sum sum) { return V::reduce_add(sum); }
};

// Adds those of features [k, k + n) of some rows.
template <class Precision>
static inline __attribute__((always_inline)) void add_products(const float* const* a, const float* const* b, int64_t k,
                                                               int64_t n,
                                                               typename Precision::Sum (&dots)[kGramTile][kGramTile]) {
  typename Precision::Loaded right[kGramTile];
  for (int y = 0; y < kGramTile; ++y) right[y] = Precision::load(b[y] + k, n);
  for (int x = 0; x < kGramTile; ++x) {
    const auto left = Precision::load(a[x] + k, n);
    for (int y = 0; y < kGramTile; ++y) dots[x][y] = Precision::multiply_add(left, right[y], dots[x][y]);
  }
}

// The upper half of the Gram matrix (n × n, row stride gram_row(n)) of n rows, by 4 × 4 tiles of dot products.
template <class Precision>
static void gram_products(const float* rows, int64_t ld, int64_t n, int64_t depth, double* gram) {
  constexpr int side = kGramTile;
  const int64_t ldg = gram_row(n);
  for (int64_t i = 0; i < n; i += side) {
    for (int64_t j = i; j < n; j += side) {
      const float *a[side], *b[side];  // rows past the end repeat the last: computed, never stored
      typename Precision::Sum dots[side][side];
      for (int x = 0; x < side; ++x) {
        a[x] = rows + (i + x < n ? i + x : n - 1) * ld;
        b[x] = rows + (j + x < n ? j + x : n - 1) * ld;
        for (int y = 0; y < side; ++y) dots[x][y] = Precision::zero();
      }
      const int64_t whole = depth / V::width * V::width;
      for (int64_t k = 0; k < whole; k += V::width) add_products<Precision>(a, b, k, V::width, dots);
      if (whole < depth) add_products<Precision>(a, b, whole, depth - whole, dots);
      for (int x = 0; x < side && i + x < n; ++x) {
        for (int y = 0; y < side && j + y < n; ++y) gram[(i + x) * ldg + j + y] = Precision::total(dots[x][y]);
      }
    }
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

static int64_t factor_scratch(int64_t n) { return 2 * (n * gram_row(n) + n); }  // floats

// The factor of n rows, row stride gram_row(n), zero below its diagonal. Rows that are far from dependent are summed in
// float32: what its rounding adds to ‖U p‖² is then small beside it, whatever p.
static void factor_rows(const float* rows, int64_t ld, int64_t n, int64_t depth, float* factor, float* scratch) {
  constexpr double independent = 1.0 / 16;
  const int64_t ldg = gram_row(n);
  double* const gram = reinterpret_cast<double*>(scratch);
  double* const diagonal = gram + n * ldg;
  gram_products<SinglePrecision>(rows, ld, n, depth, gram);
  if (!factorise(gram, diagonal, n, independent)) {
    gram_products<DoublePrecision>(rows, ld, n, depth, gram);
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
