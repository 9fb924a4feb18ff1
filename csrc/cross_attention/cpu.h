// Stacked cross attention on the CPU: plans, threads and workspaces around the kernels.
#pragma once
#include "cross_attention/problem.h"
#include "dispatch.h"
#include "pairs/backward.h"

namespace crossret {

// Fills call.scores: (context, query) at context_stride and query_stride, or listed pairs; and call.made of these.
void score_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                           int64_t context_stride, int64_t query_stride);

// Fills `out` (items, longest, ld) with the triangular factors of a side's Gram matrices, padded with zeros.
void keep_factors(const Kernels& kernels, const RaggedView& side, int64_t longest, int64_t ld, float* out);

// Adds the gradients of all pairs or of listed ones, of these with call.given's.
void differentiate_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const ScoreGradients& grads, SideGradient& context_gradient,
                                   SideGradient& query_gradient);

}  // namespace crossret
