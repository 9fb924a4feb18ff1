#include "attention_pool/cpu.h"

#include <algorithm>

#include "pairs/parallel.h"

namespace crossret {

CROSSRET_BY_SET(AttentionPoolKernels, attention_pool_kernels)

namespace {

// Each value is multiplied once by every head, and at least brought from memory.
double work_of(const AttentionPoolCall& call) {
  const double per_value = static_cast<double>(std::max<int64_t>(call.heads, 4));
  return per_value * static_cast<double>(call.values.rows) * static_cast<double>(call.values.dim);
}

}  // namespace

void attention_pool(const Kernels& kernels, const AttentionPoolCall& call, const AttentionPoolResults& results) {
  const AttentionPoolKernels& run = attention_pool_kernels_of(kernels);
  Workspace counted;
  run.scratch(call, counted);
  Memory memory;
  parallel(call.values.count, work_of(call), counted.bytes(), memory,
           [&](int64_t item, Workspace& workspace) { run.pool(call, results, item, workspace); });
}

void differentiate_attention_pool(const Kernels& kernels, const AttentionPoolCall& call,
                                  const AttentionPoolGradients& gradients) {
  const AttentionPoolKernels& run = attention_pool_kernels_of(kernels);
  Workspace counted;
  run.scratch(call, counted);
  Memory memory;
  parallel(call.values.count, 2 * work_of(call), counted.bytes(), memory,
           [&](int64_t item, Workspace& workspace) { run.differentiate(call, gradients, item, workspace); });
}

}  // namespace crossret
