// Gated attention and its gradients against SMAN Eqs. 12–20 in double precision, pair by pair.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "features.h"
#include "gated_attention/cpu.h"
#include "rows.h"

namespace crossret_test {

// An array of random numbers, and the gradient that is to be made of it.
struct Leaf {
  std::vector<float> values, gradient;
  Row expected;

  Leaf(int64_t count, Random& random) : values(count), gradient(count, 0.0f), expected(count, 0.0) {
    for (float& x : values) x = static_cast<float>(uniform(random));
  }
  Row row(int64_t at, int64_t width) const { return Row(&values[at * width], &values[at * width] + width); }
  void add(int64_t at, double x) { expected[at] += x; }
};

struct GatedSideTest {
  int64_t count, length, hidden;
  Leaf keys, values, memory, weight, bias;
  std::unique_ptr<bool[]> mask;

  GatedSideTest(int64_t n, int64_t l, int64_t h, int64_t dim, int64_t gate, Random& random)
      : count(n),
        length(l),
        hidden(h),
        keys(n * l * h, random),
        values(n * l * dim, random),
        memory(n * gate, random),
        weight(h * gate, random),
        bias(h, random),
        mask(new bool[n * l]) {
    for (int64_t r = 0; r < n * l; ++r) mask[r] = r % l == 1 || random() % 4 != 0;
  }
};

// What one side's step makes of a pair, and back from the gradient of what it attends to.
struct GatedStepTest {
  GatedSideTest &own, &other;
  int64_t item, met, dim, gate;
  double alpha;
  Row opening, hidden, weights, attended;

  void attend() {
    opening.assign(gate, 0.0);
    for (int64_t g = 0; g < gate; ++g) {
      const double sum = alpha * own.memory.values[item * gate + g] + (1 - alpha) * other.memory.values[met * gate + g];
      opening[g] = 1 / (1 + std::exp(-sum));
    }
    hidden.assign(own.hidden, 0.0);
    for (int64_t h = 0; h < own.hidden; ++h) {
      hidden[h] = std::tanh(own.bias.values[h] + dot(own.weight.row(h, gate), opening));
    }
    weights.assign(own.length, 0.0);
    attended.assign(dim, 0.0);
    double total = 0;
    for (int64_t r = 0; r < own.length; ++r) {
      const int64_t row = item * own.length + r;
      if (own.mask[row]) total += weights[r] = std::exp(dot(own.keys.row(row, own.hidden), hidden));
    }
    for (int64_t r = 0; r < own.length; ++r) {
      crossret_test::add(attended, weights[r] /= total, own.values.row(item * own.length + r, dim));
    }
  }

  void differentiate(const Row& grad) {
    Row slopes(own.hidden, 0.0);
    const double along = dot(grad, attended);
    for (int64_t r = 0; r < own.length; ++r) {
      const int64_t row = item * own.length + r;
      const double logit = weights[r] * (dot(grad, own.values.row(row, dim)) - along);
      for (int64_t d = 0; d < dim; ++d) own.values.add(row * dim + d, weights[r] * grad[d]);
      for (int64_t h = 0; h < own.hidden; ++h) own.keys.add(row * own.hidden + h, logit * hidden[h]);
      crossret_test::add(slopes, logit, own.keys.row(row, own.hidden));
    }
    Row of_gate(gate, 0.0);
    for (int64_t h = 0; h < own.hidden; ++h) {
      slopes[h] *= 1 - hidden[h] * hidden[h];
      own.bias.add(h, slopes[h]);
      for (int64_t g = 0; g < gate; ++g) own.weight.add(h * gate + g, slopes[h] * opening[g]);
      crossret_test::add(of_gate, slopes[h], own.weight.row(h, gate));
    }
    for (int64_t g = 0; g < gate; ++g) {
      const double sum = of_gate[g] * opening[g] * (1 - opening[g]);
      own.memory.add(item * gate + g, alpha * sum);
      other.memory.add(met * gate + g, (1 - alpha) * sum);
    }
  }
};

inline void check_gated(const Kernels& kernels, std::initializer_list<int64_t> sizes, bool bfloat16) {
  const int64_t* const size = sizes.begin();
  const int64_t images = size[0], captions = size[1], dim = size[2], gate = size[3];
  Random random(static_cast<unsigned>(dim));
  GatedSideTest sides[2] = {{images, 5, size[4], dim, gate, random}, {captions, 3, size[5], dim, gate, random}};
  Leaf embedding(dim, random), grads(images * captions, random);
  constexpr double alpha = 0.75;
  GatedAttentionCall call{};
  GatedAttentionGradients gradients{};
  for (int64_t k = 0; k < 2; ++k) {
    GatedSideTest& of = sides[k];
    call.sides[k] = {of.keys.values.data(),
                     of.values.values.data(),
                     of.memory.values.data(),
                     of.mask.get(),
                     of.weight.values.data(),
                     of.bias.values.data(),
                     of.count,
                     of.length,
                     of.hidden};
    gradients.sides[k] = {of.keys.gradient.data(), of.values.gradient.data(), of.memory.gradient.data(),
                          of.weight.gradient.data(), of.bias.gradient.data()};
  }
  call.embedding_bias = embedding.values.data();
  call.gate = gate;
  call.dim = dim;
  call.shares[0] = alpha;
  call.shares[1] = 1 - alpha;
  call.bfloat16 = bfloat16;
  gradients.scores = grads.values.data();
  gradients.embedding_bias = embedding.gradient.data();
  std::vector<float> scores(images * captions);
  gated_attention(kernels, call, scores.data());
  differentiate_gated_attention(kernels, call, gradients);

  const double unit = bfloat16 ? 0x1p-5 : 256 * kUnit;
  for (int64_t i = 0; i < images; ++i) {
    for (int64_t j = 0; j < captions; ++j) {
      GatedStepTest of_image{sides[0], sides[1], i, j, dim, gate, alpha, {}, {}, {}, {}};
      GatedStepTest of_caption{sides[1], sides[0], j, i, dim, gate, alpha, {}, {}, {}, {}};
      of_image.attend();
      of_caption.attend();
      Row v(dim);
      const Row& t = of_caption.attended;
      for (int64_t d = 0; d < dim; ++d) v[d] = std::tanh(of_image.attended[d] + embedding.values[d]);
      const double lengths = length_of(v) * length_of(t), cosine = dot(v, t) / lengths;
      const double grad = grads.values[i * captions + j], made = scores[i * captions + j];
      if (!(std::abs(made - cosine) <= unit)) fail("%s: a gated score is %g, not %g", kernels.isa, made, cosine);
      Row of_v(dim), of_t(dim);
      for (int64_t d = 0; d < dim; ++d) {
        of_v[d] = grad * (t[d] / lengths - cosine * v[d] / dot(v, v)) * (1 - v[d] * v[d]);
        of_t[d] = grad * (v[d] / lengths - cosine * t[d] / dot(t, t));
        embedding.add(d, of_v[d]);
      }
      of_image.differentiate(of_v);
      of_caption.differentiate(of_t);
    }
  }
  const auto compare = [&](const char* what, const Leaf& leaf) {
    double most = 0;
    for (const double x : leaf.expected) most = std::max(most, std::abs(x));
    for (size_t k = 0; k < leaf.expected.size(); ++k) {
      if (std::abs(leaf.gradient[k] - leaf.expected[k]) <= unit * std::max(most, 0.01)) continue;
      fail("%s: gated attention's gradient of %s is %g, not %g", kernels.isa, what, leaf.gradient[k], leaf.expected[k]);
    }
  };
  for (const GatedSideTest& of : sides) {
    compare("keys", of.keys);
    compare("values", of.values);
    compare("memory", of.memory);
    compare("W", of.weight);
    compare("b", of.bias);
  }
  compare("the embedding", embedding);
}

// Images, captions, D, G and hidden units of either side: one of everything, odd sizes, several blocks and parts.
inline void check_gated(const Kernels& kernels) {
  for (const bool bfloat16 : {false, true}) {
    check_gated(kernels, {1, 1, 1, 1, 1, 1}, bfloat16);
    check_gated(kernels, {3, 37, 19, 37, 13, 21}, bfloat16);
    check_gated(kernels, {70, 2, 33, 67, 70, 16}, bfloat16);
  }
}

}  // namespace crossret_test
