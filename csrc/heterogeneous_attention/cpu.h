// Heterogeneous attention on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "dispatch.h"
#include "heterogeneous_attention/problem.h"

namespace crossret {

void heterogeneous_attention(const Kernels& kernels, const HeterogeneousCall& call);

// Gradients gain their parts; those of the normalisation's weight and bias, (2, dim), are written.
void differentiate_heterogeneous_attention(const Kernels& kernels, const HeterogeneousCall& call,
                                           const HeterogeneousGradients& gradients, float* norms);

}  // namespace crossret
