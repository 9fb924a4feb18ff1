// Heterogeneous attention on the CPU: blocks, threads and workspaces around the kernels.
#pragma once
#include "dispatch.h"
#include "heterogeneous_attention/problem.h"

namespace crossret {

void heterogeneous_attention(const Kernels& kernels, const HeterogeneousCall& call);

// Adds to `gradients`; writes those of the normalisation's weight and bias, `norms` (2, dim).
void differentiate_heterogeneous_attention(const Kernels& kernels, const HeterogeneousCall& call,
                                           const HeterogeneousGradients& gradients, float* norms);

}  // namespace crossret
