// Sum-Max on the CPU: plans a batch and runs it over threads under one instruction set.
#pragma once
#include "common/plan.h"
#include "maxsim/problem.h"

namespace crossret {

// Writes (n_images × n_captions) scores, or one for each of `pairs` when given.
void score_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs);

// Writes the best context of every query: rows of call.argmax_row for each (image, caption), or for each of `pairs`.
void argmax_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs);

// Adds to the gradients (rows of the side × dim, float32); a null one is not wanted.
void differentiate_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs,
                          const float* grad_scores, float* image_gradients, float* caption_gradients);

}  // namespace crossret
