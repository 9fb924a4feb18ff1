// Ranking losses on a GPU, over plain pointers to its memory.
#pragma once
#include <cstdint>

#include "cuda/stream.h"
#include "ranking_loss/problem.h"

namespace crossret {
namespace gpu {

// Image i and caption i + offset match.
struct LossCall {
  const void* scores;
  int64_t row_stride;  // elements
  Dtype dtype;
  int n_rows, n_columns, offset;
  float margin;
  Negatives negatives;
  double order;  // p
  Reduction reduction;
  const int64_t *image_ids, *caption_ids;  // (n_columns); null where all differ
};

// Numbers that measuring a call needs room for, each as large as a float.
int64_t loss_scratch(const LossCall& call, const Stream& stream);

// Fills the loss, of one number or of one a row, and `statistics` (4, n_rows): keys and totals of rows, then of
// columns, as `HingeGradients` has them.
void measure_ranking_loss(const LossCall& call, const Stream& stream, float* loss, float* statistics, void* scratch);

// Fills ∂L/∂scores (n_rows, n_columns), in their dtype, of ∂L/∂loss: `grads` lie `stride` apart, or are one.
void differentiate_ranking_loss(const LossCall& call, const Stream& stream, const float* grads, int64_t stride,
                                const float* statistics, void* out);

}  // namespace gpu
}  // namespace crossret
