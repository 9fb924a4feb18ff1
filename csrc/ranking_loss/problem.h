// What the ranking losses' kernels are given, and their entry points under one instruction set.
#pragma once
#include "score_matrix/matrix.h"

namespace crossret {

enum class Negatives : int { hardest, sum, softmax };

// An exponent of at least 0: whole, and a fraction in units of 2⁻³².
struct Exponent {
  int64_t whole;
  uint32_t fraction;
};

struct RankingLossCall : ScoreMatrix {
  Negatives negatives;
  Exponent slope;           // p − 1 of the ℓ_p norm
  const float* thresholds;  // (n_rows) α − S of each positive
};

// Of rows or columns, one after the other; three kinds, `stride` apart. hardest: the greatest hinge and its place, −1
// where no hinge is positive. sum: the sum of the hinges and the number of positive ones. softmax: the greatest M,
// Σ (h / M)ᵖ and Σ (h / M)ᵖ⁻¹.
struct HingeStatistics {
  float* values;
  int64_t stride;

  float* kind(int k, int64_t at) const { return values + k * stride + at; }
};

// Of positives: ∂L/∂ their loss and, of their rows or columns, the place of the hardest or the loss by softmax, and the
// sum of ∂loss/∂hinge.
struct HingeGradients {
  const float *grads, *keys, *totals;
};

struct RankingLossKernels {
  // Adds the hinges of a tile to the statistics of its rows and, where they have positives, of its columns, which begin
  // at the first row and at the first positive. `scratch` holds a tile.
  void (*measure)(const RankingLossCall&, const Tile&, const HingeStatistics& rows, const HingeStatistics& columns,
                  float* scratch);
  // Adds statistics of the same `count` columns over later rows.
  void (*merge)(const RankingLossCall&, const HingeStatistics& sum, const HingeStatistics& later, int64_t count);
  // Writes the gradient of a tile, which begins at `out`; all else begins at the first positive.
  void (*differentiate)(const RankingLossCall&, const Tile&, const HingeGradients& rows, const HingeGradients& columns,
                        char* out, int64_t out_row_bytes, float* scratch);
};

}  // namespace crossret
