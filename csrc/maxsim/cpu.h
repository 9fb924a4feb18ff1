// Sum-Max on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "dispatch.h"
#include "maxsim/problem.h"
#include "pairs/backward.h"

namespace crossret {

// Fills call.scores, and call.argmax or call.kept where these are: (context, query) at context_stride and query_stride,
// or those listed.
void score_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                  int64_t query_stride);

// Fills call.scores and call.turned_scores from one product.
void score_maxsim_both(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                       int64_t query_stride);

void differentiate_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, const ScoreGradients& grads,
                          SideGradient& context_gradient, SideGradient& query_gradient);

}  // namespace crossret
