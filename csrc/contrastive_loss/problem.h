// What the contrastive losses' kernels are given, and their entry points under one instruction set.
#pragma once
#include "score_matrix/matrix.h"

namespace crossret {

// Logits are scale · score + bias. A pair whose score is −∞ is left out.
struct ContrastiveCall : ScoreMatrix {
  float scale, bias;
  bool smoothed;  // whether targets go to all pairs
};

// Of rows or columns of logits z, one after the other; six kinds, `stride` apart: their greatest m, Σ e^(z − m), of
// positives Σ (z − m) and their number, of all Σ (z − m) and their number. The last two are kept where smoothed alone.
struct SoftmaxStatistics {
  float* values;
  int64_t stride;

  float* kind(int k, int64_t at) const { return values + k * stride + at; }
};

constexpr int kSoftmaxKinds = 6;

// Of rows or columns: ∂L/∂z is powers · e^(z − most), less `positives` of a positive, less `all`.
struct SoftmaxGradients {
  const float *most, *powers, *positives, *all;
};

// Sums over some rows.
struct ContrastiveSums {
  double scores, all;  // Σ s ∂L/∂z and Σ ∂L/∂z
};

struct ContrastiveLossKernels {
  // Adds the logits of a tile to the statistics of its rows and, where they have positives, of its columns, which begin
  // at the first row and at the first positive. `scratch` holds a tile.
  void (*measure_softmax)(const ContrastiveCall&, const Tile&, const SoftmaxStatistics& rows,
                          const SoftmaxStatistics& columns, float* scratch);
  // Adds statistics of the same `count` columns over later rows.
  void (*merge_softmax)(const SoftmaxStatistics& sum, const SoftmaxStatistics& later, int64_t count);
  // Writes ∂L/∂scores of a tile, which begins at `out`, unless that is null, and adds to the sums; all else begins at
  // the first positive.
  void (*differentiate_softmax)(const ContrastiveCall&, const Tile&, const SoftmaxGradients& rows,
                                const SoftmaxGradients& columns, char* out, int64_t out_row_bytes, float* scratch,
                                ContrastiveSums& sums);
  // Adds the sigmoid losses of a tile to those of its rows, which begin at the first.
  void (*measure_sigmoid)(const ContrastiveCall&, const Tile&, float* losses, float* scratch);
  void (*differentiate_sigmoid)(const ContrastiveCall&, const Tile&, const float* grads, char* out,
                                int64_t out_row_bytes, float* scratch, ContrastiveSums& sums);
};

}  // namespace crossret
