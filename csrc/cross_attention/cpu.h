// Stacked cross attention on the CPU: plans a batch and runs it over threads under one instruction set.
#pragma once
#include "common/plan.h"
#include "cross_attention/problem.h"

namespace crossret {

// Writes (n_images × n_captions) scores, or one for each of `pairs` when given.
void score_cross_attention(const CrossAttentionKernels& kernels, CrossAttentionCall call, const PairList* pairs);

// Adds to the gradients (rows of the side × dim, float32); a null one is not wanted.
void differentiate_cross_attention(const CrossAttentionKernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const float* grad_scores, float* image_gradients, float* caption_gradients);

}  // namespace crossret
