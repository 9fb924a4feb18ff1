// Ranking losses on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "dispatch.h"
#include "ranking_loss/problem.h"

namespace crossret {

// Fills the loss of every positive, and `statistics` (4, n_rows): keys and totals of rows, then of columns, as
// `HingeGradients` has them. `order` is p.
void measure_ranking_loss(const Kernels& kernels, const RankingLossCall& call, double order, float* losses,
                          float* statistics);

// Fills ∂L/∂scores of ∂L/∂losses `grads`.
void differentiate_ranking_loss(const Kernels& kernels, const RankingLossCall& call, const float* grads,
                                const float* statistics, char* out, int64_t out_row_bytes);

}  // namespace crossret
