// Attention pooling on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "attention_pool/problem.h"
#include "dispatch.h"

namespace crossret {

void attention_pool(const Kernels& kernels, const AttentionPoolCall& call, const AttentionPoolResults& results);

// Gradients of the items' rows; what lies between items stays as it is.
void differentiate_attention_pool(const Kernels& kernels, const AttentionPoolCall& call,
                                  const AttentionPoolGradients& gradients);

}  // namespace crossret
