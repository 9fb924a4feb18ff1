// Heterogeneous attention of all pairs against HAN §3.2 and §3.3 in double precision, and its gradients against
// differences of scores along random directions.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "features.h"
#include "heterogeneous_attention/cpu.h"
#include "rows.h"

namespace crossret_test {

struct LayeredCase {
  int64_t dim, heads, regions, words;
  bool local, words_attend;
};

// What the operation takes of both sides: queries, keys, values, own logits and own values of either, then the
// normalisation's weight and bias.
struct LayeredBatch {
  static constexpr int64_t images = 3, captions = 5;
  LayeredCase at;
  std::vector<int64_t> lengths[2];
  std::vector<std::vector<float>> given;

  LayeredBatch(const LayeredCase& made, Random& random) : at(made) {
    for (const int side : {0, 1}) {
      const int64_t n = side ? captions : images, width = this->width(side);
      for (int64_t item = 0; item < n; ++item) lengths[side].push_back(item ? 1 + below(random, width) : width);
      for (const int64_t size : {at.dim, at.dim, at.heads * at.dim, at.heads, (at.heads + 1) * at.dim}) {
        given.emplace_back(n * width * size);
      }
    }
    given.emplace_back(at.dim);
    given.emplace_back(at.dim);
    for (auto& some : given) {
      for (float& x : some) x = static_cast<float>(uniform(random) + (&some == &given[10] ? 1.5 : 0));
    }
  }

  int64_t width(int side) const { return side ? at.words : at.regions; }

  HeterogeneousCall call(float* scores) const {
    const auto side = [&](int s) {
      const auto* const own = given.data() + 5 * s;
      return FirstLayer{own[0].data(),     own[1].data(),         own[2].data(), own[3].data(), own[4].data(),
                        lengths[s].data(), s ? captions : images, width(s),      width(s)};
    };
    return {side(0),
            side(1),
            at.heads,
            at.dim,
            given[10].data(),
            given[11].data(),
            0.7f,
            at.local,
            at.words_attend,
            {Norm::none, 1.0f, 4.0f, Pooling::lse, 3.0f},
            false,
            scores};
  }

  // The given numbers moved by `step` along directions.
  double score(int64_t image, int64_t caption, const std::vector<Row>& directions, double step) const {
    const int64_t items[2] = {image, caption};
    const auto number = [&](int64_t part, int64_t place) {
      return given[part][place] + (step != 0 ? step * directions[part][place] : 0);
    };
    const int64_t dim = at.dim, size = dim / at.heads;
    Rows units[2];
    for (const int side : {0, 1}) {
      const int other = 1 - side;
      const int64_t first = items[side] * width(side), across = items[other] * width(other);
      for (int64_t r = 0; r < (at.local ? lengths[side][items[side]] : 1); ++r) {
        Row row(dim);
        const int64_t own_values = (first + r) * (at.heads + 1) * dim;
        for (int64_t d = 0; d < dim; ++d) row[d] = number(5 * side + 4, own_values + at.heads * dim + d);
        for (int64_t h = 0; h < at.heads; ++h) {
          Row weights{std::exp(number(5 * side + 3, (first + r) * at.heads + h))};
          double total = weights[0];
          for (int64_t j = 0; j < lengths[other][items[other]]; ++j) {
            double logit = 0;
            for (int64_t d = h * size; d < (h + 1) * size; ++d) {
              logit += number(5 * side, (first + r) * dim + d) * number(5 * other + 1, (across + j) * dim + d);
            }
            weights.push_back(std::exp(0.7f * logit));
            total += weights.back();
          }
          for (int64_t d = 0; d < dim; ++d) {
            row[d] += weights[0] / total * number(5 * side + 4, own_values + h * dim + d);
            for (size_t j = 1; j < weights.size(); ++j) {
              const int64_t place = ((across + static_cast<int64_t>(j) - 1) * at.heads + h) * dim + d;
              row[d] += weights[j] / total * number(5 * other + 2, place);
            }
          }
        }
        double mean = 0, variance = 0;
        for (const double x : row) mean += x / static_cast<double>(dim);
        for (const double x : row) variance += (x - mean) * (x - mean) / static_cast<double>(dim);
        for (int64_t d = 0; d < dim; ++d) {
          row[d] = (row[d] - mean) / std::sqrt(variance + 1e-5) * number(10, d) + number(11, d);
        }
        const double norm = std::sqrt(dot(row, row));
        for (double& x : row) x /= norm;
        units[side].push_back(row);
      }
    }
    if (!at.local) return dot(units[0][0], units[1][0]);
    const Rows &contexts = units[at.words_attend ? 0 : 1], &queries = units[at.words_attend ? 1 : 0];
    double pooled = 0;
    for (const Row& query : queries) {
      Row attended(dim);
      for (const Row& context : contexts) {
        const double weight = std::exp(4 * dot(context, query));
        for (int64_t d = 0; d < dim; ++d) attended[d] += weight * context[d];
      }
      pooled += std::exp(3 * dot(query, attended) / std::sqrt(dot(attended, attended)));
    }
    return std::log(pooled) / 3;
  }
};

inline void check_layered(const crossret::Kernels& kernels, bool bfloat16) {
  using namespace crossret;
  const double unit = bfloat16 ? 0x1p-6 : 32 * kUnit, slopes = bfloat16 ? 2e-2 : 1e-3;
  int64_t places = 0;
  for (const LayeredCase& at : {LayeredCase{8, 2, 3, 4, true, true}, LayeredCase{35, 5, 7, 70, true, false},
                                LayeredCase{24, 1, 19, 210, false, true}, LayeredCase{72, 3, 14, 17, true, true}}) {
    Random random(++places);
    const LayeredBatch batch(at, random);
    const int64_t count = LayeredBatch::images * LayeredBatch::captions;
    std::vector<float> scores(count), grads(count);
    for (float& grad : grads) grad = static_cast<float>(uniform(random));
    HeterogeneousCall call = batch.call(scores.data());
    call.bfloat16 = bfloat16;
    heterogeneous_attention(kernels, call);
    std::vector<std::vector<float>> made;
    for (const auto& some : batch.given) made.emplace_back(some.size());
    const auto side = [&](int s) {
      auto* const own = made.data() + 5 * s;
      return FirstLayerGradients{own[0].data(), own[1].data(), own[2].data(), own[3].data(), own[4].data()};
    };
    std::vector<float> norms(2 * at.dim);
    differentiate_heterogeneous_attention(kernels, call, {grads.data(), side(0), side(1)}, norms.data());
    std::copy_n(norms.data(), at.dim, made[10].data());
    std::copy_n(norms.data() + at.dim, at.dim, made[11].data());
    for (int64_t pair = 0; pair < count; ++pair) {
      const double wanted = batch.score(pair / LayeredBatch::captions, pair % LayeredBatch::captions, {}, 0);
      if (!(std::abs(scores[pair] - wanted) <= unit)) {
        fail("%s: a score after a layer is %g, not %g", kernels.isa, scores[pair], wanted);
      }
    }
    for (size_t part = 0; part < made.size(); ++part) {
      std::vector<Row> directions;
      double slope = 0, size = 0;
      for (size_t other = 0; other < made.size(); ++other) directions.emplace_back(made[other].size());
      for (size_t i = 0; i < made[part].size(); ++i) {
        directions[part][i] = uniform(random);
        slope += directions[part][i] * made[part][i];
        size += directions[part][i] * directions[part][i] * made[part][i] * made[part][i];
      }
      double wanted = 0;
      constexpr double step = 1e-5;
      for (int64_t pair = 0; pair < count; ++pair) {
        const int64_t image = pair / LayeredBatch::captions, caption = pair % LayeredBatch::captions;
        const double rise =
            batch.score(image, caption, directions, step) - batch.score(image, caption, directions, -step);
        wanted += grads[pair] * rise / (2 * step);
      }
      if (!(std::abs(slope - wanted) <= slopes * std::sqrt(size) + 1e-6)) {
        fail("%s: a slope of part %d after a layer is %g, not %g", kernels.isa, static_cast<int>(part), slope, wanted);
      }
    }
  }
}

inline void check_layered(const crossret::Kernels& kernels) {
  using namespace crossret;
  check_layered(kernels, false);
  // Without products of bfloat16 it is the same.
  const RaggedView halves{nullptr, 0, 2, 0, 0, Dtype::bfloat16, false, nullptr};
  if (kernels.layout(halves, true, false).pairs()) check_layered(kernels, true);
}

}  // namespace crossret_test
