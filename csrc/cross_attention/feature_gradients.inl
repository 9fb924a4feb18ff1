// Gradients of features from those of similarities, the last step of the backward pass of stacked cross attention
// (kernels.md §2). A task takes some items and one slice of columns: no two tasks write to one place.
#pragma once
#include "cross_attention/backward.inl"
#include "pairs/partner_sums.inl"

namespace crossret {
namespace CROSSRET_ISA {

// slice += the multiples of an item's own rows in its gradient: by the Gram matrix of contexts, by the cosine's norm of
// queries.
static void add_own_rows(const CrossAttentionGradients& from, const RaggedView& own, const ItemPairs& jobs, int64_t job,
                         bool attends, int64_t k0, int64_t columns, float* scratch, float* slice) {
  const int64_t item = jobs.items[job], rows = own.length(item);
  if (!attends) {
    item_to_panels(own, item, item, k0, columns, scratch);
    const Left gram{from.gram_grads + from.gram_offsets[jobs.slots[jobs.offsets[job]]], gram_row(rows), 1};
    return multiply(rows, columns, AllOf{rows}, gram, {scratch, rows * kPanel, kPanel}, Store{slice, kSlice, true});
  }
  for (int64_t r = 0; r < rows; ++r) {
    float coef = 0.0f;
    for (int64_t p = jobs.offsets[job]; p < jobs.offsets[job + 1]; ++p) {
      coef += from.query_coefs[from.query_offsets[jobs.slots[p]] + r];
    }
    add_scaled_row(own, item, r, k0, columns, coef, slice + r * kSlice);
  }
}

// Adds columns [k0, k0 + kSlice) of the gradients of a group's items.
static void cross_attention_feature_gradients(const CrossAttentionCall& call, const CrossAttentionGradients& from,
                                              bool of_contexts, const ItemPairs& jobs, const JobGroup& group,
                                              int64_t k0, Workspace& memory) {
  const RaggedView& own = of_contexts ? call.contexts : call.queries;
  const bool attends = !of_contexts;
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float* panels = take_panels(call, memory);
  float* slices = take_slices(call, memory);
  const int64_t *const items = jobs.items + group.first, *const offsets = jobs.offsets + group.first;
  const auto offset = [&](int64_t k, int64_t p) { return from.similarity_offsets[jobs.slots[offsets[k] + p]]; };
  sum_partners(
      call, of_contexts, jobs, group, k0, columns,
      [&](int64_t k, int64_t p) { return from.similarity_grads + offset(k, p); }, panels, slices);
  float* slice = slices;
  for (int64_t k = 0; k < group.count; ++k) {
    const int64_t job = group.first + k, item = jobs.items[job];
    if (of_contexts && from.attended.items != nullptr) {  // weights · ∂L/∂attended, rows of each pair
      add_partners(
          own, items + k, 1, from.attended, jobs.slots + offsets[k], offsets[k + 1] - offsets[k], false, k0, columns,
          [&](int64_t, int64_t p) { return from.weights + offset(k, p); }, panels, slice);
    }
    add_own_rows(from, own, jobs, job, attends, k0, columns, panels, slice);
    add_slice(own, item, k0, columns, slice, group.sums[k]);
    slice += own.length(item) * kSlice;
  }
}

static void forward_memory(const CrossAttentionCall& call, Workspace& memory) { AttentionBuffers(call, memory); }

static void backward_memory(const CrossAttentionCall& call, Workspace& memory) {
  AttentionBackwardBuffers(call, memory);
}

static void feature_memory(const CrossAttentionCall& call, Workspace& memory) {
  take_panels(call, memory);
  take_slices(call, memory);
}

extern const CrossAttentionKernels cross_attention_kernels;
const CrossAttentionKernels cross_attention_kernels = {cross_attention_forward,
                                                       cross_attention_backward,
                                                       cross_attention_feature_gradients,
                                                       keep_factor,
                                                       forward_memory,
                                                       backward_memory,
                                                       feature_memory};

}  // namespace CROSSRET_ISA
}  // namespace crossret
