// Products of whole matrices against sums in double precision: factors by rows and by columns.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "dense/cpu.h"
#include "features.h"
#include "rows.h"

namespace crossret_test {

// A factor of so many rows, the elements of each one after the other or `transposed`, and what it holds.
class DenseElements {
 public:
  DenseElements(Random& random, int64_t rows, int64_t depth, bool transposed) : data_(rows * depth) {
    for (float& x : data_) x = static_cast<float>(uniform(random));
    factor = {data_.data(), transposed ? 1 : depth, transposed ? rows : 1};
  }

  double at(int64_t row, int64_t k) const { return data_[row * factor.row + k * factor.k]; }

  crossret::DenseFactor factor;

 private:
  std::vector<float> data_;
};

inline void check_dense(const crossret::Kernels& kernels, int64_t rows, int64_t columns, int64_t depth, int kind) {
  Random random(rows + columns + kind);
  const bool biased = kind & 1;
  const DenseElements left(random, rows, depth, kind & 2), right(random, columns, depth, kind & 4);
  std::vector<float> bias(columns), out(rows * columns), sums(depth);
  for (float& x : bias) x = static_cast<float>(uniform(random));
  for (const bool bfloat16 : {false, true}) {
    multiply_dense(kernels, {left.factor, right.factor, rows, columns, depth, biased ? bias.data() : nullptr,
                             out.data(), bfloat16});
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < columns; ++n) {
        double sum = biased ? bias[n] : 0, size = 1;
        for (int64_t k = 0; k < depth; ++k) {
          const double product = left.at(m, k) * right.at(n, k);
          sum += product;
          size += std::abs(product);
        }
        const double made = out[m * columns + n], unit = bfloat16 ? 0x1p-7 : 64 * kUnit;
        if (!(std::abs(made - sum) <= unit * size)) fail("%s: a product is %g, not %g", kernels.isa, made, sum);
      }
    }
  }
  if (left.factor.k != 1) return;
  sum_dense_rows(kernels, left.factor, rows, depth, sums.data());
  for (int64_t k = 0; k < depth; ++k) {
    double sum = 0;
    for (int64_t m = 0; m < rows; ++m) sum += left.at(m, k);
    if (!(std::abs(sums[k] - sum) <= 64 * kUnit * static_cast<double>(rows))) fail("%s: a sum of rows", kernels.isa);
  }
}

inline void check_dense(const crossret::Kernels& kernels) {
  for (int kind = 0; kind < 8; ++kind) {
    check_dense(kernels, 1, 1, 1, kind);
    check_dense(kernels, 13, 37, 70, kind);
    check_dense(kernels, 150, 5, 33, kind);
    check_dense(kernels, 3, 40, 2100, kind);
  }
}

}  // namespace crossret_test
