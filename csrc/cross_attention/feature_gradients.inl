// Gradients of features from those of similarities, the last step of the backward pass of stacked cross attention
// (kernels.md §2). A task takes some items and one slice of columns: no two tasks write to one place.
#pragma once
#include "cross_attention/backward.inl"
#include "pairs/partner_sums.inl"

namespace crossret {
namespace CROSSRET_ISA {

// The gradient of an item's Gram matrix: one of all its pairs, or the sum of one a pair, for which there is `scratch`.
static const float* gram_gradient(const CrossAttentionGradients& from, const ItemPairs& jobs, int64_t job, int64_t rows,
                                  float* scratch) {
  const int64_t first = jobs.offsets[job], last = jobs.offsets[job + 1], size = rows * gram_row(rows);
  const auto of = [&](int64_t p) { return from.gram_grads + from.gram_offsets[jobs.slots[p]]; };
  if (last - first == 1 || of(first) == of(first + 1)) return of(first);
  clear(scratch, size);
  for (int64_t p = first; p < last; ++p) {
    for (int64_t i = 0; i < size; i += V::width) {
      V::store(scratch + i, V::add(V::load(scratch + i), V::load(of(p) + i)));
    }
  }
  return scratch;
}

// slice += the multiples of an item's own rows in its gradient: by the Gram matrix where the item is attended to, by
// the cosine's norm where it attends.
static void add_own_rows(const CrossAttentionGradients* attended, const CrossAttentionGradients* attending,
                         const RaggedView& own, const ItemPairs& jobs, int64_t job, int64_t k0, int64_t columns,
                         float* panels, float* gram_scratch, float* slice) {
  const int64_t item = jobs.items[job], rows = own.length(item);
  if (attended != nullptr) {
    item_to_panels(own, item, item, k0, columns, panels);
    const Left gram{gram_gradient(*attended, jobs, job, rows, gram_scratch), gram_row(rows), 1};
    multiply(rows, columns, AllOf{rows}, gram, {panels, rows * kPanel, kPanel}, Store{slice, kSlice, true});
  }
  for (int64_t r = 0; attending != nullptr && r < rows; ++r) {
    float coef = 0.0f;
    for (int64_t p = jobs.offsets[job]; p < jobs.offsets[job + 1]; ++p) {
      coef += attending->query_coefs[attending->query_offsets[jobs.slots[p]] + r];
    }
    add_scaled_row(own, item, r, k0, columns, coef, slice + r * kSlice);
  }
}

static float* take_gram(const CrossAttentionCall& call, Workspace& memory) {
  const int64_t n = call.turned != nullptr ? call.queries.longest : 0;
  return memory.floats(n * gram_row(n));
}

// Adds columns [k0, k0 + kSlice) of the gradients of a group's items.
static void cross_attention_feature_gradients(const CrossAttentionCall& call, const CrossAttentionGradients& from,
                                              bool of_contexts, const ItemPairs& jobs, const JobGroup& group,
                                              int64_t k0, Workspace& memory) {
  const RaggedView& own = of_contexts ? call.contexts : call.queries;
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float* panels = take_panels(call, memory);
  float* slices = take_slices(call, memory);
  float* gram = take_gram(call, memory);
  const CrossAttentionGradients *attended = of_contexts ? &from : from.turned,
                                *attending = of_contexts ? from.turned : &from;
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
    add_own_rows(attended, attending, own, jobs, job, k0, columns, panels, gram, slice);
    add_slice(own, item, k0, columns, slice, group.sums[k]);
    slice += own.length(item) * kSlice;
  }
}

static void forward_memory(const CrossAttentionCall& call, Workspace& memory) {
  AttentionBuffers(call, memory);
  if (call.turned != nullptr) AttentionBuffers(*call.turned, memory);
}

static void backward_memory(const CrossAttentionCall& call, Workspace& memory) {
  AttentionBackwardBuffers(call, memory);
  if (call.turned != nullptr) AttentionBackwardBuffers(*call.turned, memory);
}

static void feature_memory(const CrossAttentionCall& call, Workspace& memory) {
  take_panels(call, memory);
  take_slices(call, memory);
  take_gram(call, memory);
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
