// The triangular factor U of an item's Gram matrix, UᵀU = C Cᵀ: ‖Σ p c‖ = ‖U p‖ needs no attended vector (kernels.md
// §1). A sum of squares keeps its digits where contexts nearly cancel; pᵀ C Cᵀ p is then a small difference of large
// terms.
#pragma once
#include "gemm/dots.inl"

namespace crossret {
namespace CROSSRET_ISA {

// The upper triangle of the Gram matrix of n rows, row stride gram_row(n). Some cells below it are written too.
template <class Precision>
static void gram_products(const float* const* rows, int64_t n, int64_t depth, double* gram) {
  const int64_t ld = gram_row(n);
  for (int64_t i = 0; i < n; i += kDotRows) {
    const int64_t height = n - i < kDotRows ? n - i : kDotRows;
    const Ahead none{reinterpret_cast<const char*>(rows[i]), 0};
    multiply_dots<Precision>(rows + i, height, rows + i, n - i, depth, true, none, gram + i * ld + i, ld);
  }
}

// Least pivot relative to the row's square, for products in double and in float. A smaller pivot is rounding, whose
// square divided by the pivot would be subtracted from later rows. In floats that rounding is 1e-6 at D = 4096: the
// error is at most 1e-7.
constexpr double kLeast = 1e-14, kLeastOfFloats = 1e-5;

// Cholesky factorisation of the upper triangle of a Gram matrix, in place, without pivoting. A row whose pivot is at
// most `least` becomes zero; where the matrix must be `definite`, returns false there, the work half done.
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

// Whether ‖Σ p c‖² ≥ part · Σ p² ‖c‖² for all weights p ≥ 0, from the upper triangle of the Gram matrix, which is
// restored. A bound from each row's negative cosines (Gershgorin) settles most; the exact test, for p of any sign, is
// whether the matrix minus that part of its diagonal is positive definite. `scratch` holds 2n.
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

  // The upper triangle is saved below the diagonal.
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

// The triangular factor of n rows, row stride gram_row(n), zero below its diagonal.
static void factor_rows(const float* rows, int64_t ld, int64_t n, int64_t depth, float* factor, float* scratch) {
  // Float32 sums of D products, in v lanes, are off by about u (1 + √D / v) of ‖c‖². ‖a‖² = ‖U p‖² is off by that over
  // τ = ‖a‖² / Σ p² ‖c‖², and a cosine by half as much; the bound for scores is 32 u. Measured with two opposed
  // contexts and v = 4, scores keep it down to τ = 1/60 at D = 64, 1/24 at 1024 and 1/10 at 4096, gradients further.
  // The threshold is at least twice that τ; below it sums are doubles.
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
