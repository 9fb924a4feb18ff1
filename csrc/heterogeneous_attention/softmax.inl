// The softmax of logits across, merged with the logit that each query has of its own item, and its gradients.
#pragma once
#include "simd/math.inl"

namespace crossret {
namespace CROSSRET_ISA {

struct Max {
  F operator()(F a, F b) const { return V::max(a, b); }
};

// Weights in place of logits: the softmax along each of `rows` rows over one caption's n keys and the row's own logit,
// whose weight goes to `own_weights`. A row is one head of a query.
static void softmax_across(float* logits, int64_t ld, int64_t rows, int64_t n, const float* own, float* own_weights) {
  for (int64_t first = 0; first < rows; first += V::width, logits += V::width * ld) {
    const int64_t count = rows - first < V::width ? rows - first : V::width;
    const F own_logit = V::load(own + first, count);
    alignas(64) float factors[V::width];
    F parts[V::width];
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      parts[i] = V::zero();
      if (i >= count) continue;
      const F first_of_row = V::set(logits[i * ld]);
      F most = first_of_row;
      for (int64_t j = 0; j < n; j += V::width) {
        const F x = V::load(logits + i * ld + j, n - j);
        most = V::max(n - j < V::width ? V::select(V::lanes(n - j), x, first_of_row) : x, most);
      }
      parts[i] = most;
    }
    const F most = V::max(V::reduce_rows(parts, Max{}), own_logit);
    V::store(factors, most);
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      parts[i] = V::zero();
      if (i >= count) continue;
      for (int64_t j = 0; j < n; j += V::width) {
        float* const at = logits + i * ld + j;
        const F e = V::keep_first(exp(V::sub(V::load(at, n - j), V::set(factors[i]))), n - j);
        V::store(at, e, n - j);
        parts[i] = V::add(parts[i], e);
      }
    }
    const F own_weight = exp(V::sub(own_logit, most));
    const F inverse = V::div(V::set(1.0f), V::add(sum_rows(parts), own_weight));
    V::store(own_weights + first, V::mul(own_weight, inverse));
    V::store(factors, inverse);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < n; j += V::width) {
        float* const at = logits + i * ld + j;
        V::store(at, V::mul(V::load(at, n - j), V::set(factors[i])), n - j);
      }
    }
  }
}

// Softmax down each of `columns` columns, one head of the queries, over n keys with row stride `step`.
static void softmax_down(float* logits, int64_t step, int64_t n, int64_t columns, const float* own,
                         float* own_weights) {
  for (int64_t j = 0; j < columns; j += V::width) {
    float* const at = logits + j;
    const F own_logit = V::load(own + j);
    F most = own_logit, sum;
    for (int64_t r = 0; r < n; ++r) most = V::max(V::load(at + r * step), most);
    const F own_weight = sum = exp(V::sub(own_logit, most));
    for (int64_t r = 0; r < n; ++r) {
      const F e = exp(V::sub(V::load(at + r * step), most));
      V::store(at + r * step, e);
      sum = V::add(sum, e);
    }
    const F inverse = V::div(V::set(1.0f), sum);
    V::store(own_weights + j, V::mul(own_weight, inverse));
    for (int64_t r = 0; r < n; ++r) V::store(at + r * step, V::mul(V::load(at + r * step), inverse));
  }
}

// ∂L/∂logits in place of ∂L/∂weights of `softmax_across`. `own_dots` are the own weights' gradients; `own_grads` gain
// the own logits'.
static void softmax_across_gradients(const float* weights, float* grads, int64_t ld, int64_t rows, int64_t n,
                                     const float* own_weights, const float* own_dots, float* own_grads) {
  for (int64_t first = 0; first < rows; first += V::width, weights += V::width * ld, grads += V::width * ld) {
    const int64_t count = rows - first < V::width ? rows - first : V::width;
    F parts[V::width];
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      parts[i] = V::zero();
      if (i >= count) continue;
      for (int64_t j = 0; j < n; j += V::width) {
        parts[i] = V::fma(V::load(weights + i * ld + j, n - j), V::load(grads + i * ld + j, n - j), parts[i]);
      }
    }
    const F own = V::load(own_weights + first, count), own_dot = V::load(own_dots + first, count);
    const F dot = V::fma(own, own_dot, sum_rows(parts));
    const F of_own = V::fma(own, V::sub(own_dot, dot), V::load(own_grads + first, count));
    V::store(own_grads + first, of_own, count);
    alignas(64) float dots[V::width];
    V::store(dots, dot);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < n; j += V::width) {
        float* const at = grads + i * ld + j;
        const F weight = V::load(weights + i * ld + j, n - j);
        V::store(at, V::mul(weight, V::sub(V::load(at, n - j), V::set(dots[i]))), n - j);
      }
    }
  }
}

// Gradients of `softmax_down`; `own_grads` are written.
static void softmax_down_gradients(const float* weights, float* grads, int64_t step, int64_t n, int64_t columns,
                                   const float* own_weights, const float* own_dots, float* own_grads) {
  for (int64_t j = 0; j < columns; j += V::width) {
    const F own = V::load(own_weights + j), own_dot = V::load(own_dots + j);
    F dot = V::mul(own, own_dot);
    for (int64_t r = 0; r < n; ++r) dot = V::fma(V::load(weights + r * step + j), V::load(grads + r * step + j), dot);
    V::store(own_grads + j, V::mul(own, V::sub(own_dot, dot)));
    for (int64_t r = 0; r < n; ++r) {
      float* const at = grads + r * step + j;
      V::store(at, V::mul(V::load(weights + r * step + j), V::sub(V::load(at), dot)));
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
