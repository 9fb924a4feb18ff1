// Gradients of feature rows from those of all similarities of their pairs: products with the partners' rows.
#pragma once
#include "pairs/feature_gradients.inl"
#include "pairs/prepare.inl"

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

// Slices of a group's items, one behind the other: zeros += Σ grads(k, p) · partner p, the gradients of the
// similarities of the group's item k and its partner p.
template <class Grads>
static void sum_partners(const Operands& call, bool of_contexts, const ItemPairs& jobs, const JobGroup& group,
                         int64_t k0, int64_t columns, const Grads& grads, float* panels, float* slices) {
  const RaggedView& own = of_contexts ? call.contexts : call.queries;
  const RaggedView& other = of_contexts ? call.queries : call.contexts;
  const int64_t *const items = jobs.items + group.first, *const offsets = jobs.offsets + group.first;
  int64_t rows = 0;
  for (int64_t k = 0; k < group.count; ++k) rows += own.length(items[k]);
  for (int64_t i = 0; i < rows * kSlice; ++i) slices[i] = 0.0f;
  add_partners(own, items, group.count, other, jobs.partners + offsets[0], offsets[1] - offsets[0], !of_contexts, k0,
               columns, grads, panels, slices);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
