// Sum-Max on the CPU: plans a batch and runs it over threads under one instruction set.
#pragma once
#include "common/backward.h"
#include "common/plan.h"
#include "maxsim/problem.h"

namespace crossret {

// Writes (n_images × n_captions) scores, or one for each of `pairs` when given.
void score_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs);

// Writes the best context of every query: rows of call.argmax_row for each (image, caption), or for each of `pairs`.
void argmax_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs);

// Fills the gradients of both sides, where wanted, from those of the scores.
void differentiate_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs,
                          const ScoreGradients& grads, SideGradient& image_gradient, SideGradient& caption_gradient);

}  // namespace crossret
