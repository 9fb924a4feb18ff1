// Gated attention on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "dispatch.h"
#include "gated_attention/problem.h"

namespace crossret {

// Scores of all pairs (images, captions), or of those listed.
void gated_attention(const Kernels& kernels, const GatedAttentionCall& call, float* scores);

void differentiate_gated_attention(const Kernels& kernels, const GatedAttentionCall& call,
                                   const GatedAttentionGradients& gradients);

}  // namespace crossret
