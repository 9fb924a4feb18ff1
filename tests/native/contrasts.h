// Contrastive losses and their gradients in double precision: CLIP's cross entropies, SigLIP's sigmoids.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "contrastive_loss/cpu.h"
#include "features.h"
#include "rows.h"

namespace crossret_test {

// The cross entropy of some logits, of which −∞ are left out: its gradient in their place, times a factor.
inline double cross_entropy(const Row& z, const std::vector<bool>& positive, double smoothing, double factor,
                            Row& gradient) {
  double most = -INFINITY, powers = 0, positives = 0, count = 0, loss = 0;
  for (const double x : z) most = std::max(most, x);
  for (size_t k = 0; k < z.size(); ++k) {
    if (std::isinf(z[k])) continue;
    powers += std::exp(z[k] - most), positives += positive[k], ++count;
  }
  gradient.assign(z.size(), 0.0);
  if (positives == 0) return 0;
  for (size_t k = 0; k < z.size(); ++k) {
    if (std::isinf(z[k])) continue;
    const double target = (positive[k] ? (1 - smoothing) / positives : 0) + smoothing / count;
    loss -= target * (z[k] - most - std::log(powers));
    gradient[k] = factor * (std::exp(z[k] - most) / powers - target);
  }
  return loss;
}

// Scores of eighths, some of them −∞; four labels of each ten columns. A scale of 40 leaves rows and columns too far
// apart for one exponential.
inline void check_contrasts(const crossret::Kernels& kernels, float scale, double smoothing, Dtype dtype) {
  using namespace crossret;
  struct {
    int64_t rows, columns, offset;
  } constexpr shapes[] = {{1, 1, 0}, {37, 37, 0}, {35, 1100, 70}, {70, 80, 3}};
  Random random(7);
  for (const auto& shape : shapes) {
    const int64_t n = shape.rows, m = shape.columns, bytes = dtype == Dtype::float32 ? 4 : 2;
    std::vector<char> scores(n * m * bytes), gradient(n * m * bytes);
    std::vector<float> labels(m), grads(n), losses(n), statistics(kInfoNceKept * n);
    Rows s(n, Row(m)), z = s;
    for (int64_t i = 0; i < n * m; ++i) {
      double& score = s[i / m][i % m];
      score = below(random, 9) == 0 ? -INFINITY : std::round(uniform(random) * 8) / 8;
      z[i / m][i % m] = scale * score;
      put(scores.data() + i * bytes, dtype, score);
    }
    for (float& label : labels) label = static_cast<float>(below(random, m));
    for (int64_t i = 0; i < n; ++i) grads[i] = static_cast<float>(1 + i % 3);
    ContrastiveCall call{};
    static_cast<ScoreMatrix&>(call) = {
        scores.data(), m * bytes, dtype, n, m, shape.offset, {labels.data(), labels.data()}};
    call.scale = scale, call.smoothed = smoothing > 0;
    const auto compare = [&](const char* name, const Row& loss, const Rows& expected, const ContrastiveSums& sums) {
      double of_scores = 0, size = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (!(std::abs(losses[i] - loss[i]) <= 2e-5 * (1 + loss[i]))) {
          fail("%s: %s loss %g, not %g", kernels.isa, name, losses[i], loss[i]);
        }
        for (int64_t j = 0; j < m; ++j) {
          const double wanted = scale * expected[i][j], made = get(gradient.data() + (i * m + j) * bytes, dtype);
          const double unit = dtype == Dtype::float32 ? 2e-5 : dtype == Dtype::float16 ? 1e-3 : 8e-3;
          if (!(std::abs(made - wanted) <= unit * std::abs(wanted) + 2e-5 * scale)) {
            return fail("%s: %s gradient %d is %g, not %g", kernels.isa, name, static_cast<int>(i * m + j), made,
                        wanted);
          }
          if (std::isinf(s[i][j])) continue;
          of_scores += s[i][j] * expected[i][j], size += std::abs(s[i][j] * expected[i][j]);
        }
      }
      if (!(std::abs(sums.scores - of_scores) <= 2e-5 * (1 + size))) {
        fail("%s: %s sum %g, not %g", kernels.isa, name, sums.scores, of_scores);
      }
    };

    Row loss(n, 0.0), pulls;
    Rows expected(n, Row(m, 0.0));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t own = i + shape.offset;
      std::vector<bool> positive(m), positives(n);
      Row column(n);
      for (int64_t j = 0; j < m; ++j) positive[j] = labels[own] == labels[j];
      for (int64_t k = 0; k < n; ++k) column[k] = z[k][own], positives[k] = labels[own] == labels[k + shape.offset];
      loss[i] = cross_entropy(z[i], positive, smoothing, 0.5 * grads[i], pulls) / 2;
      for (int64_t j = 0; j < m; ++j) expected[i][j] += pulls[j];
      loss[i] += cross_entropy(column, positives, smoothing, 0.5 * grads[i], pulls) / 2;
      for (int64_t k = 0; k < n; ++k) expected[k][own] += pulls[k];
    }
    measure_infonce(kernels, call, smoothing, losses.data(), statistics.data());
    compare("InfoNCE", loss, expected,
            differentiate_infonce(kernels, call, grads.data(), statistics.data(), gradient.data(), m * bytes));

    call.bias = -2;
    for (int64_t i = 0; i < n; ++i) {
      loss[i] = 0;
      for (int64_t j = 0; j < m; ++j) {
        const double sign = labels[i + shape.offset] == labels[j] ? -1 : 1, x = sign * (z[i][j] + call.bias);
        expected[i][j] = std::isinf(z[i][j]) ? 0 : grads[i] * sign / (1 + std::exp(-x));
        if (!std::isinf(z[i][j])) loss[i] += std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
      }
    }
    measure_sigmoid_loss(kernels, call, losses.data());
    compare("sigmoid", loss, expected,
            differentiate_sigmoid_loss(kernels, call, grads.data(), gradient.data(), m * bytes));
  }
}

inline void check_contrasts(const crossret::Kernels& kernels) {
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    check_contrasts(kernels, 5, 0, dtype);
    check_contrasts(kernels, 40, 0.1, dtype);
  }
}

}  // namespace crossret_test
