// Stacked cross attention on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "cross_attention/problem.h"
#include "dispatch.h"
#include "pairs/backward.h"

namespace crossret {

// Fills call.scores: (context, query) at context_stride and query_stride, or those listed.
void score_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                           int64_t context_stride, int64_t query_stride);

void differentiate_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const ScoreGradients& grads, SideGradient& context_gradient,
                                   SideGradient& query_gradient);

}  // namespace crossret
