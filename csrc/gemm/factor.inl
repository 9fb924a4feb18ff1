// The factor U of an item's Gram matrix, UᵀU = C Cᵀ: ‖Σ p c‖ = ‖U p‖ needs no attended vector (kernels.md §1). As a sum
// of squares it keeps its digits where contexts nearly cancel; pᵀ C Cᵀ p would be a small difference of large terms.
#pragma once
#include "gemm/dots.inl"

namespace crossret {
namespace CROSSRET_ISA {

// The upper half of the Gram matrix (row stride gram_row(n)) of n rows; below it some cells are written too.
template <class Precision>
static void gram_products(const float* const* rows, int64_t n, int64_t depth, double* gram) {
  const int64_t ld = gram_row(n);
  for (int64_t i = 0; i < n; i += kDotRows) {
    const int64_t height = n - i < kDotRows ? n - i : kDotRows;
    const Ahead none{reinterpret_cast<const char*>(rows[i]), 0};  // but what is there
    multiply_dots<Precision>(rows + i, height, rows + i, n - i, depth, true, none, gram + i * ld + i, ld);
  }
}

// How much of a row must be left beside the rows before it, relative to the row, so that what is left is no rounding:
// of products that are rounded to doubles, and to floats. Below it the row's rounding, squared and divided by what is
// left, would be taken from later rows. Of floats that rounding is 1e-6 at D = 4096: 1e-7 is taken at most.
constexpr double kLeast = 1e-14, kLeastOfFloats = 1e-5;

// Turns the upper half of a Gram matrix into its factor, in place, by the columns that come first. A row of which no
// more than `least` is left gets a factor of zero; or the work is left half done, and the result is false, where the
// matrix is to be `definite`.
static bool factorise(double* gram, const double* diagonal, int64_t n, double least, bool definite) {
  const int64_t ld = gram_row(n);
  for (int64_t j = 0; j < n; ++j) {
    double* const row = gram + j * ld;
    const double left = row[j];
    if (definite && !(left > least * diagonal[j])) return false;
    if (left <= least * diagonal[j]) {
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

// Whether ‖Σ p c‖² is at least `part` of Σ p² ‖c‖² for all weights p ≥ 0, from the upper half of the Gram matrix, which
// stays as it is. First by what every row has of cosines below zero (Gershgorin), which settles most; then exactly but
// for the sign of p: less that part of its diagonal the matrix is positive definite. `scratch` holds 2n.
static bool never_cancels(double* gram, const double* diagonal, int64_t n, double part, double* scratch) {
  const int64_t ld = gram_row(n);
  double *const inverse = scratch, *const against = scratch + n;
  for (int64_t j = 0; j < n; ++j) {
    inverse[j] = diagonal[j] > 0.0 ? 1.0 / __builtin_sqrt(diagonal[j]) : 0.0;
    against[j] = 0.0;
  }
  double most = 0.0;
  for (int64_t j = 0; j < n; ++j) {
    const double* const row = gram + j * ld;
    double sum = against[j];
    for (int64_t k = j + 1; k < n; ++k) {
      const double cosine = row[k] * inverse[j] * inverse[k];
      const double negative = cosine > 0.0 ? 0.0 : -cosine;
      sum += negative;
      against[k] += negative;
    }
    most = sum <= most ? most : sum;  // NaN stays
  }
  if (most <= 1.0 - part) return true;

  // Its upper half is kept below the diagonal meanwhile.
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = j + 1; k < n; ++k) gram[k * ld + j] = gram[j * ld + k];
    gram[j * ld + j] -= part * diagonal[j];
  }
  const bool definite = factorise(gram, diagonal, n, kLeast, true);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = j + 1; k < n; ++k) gram[j * ld + k] = gram[k * ld + j];
    gram[j * ld + j] = diagonal[j];
  }
  return definite;
}

static int64_t factor_scratch(int64_t n) { return 2 * (n * gram_row(n) + 4 * n); }  // floats

// The factor of n rows, row stride gram_row(n), zero below its diagonal.
static void factor_rows(const float* rows, int64_t ld, int64_t n, int64_t depth, float* factor, float* scratch) {
  // Sums of D products in float32, v side by side, are off by some u (1 + √D / v) of ‖c‖². ‖a‖² = ‖U p‖² is off by that
  // over τ = ‖a‖² / Σ p² ‖c‖², and a cosine by half as much; scores may be off by 32 u. They are within, measured with
  // two opposed contexts and v = 4, down to τ = 1/60 at D = 64, 1/24 at 1024 and 1/10 at 4096, gradients further. Here
  // that is taken twice at least; below, sums are of doubles, and what U p itself rounds is left, as of attended
  // vectors.
  const double cancelled = (4.0 + __builtin_sqrt(static_cast<double>(depth))) / 256.0;
  const int64_t ldg = gram_row(n);
  double* const gram = reinterpret_cast<double*>(scratch);
  double* const diagonal = gram + n * ldg;
  const float** const at = reinterpret_cast<const float**>(diagonal + n);
  for (int64_t r = 0; r < n; ++r) at[r] = rows + r * ld;
  const auto keep_diagonal = [&] {
    for (int64_t r = 0; r < n; ++r) diagonal[r] = gram[r * ldg + r];
  };
  gram_products<SinglePrecision>(at, n, depth, gram);
  keep_diagonal();
  const bool fine = never_cancels(gram, diagonal, n, cancelled, diagonal + 2 * n) &&
                    factorise(gram, diagonal, n, kLeastOfFloats, true);
  if (!fine) {
    gram_products<DoublePrecision>(at, n, depth, gram);
    keep_diagonal();
    factorise(gram, diagonal, n, kLeast, false);
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < ldg; ++k) {
      factor[j * ldg + k] = k < j || k >= n ? 0.0f : static_cast<float>(gram[j * ldg + k]);
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
