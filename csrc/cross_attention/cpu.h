// Stacked cross attention on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "cross_attention/problem.h"
#include "dispatch.h"
#include "pairs/backward.h"

namespace crossret {

// Fills call.scores: (context, query) at context_stride and query_stride, or those listed; of these call.made too.
void score_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                           int64_t context_stride, int64_t query_stride);

// Fills (items, longest, ld) of `out` with the factors of a side's Gram matrices, zeros where they have none.
void keep_factors(const Kernels& kernels, const RaggedView& side, int64_t longest, int64_t ld, float* out);

// Of listed pairs also by the gradients that call.given holds.
void differentiate_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const ScoreGradients& grads, SideGradient& context_gradient,
                                   SideGradient& query_gradient);

}  // namespace crossret
