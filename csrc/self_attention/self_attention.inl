// Self-attention within an item and its gradients, head by head.
#pragma once
#include "gemm/dense.inl"
#include "self_attention/problem.h"

namespace crossret {
namespace CROSSRET_ISA {

struct SelfAttentionScratch {
  int64_t ld;                  // row stride of weights and gradients
  float *weights, *gradients;  // (rows, ld)
  float* panels;               // one head's rows, as rows or as columns
  float* absent;               // addends of logits: 0, or −∞ of a masked row

  SelfAttentionScratch(const SelfAttentionCall& call, Workspace& workspace)
      : ld(pad_row(call.rows)),
        weights(workspace.floats(call.rows * ld)),
        gradients(workspace.floats(call.rows * ld)),
        panels(workspace.floats(pad_columns(call.rows) * pad_columns(call.dim))),
        absent(workspace.floats(pad_columns(call.rows))) {}
};

static void self_attention_scratch(const SelfAttentionCall& call, Workspace& workspace) {
  SelfAttentionScratch(call, workspace);
}

// One head of an item: its queries, keys and values, row stride `row`.
struct AttentionHead {
  const SelfAttentionCall& call;
  const SelfAttentionScratch& scratch;
  const float *queries, *keys, *values;
  int64_t row;

  AttentionHead(const SelfAttentionCall& of, const SelfAttentionScratch& memory, int64_t item, int64_t head)
      : call(of),
        scratch(memory),
        queries(of.projected + item * of.rows * 3 * of.heads * of.dim + head * of.dim),
        keys(queries + of.heads * of.dim),
        values(keys + of.heads * of.dim),
        row(3 * of.heads * of.dim) {}

  // out (rows, rows) = left · rightᵀ
  void products(const float* left, int64_t left_row, const float* right, float* out) const {
    transpose_to_panels(right, row, call.rows, call.dim, scratch.panels);
    multiply(call.rows, call.rows, AllOf{call.dim}, Left{left, left_row, 1},
             Right{scratch.panels, call.dim * kPanel, kPanel}, Store{out, scratch.ld, false});
  }

  // out (rows, dim) = weights · rows, or weightsᵀ · rows
  void sums(const float* weights, bool transposed, const float* rows, int64_t rows_row, float* out,
            int64_t out_row) const {
    dense_columns({rows, 1, rows_row}, {0, call.rows}, 0, call.dim, scratch.panels);
    multiply(call.rows, call.dim, AllOf{call.rows},
             transposed ? Left{weights, 1, scratch.ld} : Left{weights, scratch.ld, 1},
             Right{scratch.panels, call.rows * kPanel, kPanel}, DenseStore{out, out_row, call.dim, nullptr, false});
  }

  void make_weights() const {
    const int64_t n = call.rows;
    products(queries, row, keys, scratch.weights);
    const F lambda = V::set(call.lambda);
    for (int64_t r = 0; r < n; ++r) {
      float* const of = scratch.weights + r * scratch.ld;
      F most = V::set(-__builtin_inff()), sum = V::zero();
      for (int64_t j = 0; j < n; j += V::width) {
        const F x = V::fma(lambda, V::load(of + j, n - j), V::load(scratch.absent + j));
        V::store(of + j, x);
        most = V::max(x, most);
      }
      float lanes[V::width];
      V::store(lanes, most);
      most = V::set(max_of(lanes, V::width));
      for (int64_t j = 0; j < n; j += V::width) {
        const F e = exp(V::sub(V::load(of + j), most));
        V::store(of + j, e);
        sum = V::add(sum, V::keep_first(e, n - j));
      }
      const F scale = V::set(1.0f / V::reduce_add(sum));
      for (int64_t j = 0; j < n; j += V::width) V::store(of + j, V::mul(V::load(of + j), scale));
    }
  }

  // ∂L/∂(q · k) in place of ∂L/∂weights.
  void differentiate_weights() const {
    const int64_t n = call.rows;
    for (int64_t r = 0; r < n; ++r) {
      const float* const weights = scratch.weights + r * scratch.ld;
      float* const of = scratch.gradients + r * scratch.ld;
      F dot = V::zero();
      for (int64_t j = 0; j < n; j += V::width) dot = V::fma(V::load(weights + j, n - j), V::load(of + j, n - j), dot);
      const F along = V::set(V::reduce_add(dot)), lambda = V::set(call.lambda);
      for (int64_t j = 0; j < n; j += V::width) {
        const F weight = V::mul(lambda, V::load(weights + j));
        V::store(of + j, V::mul(weight, V::sub(V::load(of + j), along)));
      }
    }
  }
};

static void self_attention_mask(const SelfAttentionCall& call, int64_t item, float* absent) {
  for (int64_t r = 0; r < pad_columns(call.rows); ++r) {
    absent[r] = r < call.rows && call.mask[item * call.rows + r] ? 0.0f : -__builtin_inff();
  }
}

static void self_attend(const SelfAttentionCall& call, int64_t item, float* out, Workspace& workspace) {
  const SelfAttentionScratch scratch(call, workspace);
  self_attention_mask(call, item, scratch.absent);
  const int64_t row = call.heads * call.dim;
  for (int64_t h = 0; h < call.heads; ++h) {
    const AttentionHead head(call, scratch, item, h);
    head.make_weights();
    head.sums(scratch.weights, false, head.values, head.row, out + item * call.rows * row + h * call.dim, row);
  }
}

static void self_attention_gradients(const SelfAttentionCall& call, const float* grads, int64_t item, float* gradients,
                                     Workspace& workspace) {
  const SelfAttentionScratch scratch(call, workspace);
  self_attention_mask(call, item, scratch.absent);
  const int64_t row = call.heads * call.dim;
  for (int64_t h = 0; h < call.heads; ++h) {
    const AttentionHead head(call, scratch, item, h);
    const float* const grad = grads + item * call.rows * row + h * call.dim;
    float* const of_queries = gradients + (head.queries - call.projected);
    head.make_weights();
    head.sums(scratch.weights, true, grad, row, of_queries + 2 * row, head.row);
    head.products(grad, row, head.values, scratch.gradients);
    head.differentiate_weights();
    head.sums(scratch.gradients, false, head.keys, head.row, of_queries, head.row);
    head.sums(scratch.gradients, true, head.queries, head.row, of_queries + row, head.row);
  }
}

extern const SelfAttentionKernels self_attention_kernels;
const SelfAttentionKernels self_attention_kernels = {self_attend, self_attention_gradients, self_attention_scratch};

}  // namespace CROSSRET_ISA
}  // namespace crossret
