// Stacked cross attention on the CPU: plans a batch and runs it over threads under one instruction set.
#pragma once
#include "common/backward.h"
#include "common/plan.h"
#include "cross_attention/problem.h"

namespace crossret {

// Writes (n_images × n_captions) scores, or one for each of `pairs` when given.
void score_cross_attention(const CrossAttentionKernels& kernels, CrossAttentionCall call, const PairList* pairs);

// Fills the gradients of both sides, where wanted, from those of the scores.
void differentiate_cross_attention(const CrossAttentionKernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const ScoreGradients& grads, SideGradient& image_gradient,
                                   SideGradient& caption_gradient);

}  // namespace crossret
