// Sum-Max on the CPU: plans, threads and workspaces around the kernels.
#pragma once
#include "dispatch.h"
#include "maxsim/problem.h"
#include "pairs/backward.h"

namespace crossret {

// Fills call.scores, and call.argmax or call.kept unless null, of all pairs by these strides or of listed ones.
void score_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                  int64_t query_stride);

// Fills call.scores and, unless they are null, call.turned_scores from one product.
void score_maxsim_both(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                       int64_t query_stride);

// Gradients of both of these scores.
void differentiate_maxsim_both(const Kernels& kernels, MaxSimCall call, const PairList* pairs,
                               const ScoreGradients& grads, const ScoreGradients& turned_grads,
                               SideGradient& context_gradient, SideGradient& query_gradient);

void differentiate_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, const ScoreGradients& grads,
                          SideGradient& context_gradient, SideGradient& query_gradient);

}  // namespace crossret
