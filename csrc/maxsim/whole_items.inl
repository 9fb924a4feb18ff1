// Sum-Max of whole items: both directions from one product, the best context of every query and the best query of every
// context; and soft maxima, τ log(Σ exp(s / τ)).
#pragma once
#include "maxsim/pooling.inl"
#include "pairs/partner_sums.inl"
#include "pairs/prepare.inl"

namespace crossret {
namespace CROSSRET_ISA {

struct LargerOrNan {
  F operator()(F a, F b) const { return V::select(V::unordered(a, b), V::set(__builtin_nanf("")), V::max(a, b)); }
};

// Workspace: similarities, group × block with row stride limits.columns, the largest of either side, and as many of
// both.
struct WholeItemBuffers {
  float *similarities, *of_queries, *of_contexts, *taken;

  WholeItemBuffers(const Limits& limits, Workspace& memory)
      : similarities(memory.floats(limits.rows * limits.columns)),
        of_queries(memory.floats(limits.columns)),
        of_contexts(memory.floats(limits.rows)),
        taken(memory.floats(limits.rows + limits.columns)) {}
};

static void maxsim_whole_items_memory(const Operands& operands, Workspace& memory) {
  WholeItemBuffers(operands.limits, memory);
}

// The largest number of each of n columns; 0 for −0.
static void best_of_columns(const float* s, int64_t ld, int64_t rows, int64_t n, float* best) {
  for (int64_t j = 0; j < n; j += V::width) {
    F found = V::load(s + j, n - j);
    for (int64_t r = 1; r < rows; ++r) found = LargerOrNan{}(found, V::load(s + r * ld + j, n - j));
    V::store(best + j, V::add(found, V::zero()), n - j);
  }
}

// The largest of the first n numbers of each row; 0 for −0.
static void best_of_rows(const float* s, int64_t ld, int64_t rows, int64_t n, float* best) {
  if (n < V::width) {
    for (int64_t r = 0; r < rows; ++r) best[r] = max_of(s + r * ld, n) + 0.0f;
    return;
  }
  for (int64_t r = 0; r < rows; r += V::width) {
    F found[V::width];
    for (int64_t i = 0; i < V::width; ++i) {
      const float* row = s + (r + i < rows ? r + i : rows - 1) * ld;
      found[i] = V::load(row + n - V::width);  // overlaps the vectors below, which a maximum allows
      for (int64_t j = 0; j + V::width < n; j += V::width) found[i] = LargerOrNan{}(found[i], V::load(row + j));
    }
    V::store(best + r, V::add(V::reduce_rows(found, LargerOrNan{}), V::zero()), rows - r);
  }
}

// Gradients of one side of a pair from the best similarity of each of its n rows. The partners of row i are the m
// numbers s[i · step + k · stride].
static void keep_best(float* values, int64_t n, const float* s, int64_t step, int64_t stride, int64_t m,
                      const MaxSimOptions& options, int64_t slot, const BestRows& kept) {
  int32_t* const best = kept.best + kept.offsets[slot];
  for (int64_t i = 0; i < n; ++i) {
    const float* const own = s + i * step;
    int64_t k = 0;
    if (values[i] == values[i]) {
      while (k + 1 < m && own[k * stride] != values[i]) ++k;
    } else {
      while (k + 1 < m && own[k * stride] == own[k * stride]) ++k;
    }
    best[i] = static_cast<int32_t>(k);
  }
  pool_best_gradient(values, n, options, kept.grad_scores[slot], kept.coefs + kept.offsets[slot]);
}

// Soft maxima of n columns, in place of the largest of each.
static void soften(const float* s, int64_t ld, int64_t rows, int64_t n, float temperature, float* best) {
  const F inverse = V::set(1.0f / temperature);
  for (int64_t j = 0; j < n; j += V::width) {
    const F largest = V::load(best + j, n - j);
    F sum = V::zero();
    for (int64_t r = 0; r < rows; ++r) {
      sum = V::add(sum, exp(V::mul(V::sub(V::load(s + r * ld + j, n - j), largest), inverse)));
    }
    float sums[V::width];
    V::store(sums, sum);
    for (int64_t i = j; i < n && i < j + V::width; ++i) best[i] += temperature * __builtin_logf(sums[i - j]);
  }
}

// Soft maxima of the first n numbers of each row.
static void soft_rows(const float* s, int64_t ld, int64_t rows, int64_t n, float temperature, float* best) {
  for (int64_t r = 0; r < rows; ++r) best[r] = pool(s + r * ld, n, Pooling::lse, 1.0f / temperature);
}

// ∂L/∂s of one pair, rows × n, of soft maxima: the gradient of each times exp((s − it) / τ), through the clip.
static void soft_gradients(const float* s, int64_t ld, int64_t rows, int64_t n, const MaxSimOptions& options,
                           const float* of_columns, const float* column_grads, const float* of_rows,
                           const float* row_grads, float* out) {
  const F inverse = V::set(1.0f / options.temperature), slope = V::set(options.clip_slope), one = V::set(1.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; j += V::width) {
      const F x = V::load(s + r * ld + j, n - j), soft = V::load(of_columns + j, n - j);
      F grad = V::mul(V::load(column_grads + j, n - j), exp(V::mul(V::sub(x, soft), inverse)));
      if (of_rows != nullptr) {
        grad = V::fma(V::set(row_grads[r]), exp(V::mul(V::sub(x, V::set(of_rows[r])), inverse)), grad);
      }
      V::store(out + r * gram_row(n) + j, V::mul(grad, V::select(V::less(V::zero(), x), one, slope)), n - j);
    }
  }
}

static void maxsim_whole_items(const MaxSimCall& call, const MaxSimGradients* gradients, const Rectangle& pairs,
                               const ContextGroup& group, const QueryBlock& block, Workspace& memory) {
  const WholeItemBuffers buffers(call.limits, memory);
  const int64_t ld = call.limits.columns;
  similarities_of(call, pairs, group, block, buffers.similarities, ld, {});
  const MaxSimOptions& options = call.options;
  MaxSimOptions of_maxima = options;
  if (options.soft()) of_maxima.clip_slope = 1.0f;  // similarities are clipped
  const bool both = gradients != nullptr ? gradients->contexts.grad_scores != nullptr : call.turned_scores != nullptr;
  float* rows = buffers.similarities;
  for (int64_t item = group.first; item < group.first + group.count; ++item) {
    const int64_t n = call.contexts.length(pairs.contexts[item]);
    for (int64_t r = 0; options.soft() && r < n; ++r) clip_best(rows + r * ld, block.columns, options);
    best_of_columns(rows, ld, n, block.columns, buffers.of_queries);
    if (options.soft()) soften(rows, ld, n, block.columns, options.temperature, buffers.of_queries);
    int64_t column = 0;
    for (int64_t q = block.first; q < block.first + block.count; ++q) {
      const int64_t slot = pairs.slot(item, q), m = call.queries.length(pairs.queries[q]);
      const float* const s = rows + column;
      float *const of_queries = buffers.of_queries + column, *const of_contexts = buffers.of_contexts;
      if (both && options.soft()) {
        soft_rows(s, ld, n, m, options.temperature, of_contexts);
      } else if (both) {
        best_of_rows(s, ld, n, m, of_contexts);
      }
      if (gradients == nullptr) {
        call.scores[slot] = pool_best(of_queries, m, of_maxima, buffers.taken);
        if (both) call.turned_scores[slot] = pool_best(of_contexts, n, of_maxima, buffers.taken);
      } else if (options.soft()) {
        float *const of_each = buffers.taken, *const of_each_context = buffers.taken + call.limits.columns;
        pool_best_gradient(of_queries, m, of_maxima, gradients->queries.grad_scores[slot], of_each);
        if (both) pool_best_gradient(of_contexts, n, of_maxima, gradients->contexts.grad_scores[slot], of_each_context);
        soft_gradients(s, ld, n, m, options, of_queries, of_each, both ? of_contexts : nullptr, of_each_context,
                       gradients->similarity_grads + gradients->similarity_offsets[slot]);
      } else {
        keep_best(of_queries, m, s, 1, ld, n, options, slot, gradients->queries);
        keep_best(of_contexts, n, s, ld, 1, m, options, slot, gradients->contexts);
      }
      column += m;
    }
    rows += n * ld;
  }
}

// Adds columns [k0, k0 + kSlice) of the gradients of a group's items from those of all similarities.
static void maxsim_soft_feature_gradients(const MaxSimCall& call, const MaxSimGradients& from, bool of_contexts,
                                          const ItemPairs& jobs, const JobGroup& group, int64_t k0, Workspace& memory) {
  const RaggedView& own = of_contexts ? call.contexts : call.queries;
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float *const panels = take_panels(call, memory), *slice = take_slices(call, memory);
  const auto grads = [&](int64_t k, int64_t p) {
    return from.similarity_grads + from.similarity_offsets[jobs.slots[jobs.offsets[group.first + k] + p]];
  };
  sum_partners(call, of_contexts, jobs, group, k0, columns, grads, panels, slice);
  for (int64_t k = 0; k < group.count; ++k) {
    const int64_t item = jobs.items[group.first + k];
    add_slice(own, item, k0, columns, slice, group.sums[k]);
    slice += own.length(item) * kSlice;
  }
}

static void maxsim_feature_memory(const MaxSimCall& call, Workspace& memory) {
  take_panels(call, memory);
  take_slices(call, memory);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
