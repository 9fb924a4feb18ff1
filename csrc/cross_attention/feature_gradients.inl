// Gradients of features from those of similarities, the last step of the backward pass of stacked cross attention
// (kernels.md §2). A task takes some items and one slice of columns: no two tasks write to one place.
#pragma once
#include "cross_attention/backward.inl"
#include "pairs/feature_gradients.inl"

namespace crossret {
namespace CROSSRET_ISA {

constexpr int64_t kPartnerRows = 256;  // rows of partners packed together; the last one may exceed it
constexpr int64_t kPartners = 64;

// Successive partners of a group, packed once for all its items.
struct PackedPartners {
  int64_t count;
  const float* panels;      // partner by partner
  int64_t rows[kPartners];  // of each partner
};

// slice += Σ ds · partner for one item of the group, summed in registers over all packed partners.
struct PartnerSum {
  const PackedPartners& partners;
  const float* const* ds;  // of each partner
  bool attends;            // whether the item's rows are the queries; ds is contexts × queries
  int64_t item_rows;
  float* slice;

  template <int MR, int NV>
  __attribute__((noinline)) void tile(int64_t m, int64_t n) const {
    F sums[MR][NV];
    clear_tile(sums);
    const float* panels = partners.panels;
    for (int64_t i = 0; i < partners.count; ++i) {
      const int64_t depth = partners.rows[i];
      const int64_t ld = gram_row(attends ? item_rows : depth);
      const Left left = attends ? Left{ds[i] + m, 1, ld} : Left{ds[i] + m * ld, ld, 1};
      add_to_tile<Floats, false>(sums, depth, left, panels + n * depth, kPanel, {});
      panels += depth * kSlice;
    }
    Store{slice, kSlice, true}.take(m, n, sums);
  }
};

// slices, item by item, += Σ grads(k, p) · partner p, for `count` items k of `own` with the same partners, items of
// `other`.
template <class Grads>
static void add_partners(const RaggedView& own, const int64_t* items, int64_t count, const RaggedView& other,
                         const int64_t* partners, int64_t n_partners, bool attends, int64_t k0, int64_t columns,
                         const Grads& grads, float* panels, float* slices) {
  int64_t end = 0;
  for (int64_t first = 0; first < n_partners; first = end) {
    PackedPartners packed{0, panels, {}};
    for (int64_t depth = 0; end < n_partners && packed.count < kPartners && depth < kPartnerRows; ++end) {
      item_to_panels(other, partners[end], partners[end + 1 < n_partners ? end + 1 : end], k0, columns,
                     panels + depth * kSlice);
      packed.rows[packed.count++] = other.length(partners[end]);
      depth += other.length(partners[end]);
    }
    float* slice = slices;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t rows = own.length(items[k]);
      const float* ds[kPartners];
      for (int64_t i = 0; i < packed.count; ++i) ds[i] = grads(k, first + i);
      for_each_tile(rows, columns, PartnerSum{packed, ds, attends, rows, slice});
      slice += rows * kSlice;
    }
  }
}

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

static int64_t longest_item(const Operands& operands) {
  return operands.contexts.longest > operands.queries.longest ? operands.contexts.longest : operands.queries.longest;
}

static float* take_panels(const Operands& call, Workspace& memory) {
  return memory.floats((kPartnerRows + longest_item(call)) * kSlice);
}

static float* take_slices(const Operands& call, Workspace& memory) {
  const int64_t longest = longest_item(call);
  return memory.floats((longest > kGroupRows ? longest : kGroupRows) * kSlice);
}

// Adds columns [k0, k0 + kSlice) of the gradients of a group's items.
static void cross_attention_feature_gradients(const CrossAttentionCall& call, const CrossAttentionGradients& from,
                                              bool of_contexts, const ItemPairs& jobs, const JobGroup& group,
                                              int64_t k0, Workspace& memory) {
  const RaggedView& own = of_contexts ? call.contexts : call.queries;
  const RaggedView& other = of_contexts ? call.queries : call.contexts;
  const bool attends = !of_contexts;
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float* panels = take_panels(call, memory);
  float* slices = take_slices(call, memory);
  const int64_t *const items = jobs.items + group.first, *const offsets = jobs.offsets + group.first;
  int64_t rows = 0;
  for (int64_t k = 0; k < group.count; ++k) rows += own.length(items[k]);
  for (int64_t i = 0; i < rows * kSlice; ++i) slices[i] = 0.0f;
  const auto offset = [&](int64_t k, int64_t p) { return from.similarity_offsets[jobs.slots[offsets[k] + p]]; };
  add_partners(
      own, items, group.count, other, jobs.partners + offsets[0], offsets[1] - offsets[0], attends, k0, columns,
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
