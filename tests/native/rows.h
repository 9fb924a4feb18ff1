// Rows of numbers in double precision, and how a check fails.
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "pairs/operands.h"

namespace crossret_test {

using namespace crossret;

constexpr double kEps = 1e-8;  // of the formulas
constexpr double kUnit = 0x1p-23;
inline const double kNaN = std::numeric_limits<double>::quiet_NaN();

inline int failures = 0;

inline __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  if (++failures > 20) return;
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
}

using Row = std::vector<double>;
using Rows = std::vector<Row>;

inline double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

inline double length_of(const Row& a) { return std::sqrt(dot(a, a)); }

inline void add(Row& out, double factor, const Row& row) {
  for (size_t k = 0; k < out.size(); ++k) out[k] += factor * row[k];
}

}  // namespace crossret_test
