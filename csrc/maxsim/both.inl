// Sum-Max in both directions from one product: the best context of every query, and the best query of every context.
#pragma once
#include "maxsim/pooling.inl"
#include "pairs/prepare.inl"

namespace crossret {
namespace CROSSRET_ISA {

struct LargerOrNan {
  F operator()(F a, F b) const { return V::select(V::unordered(a, b), V::set(__builtin_nanf("")), V::max(a, b)); }
};

// Workspace: similarities, group × block with row stride limits.columns, the largest of either side, and as many more.
struct BothBuffers {
  float *similarities, *of_queries, *of_contexts, *taken;

  BothBuffers(const Limits& limits, Workspace& memory)
      : similarities(memory.floats(limits.rows * limits.columns)),
        of_queries(memory.floats(limits.columns)),
        of_contexts(memory.floats(limits.rows)),
        taken(memory.floats(limits.rows < limits.columns ? limits.columns : limits.rows)) {}
};

static void maxsim_both_memory(const Operands& operands, Workspace& memory) { BothBuffers(operands.limits, memory); }

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

static void maxsim_both(const MaxSimCall& call, const MaxSimGradients* gradients, const Rectangle& pairs,
                        const ContextGroup& group, const QueryBlock& block, Workspace& memory) {
  const BothBuffers buffers(call.limits, memory);
  const int64_t ld = call.limits.columns;
  similarities_of(call, pairs, group, block, buffers.similarities, ld, {});
  const float* rows = buffers.similarities;
  for (int64_t item = group.first; item < group.first + group.count; ++item) {
    const int64_t n = call.contexts.length(pairs.contexts[item]);
    best_of_columns(rows, ld, n, block.columns, buffers.of_queries);
    int64_t column = 0;
    for (int64_t q = block.first; q < block.first + block.count; ++q) {
      const int64_t slot = pairs.slot(item, q), m = call.queries.length(pairs.queries[q]);
      best_of_rows(rows + column, ld, n, m, buffers.of_contexts);
      if (gradients != nullptr) {
        keep_best(buffers.of_queries + column, m, rows + column, 1, ld, n, call.options, slot, gradients->queries);
        keep_best(buffers.of_contexts, n, rows + column, ld, 1, m, call.options, slot, gradients->contexts);
      } else {
        call.scores[slot] = pool_best(buffers.of_queries + column, m, call.options, buffers.taken);
        call.turned_scores[slot] = pool_best(buffers.of_contexts, n, call.options, buffers.taken);
      }
      column += m;
    }
    rows += n * ld;
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
