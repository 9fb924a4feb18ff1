// Features in memory. The numbers that are stored are the nearest to those asked for.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "dispatch.h"
#include "rows.h"

namespace crossret_test {

using namespace crossret;

inline uint16_t half_bits(double x) {
  if (x != x) return 0x7E00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isinf(x)) return static_cast<uint16_t>(sign | 0x7C00);
  if (std::fabs(x) < 0x1p-14) return sign;
  int exponent = std::ilogb(x);
  auto digits = static_cast<int>(std::rint(std::ldexp(std::fabs(x), 10 - exponent)));  // 1024 … 2048
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + digits));
}

inline double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  const double size = exponent == 31  ? (digits ? kNaN : INFINITY)
                      : exponent == 0 ? std::ldexp(digits, -24)
                                      : std::ldexp(digits + 1024, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

inline void put(char* at, Dtype dtype, double x) {
  const auto single = static_cast<float>(x);
  if (dtype == Dtype::float32) {
    std::memcpy(at, &single, 4);
    return;
  }
  uint16_t half = half_bits(x);
  if (dtype == Dtype::bfloat16) {
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    half = static_cast<uint16_t>(x == x ? (bits + 0x8000) >> 16 : 0x7FC0);
  }
  std::memcpy(at, &half, 2);
}

inline double get(const char* at, Dtype dtype) {
  if (dtype == Dtype::float32) {
    float single;
    std::memcpy(&single, at, 4);
    return single;
  }
  uint16_t half;
  std::memcpy(&half, at, 2);
  if (dtype == Dtype::float16) return half_value(half);
  const uint32_t bits = uint32_t{half} << 16;
  float single;
  std::memcpy(&single, &bits, 4);
  return single;
}

enum class Form { padded, masked, packed, listed };
inline const char* const kForms[] = {"padded", "masked", "packed", "listed"};
inline const char* const kDtypes[] = {"float32", "bfloat16", "float16"};

using Random = std::mt19937;

inline int64_t below(Random& random, int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); }

inline double uniform(Random& random) { return random() * 0x1p-31 - 1; }

// One side: its rows as numbers, and in memory as a call describes it. What is no valid row's is NaN.
class Features {
 public:
  Features(Random& random, Form form, Dtype dtype, int64_t dim, const std::vector<int64_t>& lengths, bool zero_row) {
    side_.dtype = dtype;
    side_.dim = dim;
    const int64_t size = side_.element_bytes();
    for (const int64_t n : lengths) side_.longest = std::max(side_.longest, n);
    const bool spread = form == Form::padded || form == Form::masked;
    width_ = form == Form::masked ? side_.longest + 3 : side_.longest + (form == Form::padded ? 1 : 0);
    const int64_t stride = form == Form::packed || (form == Form::padded && random() % 2) ? dim : dim + 3;
    for (const int64_t n : lengths) {
      std::vector<int32_t> places(n);
      for (int64_t r = 0; r < n; ++r) places[r] = static_cast<int32_t>(r);
      if (form == Form::masked) {
        std::vector<int32_t> all(width_);
        for (int64_t r = 0; r < width_; ++r) all[r] = static_cast<int32_t>(r);
        std::shuffle(all.begin(), all.end(), random);
        std::copy(all.begin(), all.begin() + n, places.begin());
        std::sort(places.begin(), places.end());
      }
      const int64_t shift = form == Form::listed ? 1 + below(random, 7) : 0;  // elements: any alignment
      const int64_t rows = spread ? width_ : n;
      memory_.emplace_back((rows * stride + shift) * size + 64);
      char* const data = memory_.back().data() + shift * size;
      for (int64_t k = 0; k < rows * stride; ++k) put(data + k * size, dtype, kNaN);
      Rows values;
      for (int64_t r = 0; r < n; ++r) {
        Row row(dim);
        const double scale =
            (zero_row && values_.empty() && r == n / 2) ? 0 : std::exp(uniform(random) / 2) * 2 / std::sqrt(dim);
        for (int64_t k = 0; k < dim; ++k) {
          char* const at = data + (places[r] * stride + k) * size;
          put(at, dtype, scale * (uniform(random) + uniform(random) + 0.15));
          row[k] = get(at, dtype);
        }
        values.push_back(row);
      }
      const bool holes = n > 0 && places[n - 1] != n - 1;
      places_.push_back(places);
      const int64_t first = spread ? static_cast<int64_t>(values_.size()) * width_ : side_.rows;
      items_.push_back({data, stride * size, holes ? places_.back().data() : nullptr, n, side_.rows, first});
      side_.masked = side_.masked || holes;
      side_.rows += n;
      gradient_rows_ = first + rows;
      values_.push_back(values);
    }
    side_.items = items_.data();
    side_.count = static_cast<int64_t>(items_.size());
  }

  void normalize(const Kernels& kernels) {
    norms_.assign(side_.rows, -1.0f);
    for (int64_t item = 0; item < side_.count; ++item) kernels.row_norms(side_, item, norms_.data());
    side_.norms = norms_.data();
  }

  const RaggedView& side() const { return side_; }
  const std::vector<Rows>& values() const { return values_; }
  int64_t width() const { return width_; }
  int64_t place(int64_t item, int64_t r) const { return places_[item][r]; }

  // A zero gradient; and its rows once it is made. Rows of no item must have stayed zero.
  std::vector<char> new_gradient() const {
    return std::vector<char>(gradient_rows_ * side_.dim * side_.element_bytes() + 1);
  }
  Row gradient_row(const std::vector<char>& gradient, int64_t item, int64_t r) const {
    Row row(side_.dim);
    const int64_t size = side_.element_bytes();
    const int64_t at = (items_[item].gradient + place(item, r)) * side_.dim;
    for (int64_t k = 0; k < side_.dim; ++k) row[k] = get(gradient.data() + (at + k) * size, side_.dtype);
    return row;
  }
  int64_t nonzero_elsewhere(std::vector<char> gradient) const {
    const int64_t row_bytes = side_.dim * side_.element_bytes();
    for (int64_t item = 0; item < side_.count; ++item) {
      for (int64_t r = 0; r < side_.length(item); ++r) {
        std::memset(gradient.data() + (items_[item].gradient + place(item, r)) * row_bytes, 0, row_bytes);
      }
    }
    return std::count_if(gradient.begin(), gradient.end(), [](char byte) { return byte != 0; });
  }

 private:
  RaggedView side_{};
  std::vector<Item> items_;
  std::deque<std::vector<char>> memory_;
  std::deque<std::vector<int32_t>> places_;  // of all items
  std::vector<Rows> values_;
  std::vector<float> norms_;
  int64_t width_ = 0, gradient_rows_ = 0;
};

}  // namespace crossret_test
