// Self-attention within padded items against HAN §3.2 in double precision, and its gradients against those formulas'.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "dispatch.h"
#include "features.h"
#include "rows.h"
#include "self_attention/problem.h"

namespace crossret {

CROSSRET_BY_SET(SelfAttentionKernels, self_attention_kernels)

}  // namespace crossret

namespace crossret_test {

struct AttentionCase {
  int64_t rows, heads, dim;
};

// One item of `items`, whose mask leaves the first row and some others.
class AttentionBatch {
 public:
  static constexpr int64_t items = 3;

  AttentionBatch(const AttentionCase& made, Random& random) : at(made) {
    projected = numbers(random, items * at.rows * 3 * row());
    grads = numbers(random, items * at.rows * row());
    mask = std::make_unique<bool[]>(items * at.rows);
    for (int64_t k = 0; k < items * at.rows; ++k) mask[k] = k % at.rows == 0 || random() % 3 > 0;
  }

  int64_t row() const { return at.heads * at.dim; }

  SelfAttentionCall call() const { return {projected.data(), mask.get(), items, at.rows, at.heads, at.dim, kLambda}; }

  // Rows of one head of an item: of queries, keys or values by `part`, or of gradients.
  Rows rows_of(int64_t item, int64_t head, int64_t part) const { return rows_of(projected, 3, item, head, part); }
  Rows grads_of(int64_t item, int64_t head) const { return rows_of(grads, 1, item, head, 0); }
  Rows rows_of(const std::vector<float>& from, int64_t parts, int64_t item, int64_t head, int64_t part) const {
    Rows found;
    for (int64_t r = 0; r < at.rows; ++r) {
      const float* const first = from.data() + ((item * at.rows + r) * parts + part) * row() + head * at.dim;
      found.emplace_back(first, first + at.dim);
    }
    return found;
  }

  static constexpr float kLambda = 0.4f;
  AttentionCase at;
  std::vector<float> projected, grads;
  std::unique_ptr<bool[]> mask;

 private:
  static std::vector<float> numbers(Random& random, int64_t count) {
    std::vector<float> made(count);
    for (float& x : made) x = static_cast<float>(uniform(random));
    return made;
  }
};

inline void check_attention(const crossret::Kernels& kernels, const AttentionCase& at) {
  Random random(static_cast<unsigned>(at.rows + at.heads + at.dim));
  const AttentionBatch batch(at, random);
  const SelfAttentionCall call = batch.call();
  const SelfAttentionKernels& run = self_attention_kernels_of(kernels);
  std::vector<float> out(batch.grads.size(), NAN), gradients(batch.projected.size(), NAN);
  Workspace counted;
  run.scratch(call, counted);
  for (int64_t item = 0; item < call.items; ++item) {
    std::vector<char> memory(counted.bytes() + 64, static_cast<char>(0xFF));
    Workspace workspace(memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64);
    Workspace again = workspace;
    run.attend(call, item, out.data(), workspace);
    run.differentiate(call, batch.grads.data(), item, gradients.data(), again);
  }
  const double unit = 256 * kUnit * static_cast<double>(at.dim + at.rows);
  const auto compare = [&](const char* what, const Rows& made, const Rows& wanted) {
    for (int64_t r = 0; r < at.rows; ++r) {
      for (int64_t d = 0; d < at.dim; ++d) {
        if (!(std::abs(made[r][d] - wanted[r][d]) <= unit)) {
          fail("%s: %s of self-attention is %g, not %g", kernels.isa, what, made[r][d], wanted[r][d]);
        }
      }
    }
  };
  for (int64_t item = 0; item < call.items; ++item) {
    for (int64_t h = 0; h < at.heads; ++h) {
      const Rows queries = batch.rows_of(item, h, 0), keys = batch.rows_of(item, h, 1);
      const Rows values = batch.rows_of(item, h, 2), grads = batch.grads_of(item, h), none(at.rows, Row(at.dim));
      Rows attended = none, of[3] = {none, none, none};
      for (int64_t r = 0; r < at.rows; ++r) {
        Row weights(at.rows), of_weights(at.rows);
        double total = 0, along = 0;
        for (int64_t j = 0; j < at.rows; ++j) {
          const bool there = batch.mask[item * at.rows + j];
          total += weights[j] = there ? std::exp(AttentionBatch::kLambda * dot(queries[r], keys[j])) : 0;
        }
        for (int64_t j = 0; j < at.rows; ++j) {
          weights[j] /= total;
          along += weights[j] * (of_weights[j] = dot(grads[r], values[j]));
          add(attended[r], weights[j], values[j]);
          add(of[2][j], weights[j], grads[r]);
        }
        for (int64_t j = 0; j < at.rows; ++j) {
          const double of_product = AttentionBatch::kLambda * weights[j] * (of_weights[j] - along);
          add(of[0][r], of_product, keys[j]);
          add(of[1][j], of_product, queries[r]);
        }
      }
      compare("a row", batch.rows_of(out, 1, item, h, 0), attended);
      const char* const names[] = {"a query's gradient", "a key's gradient", "a value's gradient"};
      for (const int part : {0, 1, 2}) compare(names[part], batch.rows_of(gradients, 3, item, h, part), of[part]);
    }
  }
}

inline void check_attention(const crossret::Kernels& kernels) {
  for (const AttentionCase& at : {AttentionCase{1, 1, 1}, {9, 3, 5}, {33, 2, 40}, {52, 4, 128}}) {
    check_attention(kernels, at);
  }
}

}  // namespace crossret_test
