// Ranking losses and their gradients against SCAN Eqs. 11 and 12 and HAN Eq. 4 in double precision.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "features.h"
#include "ranking_loss/cpu.h"
#include "rows.h"

namespace crossret_test {

// Hinges of one positive against its negatives, 0 elsewhere: their loss, and ∂loss/∂hinge in their place.
inline double pooled_hinges(Row& hinges, crossret::Negatives negatives, double p) {
  const double most = *std::max_element(hinges.begin(), hinges.end());
  double loss = most;
  if (negatives == crossret::Negatives::sum) {
    loss = 0;
    for (const double hinge : hinges) loss += hinge;
  } else if (negatives == crossret::Negatives::softmax && most > 0) {
    double powers = 0;
    for (const double hinge : hinges) powers += std::pow(hinge / most, p);
    loss = most * std::pow(powers, 1 / p);
  }
  bool found = false;  // the first of equals
  for (double& hinge : hinges) {
    const bool first = hinge == most && !found;
    found |= first;
    if (hinge == 0) continue;
    hinge = negatives == crossret::Negatives::softmax ? std::pow(hinge / loss, p - 1)
                                                      : (negatives == crossret::Negatives::sum || first ? 1 : 0);
  }
  return loss;
}

// Scores on a grid of eighths, of which hinges are exact and many tie; four labels of each ten columns.
inline void check_losses(const crossret::Kernels& kernels, crossret::Negatives negatives, double p, Dtype dtype) {
  using namespace crossret;
  struct {
    int64_t rows, columns, offset;
  } constexpr shapes[] = {{1, 1, 0}, {37, 37, 0}, {35, 1100, 70}, {70, 80, 3}};
  Random random(7);
  for (const auto& shape : shapes) {
    const int64_t n = shape.rows, m = shape.columns, bytes = dtype == Dtype::float32 ? 4 : 2;
    std::vector<char> scores(n * m * bytes), gradient(n * m * bytes);
    std::vector<float> labels(m), thresholds(n), grads(n), losses(n), statistics(4 * n);
    Rows s(n, Row(m)), expected(n, Row(m, 0.0));
    for (int64_t i = 0; i < n * m; ++i) {
      s[i / m][i % m] = std::round(uniform(random) * 8) / 8;
      put(scores.data() + i * bytes, dtype, s[i / m][i % m]);
    }
    for (float& label : labels) label = static_cast<float>(below(random, m));
    for (int64_t i = 0; i < n; ++i) {
      thresholds[i] = static_cast<float>(0.25 - s[i][i + shape.offset]);
      grads[i] = static_cast<float>(1 + i % 3);
    }
    const RankingLossCall call{scores.data(),
                               m * bytes,
                               dtype,
                               n,
                               m,
                               shape.offset,
                               {labels.data(), labels.data()},
                               negatives,
                               {static_cast<int64_t>(p) - 1, static_cast<uint32_t>((p - std::floor(p)) * 0x1p32)},
                               thresholds.data()};
    measure_ranking_loss(kernels, call, p, losses.data(), statistics.data());
    differentiate_ranking_loss(kernels, call, grads.data(), statistics.data(), gradient.data(), m * bytes);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t own = i + shape.offset;
      Row row(m), column(n);
      const auto hinge = [&](double score, int64_t other) {
        return labels[own] == labels[other] ? 0.0 : std::max(0.0, thresholds[i] + score);
      };
      for (int64_t j = 0; j < m; ++j) row[j] = hinge(s[i][j], j);
      for (int64_t k = 0; k < n; ++k) column[k] = hinge(s[k][own], k + shape.offset);
      const double loss = pooled_hinges(row, negatives, p) + pooled_hinges(column, negatives, p);
      if (!(std::abs(losses[i] - loss) <= 1e-5 * loss)) fail("%s: loss %g, not %g", kernels.isa, losses[i], loss);
      for (int64_t j = 0; j < m; ++j) expected[i][j] += grads[i] * row[j], expected[i][own] -= grads[i] * row[j];
      for (int64_t k = 0; k < n; ++k)
        expected[k][own] += grads[i] * column[k], expected[i][own] -= grads[i] * column[k];
    }
    for (int64_t i = 0; i < n * m; ++i) {
      const double made = get(gradient.data() + i * bytes, dtype), wanted = expected[i / m][i % m];
      const double unit = dtype == Dtype::float32 ? 2e-5 : dtype == Dtype::float16 ? 1e-3 : 8e-3;
      if (!(std::abs(made - wanted) <= unit * std::abs(wanted) + 2e-5)) {
        return fail("%s: gradient %d of a loss is %g, not %g", kernels.isa, static_cast<int>(i), made, wanted);
      }
    }
  }
}

inline void check_losses(const crossret::Kernels& kernels) {
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    check_losses(kernels, crossret::Negatives::hardest, 1, dtype);
    check_losses(kernels, crossret::Negatives::sum, 1, dtype);
    for (const double p : {1.0, 1.5, 8.0, 70.0}) check_losses(kernels, crossret::Negatives::softmax, p, dtype);
  }
}

}  // namespace crossret_test
