// Sum-Max (SCAN Eqs. 9 and 10): the best context of every query, found while their similarities are in registers.
#pragma once
#include "maxsim/whole_items.inl"
#include "pairs/feature_gradients.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Epilogue: the largest similarity of each query so far and, with kNumber, the number of its context: the first of
// equals, or the first NaN.
template <bool kNumber>
struct Best {
  float* values;
  float* numbers;
  int64_t columns;
  int64_t first;            // number of the first row in the group
  const float* row_scales;  // factors of similarities; null without scales
  const float* column_scales;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      const int64_t at = n + j * V::width, left = columns - at;
      if (row_scales != nullptr) {
        const F scale = V::load(column_scales + at);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) sums[i][j] = V::mul(sums[i][j], V::mul(V::set(row_scales[m + i]), scale));
      }
      const F before = V::load(values + at, left);
      if constexpr (kNumber) {
        F value = before, number = V::load(numbers + at, left), own = V::set(static_cast<float>(first + m));
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
          const F x = sums[i][j];
          const V::Mask known = V::is_nan(value);
          const V::Mask larger = V::either(V::less(value, x), V::is_nan(x));
          value = V::select(known, value, V::select(larger, x, value));
          number = V::select(known, number, V::select(larger, own, number));
          own = V::add(own, V::set(1.0f));
        }
        V::store(values + at, value, left);
        V::store(numbers + at, number, left);
      } else {
        // max drops a NaN in its first operand: NaN is tested for separately, two similarities at a time.
        V::Mask nan = V::is_nan(before);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i += 2) nan = V::either(nan, V::unordered(sums[i][j], sums[i + 1 < MR ? i + 1 : i][j]));
        F value = before;
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) value = V::max(sums[i][j], value);
        V::store(values + at, V::select(nan, V::set(__builtin_nanf("")), value), left);
      }
    }
  }
};

static void maxsim_best(const MaxSimCall& call, const Partial& out, const Rectangle& pairs, const ContextGroup& group,
                        const QueryBlock& block) {
  const Layout& layout = call.context_layout;
  const Tiles configured;
  const ContextRows contexts = rows_of(call, pairs, group);
  const int64_t at = group.place * out.ld + block.column;
  float* const values = out.values + at;
  float* const numbers = out.numbers ? out.numbers + at : nullptr;
  for (int64_t q = 0; q < block.columns; ++q) values[q] = -__builtin_inff();
  for (int64_t q = 0; numbers != nullptr && q < block.columns; ++q) numbers[q] = 0.0f;
  // Against few queries, whose panels fit the first cache, rows are taken in strips that fit it too.
  constexpr int64_t first_cache = 6 * 1024;
  const bool in_strips = block.columns * layout.depth <= first_cache;
  const int64_t few = layout.copied ? 48 : 24;  // whole tiles of every instruction set
  const int64_t step = in_strips ? few : group.rows;
  // The first block copies a group that this task alone takes, strip by strip ahead of its product; without other
  // blocks all strips go to one place.
  const bool in_place = call.in_place(pairs, group, group.first), copies = !in_place && group.once && block.column == 0;
  const bool again = copies && block.columns == pairs.columns;
  for (int64_t row = 0; row < group.rows; row += step) {
    const int64_t rows = group.rows - row < step ? group.rows - row : step;
    const int64_t offset = (again ? 0 : row) * contexts.ld;
    if (copies) copy_rows(call, pairs, group, row, rows, group.data + offset, group.scales + row);
    const Ahead next_tile{reinterpret_cast<const char*>(contexts.data + V::tile_rows * contexts.ld),
                          rows * contexts.ld * 4, true};
    const Ahead after = in_place && !in_strips ? next_tile
                                               : rows_after(call.contexts, pairs.contexts, pairs.n_contexts,
                                                            group.first, 1, group.skip + row, rows);
    const float* const scales = layout.scaled ? group.scales + row : nullptr;
    const auto reduce_into = [&](const auto& best) {
      multiply_rows(layout, 0, layout.depth, rows, block.columns, contexts.data + offset, contexts.ld, block.panels,
                    after, best);
    };
    if (numbers == nullptr) {
      reduce_into(Best<false>{values, nullptr, block.columns, row, scales, block.scales});
    } else {
      reduce_into(Best<true>{values, numbers, block.columns, row, scales, block.scales});
    }
  }
}

// Merges the best of an item's parts; numbers become those of the item's contexts.
static void merge_parts(const Partial& best, const ContextGroup* parts, int64_t n_parts, int64_t column, int64_t n,
                        float* values, int32_t* numbers) {
  for (int64_t q = 0; q < n; ++q) {
    const int64_t first = parts[0].place * best.ld + column + q;
    float value = best.values[first];
    int64_t number = best.numbers ? static_cast<int64_t>(best.numbers[first]) : 0;
    for (int64_t k = 1; k < n_parts && value == value; ++k) {
      const int64_t at = parts[k].place * best.ld + column + q;
      if (!(best.values[at] > value) && best.values[at] == best.values[at]) continue;
      value = best.values[at];
      if (best.numbers) number = parts[k].skip + static_cast<int64_t>(best.numbers[at]);
    }
    // Whether −0 or 0 is the maximum depends on the tiles: adding 0 makes both 0.
    values[q] = value + 0.0f;
    numbers[q] = static_cast<int32_t>(number);
  }
}

static void maxsim_finish(const MaxSimCall& call, const MaxSimGradients* gradients, const Partial& best,
                          const Rectangle& pairs, const ContextGroup* parts, int64_t n_parts, int64_t first,
                          int64_t last, int64_t column, float* scratch) {
  const int64_t context = parts[0].first;
  float *const values = scratch, *const taken = scratch + 2 * call.queries.longest;
  int32_t* const numbers = reinterpret_cast<int32_t*>(scratch + call.queries.longest);
  const Item& contexts = call.contexts.items[pairs.contexts[context]];
  for (int64_t q = first; q < last; ++q) {
    const Item& queries = call.queries.items[pairs.queries[q]];
    const int64_t n = queries.length, slot = pairs.slot(context, q);
    merge_parts(best, parts, n_parts, column, n, values, numbers);
    column += n;
    if (gradients != nullptr) {
      const BestRows& kept = gradients->queries;
      const int64_t offset = kept.offsets[slot];
      pool_best_gradient(values, n, call.options, kept.grad_scores[slot], kept.coefs + offset);
      __builtin_memcpy(kept.best + offset, numbers, n * sizeof(int32_t));
      continue;
    }
    call.scores[slot] = pool_best(values, n, call.options, taken);
    if (call.kept != nullptr) {
      __builtin_memcpy(call.kept_of(pairs.contexts[context], pairs.queries[q]), numbers, n * sizeof(int32_t));
    } else if (call.argmax != nullptr) {
      int64_t* row = call.argmax + slot * call.argmax_row;
      for (int64_t k = 0; k < call.argmax_row; ++k) row[k] = -1;
      for (int64_t k = 0; k < n; ++k) {
        row[queries.places ? queries.places[k] : k] = contexts.places ? contexts.places[numbers[k]] : numbers[k];
      }
    }
  }
}

// Adds columns [k0, k0 + kSlice) of the gradients of a group's items: multiples of the best partner's row for every own
// row, and of the partners' rows for the own row that is their best.
static void maxsim_feature_gradients(const MaxSimCall& call, const MaxSimGradients& from, bool of_contexts,
                                     const ItemPairs& jobs, const JobGroup& group, int64_t k0, Workspace& memory) {
  const RaggedView& own = of_contexts ? call.contexts : call.queries;
  const RaggedView& other = of_contexts ? call.queries : call.contexts;
  const BestRows &of_own = of_contexts ? from.contexts : from.queries,
                 &of_other = of_contexts ? from.queries : from.contexts;
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float* slice = memory.floats(own.longest * kSlice);
  for (int64_t k = 0; k < group.count; ++k) {
    const int64_t job = group.first + k, item = jobs.items[job], rows = own.length(item);
    for (int64_t i = 0; i < rows * kSlice; ++i) slice[i] = 0.0f;
    for (int64_t p = jobs.offsets[job]; p < jobs.offsets[job + 1]; ++p) {
      const int64_t partner = jobs.partners[p], slot = jobs.slots[p];
      for (int64_t r = 0; of_own.best != nullptr && r < rows; ++r) {
        const int64_t at = of_own.offsets[slot] + r;
        add_scaled_row(other, partner, of_own.best[at], k0, columns, of_own.coefs[at], slice + r * kSlice);
      }
      for (int64_t r = 0; of_other.best != nullptr && r < other.length(partner); ++r) {
        const int64_t at = of_other.offsets[slot] + r;
        add_scaled_row(other, partner, r, k0, columns, of_other.coefs[at], slice + of_other.best[at] * kSlice);
      }
    }
    add_slice(own, item, k0, columns, slice, group.sums[k]);
  }
}

extern const MaxSimKernels maxsim_kernels;
const MaxSimKernels maxsim_kernels = {maxsim_best,
                                      maxsim_finish,
                                      maxsim_whole_items,
                                      maxsim_whole_items_memory,
                                      maxsim_soft_feature_gradients,
                                      maxsim_feature_memory,
                                      maxsim_feature_gradients};

}  // namespace CROSSRET_ISA
}  // namespace crossret
