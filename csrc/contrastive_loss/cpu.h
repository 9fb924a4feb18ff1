// Contrastive losses on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "contrastive_loss/problem.h"
#include "dispatch.h"

namespace crossret {

// Of InfoNCE kept for its gradient, of every row and then of every column: the greatest logit, 1 / Σ e^(z − m), the
// target of a positive and that of every pair; the last three are 0 where there is no positive.
constexpr int kInfoNceKept = 8;

// Fills the InfoNCE loss of every positive, and `statistics` (kInfoNceKept, n_rows).
void measure_infonce(const Kernels& kernels, const ContrastiveCall& call, double label_smoothing, float* losses,
                     float* statistics);

// Fills ∂L/∂scores of ∂L/∂losses `grads`, unless `out` is null; returns the sums.
ContrastiveSums differentiate_infonce(const Kernels& kernels, const ContrastiveCall& call, const float* grads,
                                      const float* statistics, char* out, int64_t out_row_bytes);

// The same of the sigmoid loss of every row.
void measure_sigmoid_loss(const Kernels& kernels, const ContrastiveCall& call, float* losses);

ContrastiveSums differentiate_sigmoid_loss(const Kernels& kernels, const ContrastiveCall& call, const float* grads,
                                           char* out, int64_t out_row_bytes);

}  // namespace crossret
