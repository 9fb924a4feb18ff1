// Attention pooling and its gradients against MHSAN Eqs. 1 and 2 in double precision.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention_pool/cpu.h"
#include "features.h"
#include "rows.h"

namespace crossret_test {

// Items in rows of one array, the second of them every other row of its places.
inline void check_pooling(const crossret::Kernels& kernels, int64_t dim, int64_t heads, Dtype dtype) {
  using namespace crossret;
  constexpr int64_t count = 3, width = 75, lengths[count] = {70, 3, 1};
  const int64_t bytes = dtype == Dtype::float32 ? 4 : 2, places = count * width;
  Random random(dim + heads);
  std::vector<char> values(places * dim * bytes), of_values(places * dim * bytes);
  std::vector<float> logits(places * heads), of_logits(places * heads);
  std::vector<float> pooled(count * heads * dim), weights(count * heads * width);
  std::vector<float> grads(pooled.size()), weight_grads(weights.size());
  Rows v(places, Row(dim));
  for (int64_t k = 0; k < places; ++k) {
    for (int64_t d = 0; d < dim; ++d) {
      put(values.data() + (k * dim + d) * bytes, dtype, uniform(random));
      v[k][d] = get(values.data() + (k * dim + d) * bytes, dtype);
    }
  }
  for (auto* some : {&logits, &grads, &weight_grads}) {
    for (float& x : *some) x = static_cast<float>(uniform(random));
  }
  const std::vector<int32_t> odd{1, 3, 5};
  std::vector<Item> items;
  int64_t rows = 0;
  for (int64_t k = 0; k < count; ++k) {
    items.push_back({values.data() + k * width * dim * bytes, dim * bytes, k == 1 ? odd.data() : nullptr, lengths[k],
                     rows, k * width});
    rows += lengths[k];
  }
  AttentionPoolCall call{};
  call.values.items = items.data();
  call.values.count = count;
  call.values.dim = dim;
  call.values.longest = lengths[0];
  call.values.rows = rows;
  call.values.dtype = dtype;
  call.values.masked = true;
  call.logits = logits.data();
  call.heads = heads;
  call.width = width;
  attention_pool(kernels, call, {pooled.data(), weights.data()});
  differentiate_attention_pool(kernels, call, {grads.data(), weight_grads.data(), of_values.data(), of_logits.data()});
  const auto compare = [&](const char* what, double made, double wanted, double unit) {
    if (!(std::abs(made - wanted) <= unit)) fail("%s: %s is %g, not %g", kernels.isa, what, made, wanted);
  };
  const double sums = 64 * kUnit * std::sqrt(static_cast<double>(dim));
  for (int64_t k = 0; k < count; ++k) {
    Rows made(lengths[k], Row(dim, 0.0));
    for (int64_t h = 0; h < heads; ++h) {
      Row weight(lengths[k]), dots(lengths[k]);
      double total = 0, along = 0;
      const auto at = [&](int64_t r) { return call.values.gradient_row(k, r); };
      for (int64_t r = 0; r < lengths[k]; ++r) total += weight[r] = std::exp(double{logits[at(r) * heads + h]});
      const float* const grad = grads.data() + (k * heads + h) * dim;
      for (int64_t r = 0; r < lengths[k]; ++r) {
        weight[r] /= total;
        const int64_t place = (k * heads + h) * width + at(r) - k * width;
        compare("a weight", weights[place], weight[r], 16 * kUnit);
        dots[r] = weight_grads[place];
        for (int64_t d = 0; d < dim; ++d) {
          dots[r] += grad[d] * v[at(r)][d];
          made[r][d] += weight[r] * grad[d];
        }
        along += weight[r] * dots[r];
      }
      for (int64_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (int64_t r = 0; r < lengths[k]; ++r) sum += weight[r] * v[at(r)][d];
        compare("a pooled value", pooled[(k * heads + h) * dim + d], sum, 64 * kUnit);
      }
      for (int64_t r = 0; r < lengths[k]; ++r) {
        compare("a logit's gradient", of_logits[at(r) * heads + h], weight[r] * (dots[r] - along), sums);
      }
    }
    const double rounding = dtype == Dtype::float32 ? 0 : dtype == Dtype::float16 ? 0x1p-11 : 0x1p-8;
    for (int64_t r = 0; r < lengths[k]; ++r) {
      const char* const row = of_values.data() + call.values.gradient_row(k, r) * dim * bytes;
      for (int64_t d = 0; d < dim; ++d) {
        compare("a value's gradient", get(row + d * bytes, dtype), made[r][d],
                rounding * std::abs(made[r][d]) + 64 * kUnit * static_cast<double>(heads));
      }
    }
  }
}

inline void check_pooling(const crossret::Kernels& kernels) {
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    for (const int64_t dim : {1, 37, 700}) {
      for (const int64_t heads : {1, 2, 5, 12, 30}) check_pooling(kernels, dim, heads, dtype);
    }
  }
}

}  // namespace crossret_test
