// Checks the kernels of every instruction set against the formulas in double precision, one pair at a time, without
// torch: scores, best contexts and the gradients of both sides, for features held in every way that a call takes.
//   kernels_test [isa …]: those named, each of which must be there; else all that this processor has.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cross_attention/cpu.h"
#include "dispatch.h"
#include "maxsim/cpu.h"
#include "pairs/parallel.h"

namespace crossret {

// An instruction set that is not linked in leaves these behind.
#define CROSSRET_ABSENT(isa)                                                                                       \
  namespace isa {                                                                                                  \
  extern const Kernels kernels __attribute__((weak));                                                              \
  const Kernels kernels = {#isa, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr}; \
  }
CROSSRET_ABSENT(amx_emulated)
CROSSRET_ABSENT(avx2)
CROSSRET_ABSENT(avx512)
CROSSRET_ABSENT(avx512bf16)
CROSSRET_ABSENT(amx)
CROSSRET_ABSENT(neon)
CROSSRET_ABSENT(neon_bf16)
#undef CROSSRET_ABSENT

// pairs/parallel.cpp without torch: as many threads as the test wants, however little there is to do.
static int64_t test_threads = 1;

bool in_forked_child() { return false; }
int64_t thread_count() { return test_threads; }
int64_t worthwhile_threads(double) { return test_threads; }
double pass_work(const Side&) { return 0; }

void parallel(int64_t items, double, int64_t bytes, Memory& memory,
              const std::function<void(int64_t, Workspace&)>& work) {
  if (items == 0) return;
  const int64_t workers = std::min(items, test_threads), stride = round_up(bytes, 64);
  char* const first = static_cast<char*>(memory.bytes(workers * stride + 64));
  std::memset(first, 0xFF, workers * stride);  // NaN: nothing may count on what it finds there
  std::atomic<int64_t> next{0};
  const auto run = [&](int64_t worker) {
    for (int64_t item = next++; item < items; item = next++) {
      Workspace workspace(first + worker * stride);
      work(item, workspace);
    }
  };
  std::vector<std::thread> others;
  for (int64_t worker = 1; worker < workers; ++worker) others.emplace_back(run, worker);
  run(0);
  for (std::thread& other : others) other.join();
}

}  // namespace crossret

namespace {

using namespace crossret;

constexpr double kEps = 1e-8;  // of the formulas
constexpr double kUnit = 0x1p-23;
const double kNaN = std::numeric_limits<double>::quiet_NaN();

int failures = 0;

__attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  if (++failures > 20) return;
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
}

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

double length_of(const Row& a) { return std::sqrt(dot(a, a)); }

void add(Row& out, double factor, const Row& row) {
  for (size_t k = 0; k < out.size(); ++k) out[k] += factor * row[k];
}

// Features in memory. The numbers that are stored are the nearest to those asked for.

uint16_t half_bits(double x) {
  if (x != x) return 0x7E00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::fabs(x) < 0x1p-14) return sign;
  int exponent = std::ilogb(x);
  auto digits = static_cast<int>(std::rint(std::ldexp(std::fabs(x), 10 - exponent)));  // 1024 … 2048
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + digits));
}

double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  const double size = exponent == 31  ? (digits ? kNaN : INFINITY)
                      : exponent == 0 ? std::ldexp(digits, -24)
                                      : std::ldexp(digits + 1024, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

void put(char* at, Dtype dtype, double x) {
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

double get(const char* at, Dtype dtype) {
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
const char* const kForms[] = {"padded", "masked", "packed", "listed"};
const char* const kDtypes[] = {"float32", "bfloat16", "float16"};

using Random = std::mt19937;

int64_t below(Random& random, int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); }

double uniform(Random& random) { return random() * 0x1p-31 - 1; }

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

  const Side& side() const { return side_; }
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
  Side side_{};
  std::vector<Item> items_;
  std::deque<std::vector<char>> memory_;
  std::deque<std::vector<int32_t>> places_;  // of all items
  std::vector<Rows> values_;
  std::vector<float> norms_;
  int64_t width_ = 0, gradient_rows_ = 0;
};

// The formulas of kernels.md §1, and their derivatives one after the other.

struct Options {
  bool cross_attention, normalize;
  Norm norm;
  double slope;  // of the clip; 1 where there is none
  double lambda, lambda_lse;
  Pooling pooling;
};

struct Reference {
  double scores_scale = 1;  // what rounding of scores is relative to
  double logits = 1;        // the largest λn
  double least = 1;         // ‖attended‖ / Σ α ‖context‖, at least
  bool ambiguous = false;   // a maximum or a clip that rounding decides
};

double pooled(const Row& values, const Options& options, double lambda, double grad, Row& grads, Reference& seen) {
  grads.assign(values.size(), 0.0);
  const auto best = std::max_element(values.begin(), values.end());
  if (options.pooling == Pooling::max) {
    grads[best - values.begin()] = grad;
    for (auto x = values.begin(); x != values.end(); ++x) {
      seen.ambiguous = seen.ambiguous || (x != best && *best - *x < 1e-5);
    }
    return *best;
  }
  double sum = 0;
  if (options.pooling == Pooling::lse) {
    for (size_t i = 0; i < values.size(); ++i) sum += grads[i] = std::exp(lambda * (values[i] - *best));
    for (double& g : grads) g *= grad / sum;
    return *best + std::log(sum) / lambda;
  }
  const double each = options.pooling == Pooling::avg ? 1.0 / static_cast<double>(values.size()) : 1.0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i] * each;
    grads[i] = grad * each;
  }
  return sum;
}

Rows unit_rows(const Rows& rows, bool normalize) {
  Rows units = rows;
  for (Row& row : units) {
    const double norm = length_of(row);
    for (double& x : row) x /= normalize && norm > 0 ? norm : 1.0;
  }
  return units;
}

// n of one context's similarities to all queries, and ∂L/∂s from ∂L/∂n.
Row logits_of(const Row& s, const Options& options) {
  Row n = s;
  double sum = 0;
  for (double& x : n) x = x > 0 ? x : options.slope * x;
  if (options.norm == Norm::softmax) {
    for (double& x : n) sum += x = std::exp(x);
    for (double& x : n) x /= sum;
  } else if (options.norm != Norm::none) {
    for (const double x : n) sum += options.norm == Norm::l2 ? x * x : std::fabs(x);
    for (double& x : n) x /= (options.norm == Norm::l2 ? std::sqrt(sum) : sum) + kEps;
  }
  return n;
}

Row logits_gradient(const Row& s, const Row& n, const Row& dn, const Options& options) {
  Row ds(s.size());
  const double along = dot(n, dn);
  Row x = s;
  for (double& value : x) value = value > 0 ? value : options.slope * value;
  double norm = 0;
  for (const double value : x) norm += options.norm == Norm::l2 ? value * value : std::fabs(value);
  if (options.norm == Norm::l2) norm = std::sqrt(norm);
  for (size_t j = 0; j < s.size(); ++j) {
    const double sign = (x[j] > 0) - (x[j] < 0);
    if (options.norm == Norm::softmax) {
      ds[j] = n[j] * (dn[j] - along);
    } else if (options.norm == Norm::none) {
      ds[j] = dn[j];
    } else if (norm > 0) {  // n = x / (‖x‖ + eps)
      ds[j] = (dn[j] - along * (options.norm == Norm::l2 ? x[j] / norm : sign)) / (norm + kEps);
    }
    if (options.norm != Norm::softmax) ds[j] *= s[j] > 0 ? 1.0 : options.slope;
  }
  return ds;
}

// One pair's score; adds `grad` times its gradients to those of both sides' rows.
double cross_attention(const Rows& contexts, const Rows& queries, const Options& options, double grad, Rows& dcontexts,
                       Rows& dqueries, Reference& seen) {
  const size_t rows = contexts.size(), columns = queries.size(), dim = contexts[0].size();
  Rows s(rows, Row(columns)), n, dn(rows, Row(columns)), alpha(rows, Row(columns));
  for (size_t c = 0; c < rows; ++c) {
    for (size_t q = 0; q < columns; ++q) {
      s[c][q] = dot(contexts[c], queries[q]);
      const bool kink = options.slope != 1 || options.norm == Norm::l1;
      const double near = std::fabs(s[c][q]) / (length_of(contexts[c]) * length_of(queries[q]));
      seen.ambiguous = seen.ambiguous || (kink && near < 1e-6 && near > 0);
    }
    n.push_back(logits_of(s[c], options));
    for (const double x : n[c]) seen.logits = std::max(seen.logits, std::fabs(options.lambda * x));
  }
  Rows attended;
  Row relevance, grads;
  for (size_t q = 0; q < columns; ++q) {
    double sum = 0, most = -INFINITY, longest = 0;
    for (size_t c = 0; c < rows; ++c) most = std::max(most, options.lambda * n[c][q]);
    for (size_t c = 0; c < rows; ++c) sum += alpha[c][q] = std::exp(options.lambda * n[c][q] - most);
    Row a(dim);
    for (size_t c = 0; c < rows; ++c) {
      alpha[c][q] /= sum;
      add(a, alpha[c][q], contexts[c]);
      longest += alpha[c][q] * length_of(contexts[c]);
    }
    if (longest > 0) seen.least = std::min(seen.least, length_of(a) / longest);
    const double length = length_of(a) * length_of(queries[q]);
    relevance.push_back(length > 0 ? dot(a, queries[q]) / std::max(length, kEps) : 0.0);
    attended.push_back(a);
  }
  const double score = pooled(relevance, options, options.lambda_lse, grad, grads, seen);
  seen.scores_scale = std::max({seen.scores_scale, std::fabs(score), 1 / options.lambda_lse});
  for (size_t q = 0; q < columns; ++q) {
    const Row &a = attended[q], &query = queries[q];
    const double length = length_of(a) * length_of(query), r = relevance[q], g = grads[q];
    if (length == 0) continue;
    Row da(dim);
    add(da, g / std::max(length, kEps), query);
    add(dqueries[q], g / std::max(length, kEps), a);
    if (length > kEps) {
      add(da, -g * r / dot(a, a), a);
      add(dqueries[q], -g * r / dot(query, query), query);
    }
    double mean = 0;
    for (size_t c = 0; c < rows; ++c) mean += alpha[c][q] * dot(da, contexts[c]);
    for (size_t c = 0; c < rows; ++c) {
      dn[c][q] = options.lambda * alpha[c][q] * (dot(da, contexts[c]) - mean);
      add(dcontexts[c], alpha[c][q], da);
    }
  }
  for (size_t c = 0; c < rows; ++c) {
    const Row ds = logits_gradient(s[c], n[c], dn[c], options);
    for (size_t q = 0; q < columns; ++q) {
      add(dcontexts[c], ds[q], queries[q]);
      add(dqueries[q], ds[q], contexts[c]);
    }
  }
  return score;
}

// The same of Sum-Max; `best` gets the context of every query.
double maxsim(const Rows& contexts, const Rows& queries, const Options& options, double grad, Rows& dcontexts,
              Rows& dqueries, std::vector<int64_t>& best, Reference& seen) {
  Row values, grads;
  best.clear();
  for (const Row& query : queries) {
    double most = -INFINITY, next = -INFINITY;
    int64_t at = 0;
    for (size_t c = 0; c < contexts.size(); ++c) {
      const double s = dot(contexts[c], query);
      next = std::max(next, std::min(s, most));
      if (s > most) at = static_cast<int64_t>(c);
      most = std::max(most, s);
    }
    seen.ambiguous = seen.ambiguous || (dot(query, query) > 0 && most - next < 5e-6 * std::max(1.0, std::fabs(most)));
    best.push_back(at);
    values.push_back(most);
  }
  const double score = pooled(values, options, 1.0, grad, grads, seen);
  seen.scores_scale = std::max(seen.scores_scale, std::fabs(score));
  for (size_t q = 0; q < queries.size(); ++q) {
    add(dcontexts[best[q]], grads[q], queries[q]);
    add(dqueries[q], grads[q], contexts[best[q]]);
  }
  return score;
}

// ∂L/∂row from ∂L/∂(row / ‖row‖).
Row through_norm(const Row& row, const Row& unit, Row grad, bool normalize) {
  if (!normalize) return grad;
  const double norm = length_of(row);
  if (norm == 0) return Row(row.size());
  add(grad, -dot(unit, grad), unit);
  for (double& g : grad) g /= norm;
  return grad;
}

// Is the reference's gradient that of its score? Central differences say so.
void check_reference(const Options& options) {
  Random random(3);
  Rows sides[2];
  for (Rows& side : sides) {
    for (int r = 0; r < 4 + (&side == sides); ++r) {
      side.emplace_back();
      for (int k = 0; k < 5; ++k) side.back().push_back(uniform(random) + 0.3);
    }
  }
  Reference seen;
  std::vector<int64_t> best;
  const auto score = [&](double grad, Rows& dcontexts, Rows& dqueries) {
    const Rows contexts = unit_rows(sides[0], options.normalize), queries = unit_rows(sides[1], options.normalize);
    dcontexts.assign(contexts.size(), Row(5));
    dqueries.assign(queries.size(), Row(5));
    const double result = options.cross_attention
                              ? cross_attention(contexts, queries, options, grad, dcontexts, dqueries, seen)
                              : maxsim(contexts, queries, options, grad, dcontexts, dqueries, best, seen);
    for (size_t r = 0; r < contexts.size(); ++r) {
      dcontexts[r] = through_norm(sides[0][r], contexts[r], dcontexts[r], options.normalize);
    }
    for (size_t r = 0; r < queries.size(); ++r) {
      dqueries[r] = through_norm(sides[1][r], queries[r], dqueries[r], options.normalize);
    }
    return result;
  };
  Rows grads[2], ignored[2];
  score(1.0, grads[0], grads[1]);
  for (int side = 0; side < 2; ++side) {
    for (size_t r = 0; r < sides[side].size(); ++r) {
      for (int k = 0; k < 5; ++k) {
        constexpr double step = 1e-6;
        double& x = sides[side][r][k];
        const double before = x;
        x = before + step;
        const double above = score(0.0, ignored[0], ignored[1]);
        x = before - step;
        const double difference = (above - score(0.0, ignored[0], ignored[1])) / (2 * step);
        x = before;
        if (std::fabs(difference - grads[side][r][k]) > 1e-6 * (1 + std::fabs(difference))) {
          fail("the reference's own gradient is %g, differences say %g", grads[side][r][k], difference);
        }
      }
    }
  }
}

// A batch, what its results should be, and how far from that they may be.

struct Shape {
  int64_t images, captions, least, most, dim;
};

struct Case {
  Options options;
  bool words_attend, listed_pairs, zero_row;
  Form forms[2];  // of regions, of words
  Dtype dtype;
  Shape shape;
  int threads;
};

constexpr double kEmptyScore = -7;

class Batch {
 public:
  Batch(const Case& wanted, unsigned seed) : what_(wanted), random_(seed) {
    const Shape& shape = what_.shape;
    for (const int64_t count : {shape.images, shape.captions}) {
      std::vector<int64_t> lengths(count);
      for (int64_t& n : lengths) n = shape.least + below(random_, shape.most - shape.least + 1);
      sides_.emplace_back(random_, what_.forms[sides_.size()], what_.dtype, shape.dim, lengths, what_.zero_row);
    }
    const int64_t all = shape.images * shape.captions;
    for (int64_t k = 0; k < (what_.listed_pairs ? all / 2 + 2 : all); ++k) {
      const bool listed = what_.listed_pairs;
      pairs_.push_back(listed ? below(random_, shape.images) : k / shape.captions);
      pairs_.push_back(listed ? below(random_, shape.captions) : k % shape.captions);
      grads_.push_back(random_() % 4 == 0 ? 0.0f : static_cast<float>(uniform(random_)));
    }
    refer();
  }

  bool well_posed() const { return !seen_.ambiguous && seen_.least > 0.02; }

  // Returns the largest error, of what it may be.
  double check(const Kernels& kernels, bool split) {
    worst_ = 0;
    name_ = std::string(kernels.isa) + (split ? " split" : "") + ": " + describe();
    test_threads = what_.threads;
    for (Features& side : sides_) {
      if (what_.options.normalize) side.normalize(kernels);
    }
    const double unit = (split ? 0x1p-15 : 8 * kUnit) * (1 + seen_.logits);
    const std::vector<float> scores = run_scores(kernels, split);
    for (size_t k = 0; k < scores.size(); ++k) {
      compare(scores[k], scores_[k], unit * seen_.scores_scale, "the score of pair", k, 0, 0);
    }
    if (split) return worst_;  // its products decide maxima otherwise
    if (!what_.options.cross_attention) check_argmax(kernels);
    std::vector<char> gradients[2] = {sides_[0].new_gradient(), sides_[1].new_gradient()};
    run_gradients(kernels, gradients);
    for (int side = 0; side < 2; ++side) check_gradient(side, gradients[side], unit);
    if (what_.threads > 1) {
      test_threads = 1;
      std::vector<char> alone[2] = {sides_[0].new_gradient(), sides_[1].new_gradient()};
      run_gradients(kernels, alone);
      const std::vector<float> again = run_scores(kernels, split);
      if (std::memcmp(again.data(), scores.data(), scores.size() * 4) != 0 || alone[0] != gradients[0] ||
          alone[1] != gradients[1]) {
        fail("%s: threads change the result", name_.c_str());
      }
    }
    return worst_;
  }

 private:
  const Features& contexts() const { return sides_[what_.words_attend ? 0 : 1]; }
  const Features& queries() const { return sides_[what_.words_attend ? 1 : 0]; }
  int64_t context_of(int64_t pair) const { return pairs_[2 * pair + (what_.words_attend ? 0 : 1)]; }
  int64_t query_of(int64_t pair) const { return pairs_[2 * pair + (what_.words_attend ? 1 : 0)]; }
  int64_t count() const { return static_cast<int64_t>(pairs_.size()) / 2; }
  int64_t context_stride() const { return what_.words_attend ? what_.shape.captions : 1; }
  int64_t query_stride() const { return what_.words_attend ? 1 : what_.shape.captions; }

  std::string describe() const {
    const Options& o = what_.options;
    char text[300];
    std::snprintf(
        text, sizeof text,
        "%s %s, norm %d, slope %g, pooling %d, %s, %s regions, %s words, %s%s%s, %d x %d items of %d to %d, D %d",
        o.cross_attention ? "cross attention" : "Sum-Max", what_.words_attend ? "t2i" : "i2t", static_cast<int>(o.norm),
        o.slope, static_cast<int>(o.pooling), kDtypes[static_cast<int>(what_.dtype)],
        kForms[static_cast<int>(what_.forms[0])], kForms[static_cast<int>(what_.forms[1])],
        o.normalize ? "normalised" : "as they are", what_.listed_pairs ? ", listed pairs" : "",
        what_.threads > 1 ? ", threads" : "", static_cast<int>(what_.shape.images),
        static_cast<int>(what_.shape.captions), static_cast<int>(what_.shape.least), static_cast<int>(what_.shape.most),
        static_cast<int>(what_.shape.dim));
    return text;
  }

  void refer() {
    const Options& options = what_.options;
    const Features* const ends[2] = {&contexts(), &queries()};
    std::vector<Rows> units[2], grads[2];
    for (int end = 0; end < 2; ++end) {
      for (const Rows& rows : ends[end]->values()) {
        units[end].push_back(unit_rows(rows, options.normalize));
        grads[end].emplace_back(rows.size(), Row(what_.shape.dim));
      }
    }
    best_.resize(count());
    for (int64_t k = 0; k < count(); ++k) {
      const int64_t c = context_of(k), q = query_of(k);
      if (units[0][c].empty() || units[1][q].empty()) {
        scores_.push_back(kEmptyScore);
        continue;
      }
      scores_.push_back(
          options.cross_attention
              ? cross_attention(units[0][c], units[1][q], options, grads_[k], grads[0][c], grads[1][q], seen_)
              : maxsim(units[0][c], units[1][q], options, grads_[k], grads[0][c], grads[1][q], best_[k], seen_));
    }
    for (int end = 0; end < 2; ++end) {
      const std::vector<Rows>& values = ends[end]->values();
      std::vector<Rows>& result = gradients_[ends[end] == &sides_[0] ? 0 : 1];
      for (size_t item = 0; item < values.size(); ++item) {
        result.emplace_back();
        for (size_t r = 0; r < values[item].size(); ++r) {
          result[item].push_back(
              through_norm(values[item][r], units[end][item][r], grads[end][item][r], options.normalize));
        }
      }
    }
  }

  void lay_out(Operands& operands, const Kernels& kernels, bool split) const {
    operands.contexts = contexts().side();
    operands.queries = queries().side();
    operands.context_layout = kernels.layout(operands.contexts, true, split);
    operands.query_layout = kernels.layout(operands.queries, false, split);
  }

  CrossAttentionCall cross_attention_call(const Kernels& kernels, bool split) const {
    CrossAttentionCall call{};
    lay_out(call, kernels, split);
    const Options& o = what_.options;
    call.options = {o.norm, static_cast<float>(o.slope), static_cast<float>(o.lambda), o.pooling,
                    static_cast<float>(o.lambda_lse)};
    return call;
  }

  MaxSimCall maxsim_call(const Kernels& kernels, bool split) const {
    MaxSimCall call{};
    lay_out(call, kernels, split);
    call.pooling = what_.options.pooling;
    return call;
  }

  const PairList* listed() {
    list_ = {pairs_.data(), count(), what_.words_attend ? 0 : 1};
    return what_.listed_pairs ? &list_ : nullptr;
  }

  std::vector<float> run_scores(const Kernels& kernels, bool split) {
    std::vector<float> scores(count(), static_cast<float>(kEmptyScore));
    if (what_.options.cross_attention) {
      CrossAttentionCall call = cross_attention_call(kernels, split);
      call.scores = scores.data();
      score_cross_attention(kernels, call, listed(), context_stride(), query_stride());
    } else {
      MaxSimCall call = maxsim_call(kernels, split);
      call.scores = scores.data();
      score_maxsim(kernels, call, listed(), context_stride(), query_stride());
    }
    return scores;
  }

  void run_gradients(const Kernels& kernels, std::vector<char>* gradients) {
    SideGradient regions(sides_[0].side(), gradients[0].data(), kernels.finish_gradient);
    SideGradient words(sides_[1].side(), gradients[1].data(), kernels.finish_gradient);
    SideGradient &of_contexts = what_.words_attend ? regions : words,
                 &of_queries = what_.words_attend ? words : regions;
    const ScoreGradients grads = what_.listed_pairs ? ScoreGradients{grads_.data(), 1, 0}
                                                    : ScoreGradients{grads_.data(), context_stride(), query_stride()};
    if (what_.options.cross_attention) {
      differentiate_cross_attention(kernels, cross_attention_call(kernels, false), listed(), grads, of_contexts,
                                    of_queries);
    } else {
      differentiate_maxsim(kernels, maxsim_call(kernels, false), listed(), grads, of_contexts, of_queries);
    }
  }

  void check_argmax(const Kernels& kernels) {
    const int64_t width = queries().width();
    std::vector<int64_t> found(count() * width, -1);
    MaxSimCall call = maxsim_call(kernels, false);
    call.pooling = Pooling::sum;
    call.argmax = found.data();
    call.argmax_row = width;
    score_maxsim(kernels, call, listed(), context_stride(), query_stride());
    for (int64_t k = 0; k < count(); ++k) {
      std::vector<int64_t> expected(width, -1);
      for (size_t q = 0; q < best_[k].size(); ++q) {
        expected[queries().place(query_of(k), static_cast<int64_t>(q))] = contexts().place(context_of(k), best_[k][q]);
      }
      for (int64_t q = 0; q < width; ++q) {
        if (found[k * width + q] == expected[q]) continue;
        fail("%s: the best context of pair %d, query %d, is %d, not %d", name_.c_str(), static_cast<int>(k),
             static_cast<int>(q), static_cast<int>(found[k * width + q]), static_cast<int>(expected[q]));
      }
    }
  }

  void check_gradient(int side, const std::vector<char>& gradient, double unit) {
    const char* const name = side == 0 ? "the gradient of regions" : "the gradient of words";
    const Features& features = sides_[side];
    double largest = 0;
    for (const Rows& rows : gradients_[side]) {
      for (const Row& row : rows) {
        for (const double g : row) largest = std::max(largest, std::fabs(g));
      }
    }
    const double digits = what_.dtype == Dtype::float32 ? 0 : what_.dtype == Dtype::bfloat16 ? 0x1.02p-9 : 0x1.01p-12;
    const double step = what_.dtype == Dtype::float16 ? 0x1p-25 : 0;
    for (int64_t item = 0; item < features.side().count; ++item) {
      for (int64_t r = 0; r < features.side().length(item); ++r) {
        const Row row = features.gradient_row(gradient, item, r);
        for (size_t k = 0; k < row.size(); ++k) {
          const double expected = gradients_[side][item][r][k];
          const double bound = unit * largest / seen_.least + 2 * digits * std::fabs(expected) + step;
          compare(row[k], expected, bound, name, item, r, k);
        }
      }
    }
    if (features.nonzero_elsewhere(gradient) != 0) fail("%s: %s is written where no row is", name_.c_str(), name);
  }

  void compare(double found, double expected, double bound, const char* what, size_t i, size_t r, size_t k) {
    const double error = std::fabs(found - expected);
    if (!(error <= bound)) {
      fail("%s: %s %d %d %d is %g, not %g: off by %g, more than %g", name_.c_str(), what, static_cast<int>(i),
           static_cast<int>(r), static_cast<int>(k), found, expected, error, bound);
    }
    if (bound > 0 && what_.dtype == Dtype::float32) worst_ = std::max(worst_, error / bound);
  }

  const Case what_;
  Random random_;
  std::deque<Features> sides_;
  std::vector<int64_t> pairs_;
  std::vector<float> grads_;
  PairList list_{};
  Reference seen_;
  std::vector<double> scores_;
  std::vector<std::vector<int64_t>> best_;  // of Sum-Max, of every pair's queries
  std::vector<Rows> gradients_[2];
  double worst_ = 0;
  std::string name_;
};

// Every norm, clip, pooling and direction, and with each of them other sizes, dtypes and forms.
std::vector<Case> all_cases() {
  constexpr Shape shapes[] = {{5, 6, 0, 19, 33}, {3, 4, 1, 44, 130}, {17, 11, 1, 6, 16}, {4, 3, 3, 13, 300},
                              {3, 3, 12, 30, 7}, {4, 4, 0, 9, 66},   {3, 9, 36, 36, 24}};
  constexpr Pooling poolings[] = {Pooling::lse, Pooling::avg, Pooling::sum, Pooling::max};
  struct {
    Norm norm;
    double slope;
  } constexpr norms[] = {{Norm::l2, 1},   {Norm::l2, 0.125}, {Norm::softmax, 1}, {Norm::l1, 1},
                         {Norm::l1, 0.1}, {Norm::none, 1},   {Norm::none, 0}};
  std::vector<Case> cases;
  Random random(1);
  const auto add_case = [&](const Options& options, bool words_attend, const Shape& shape) {
    const auto at = static_cast<int>(cases.size());
    Case made{};
    made.options = options;
    made.options.slope = static_cast<float>(options.slope);
    made.words_attend = words_attend;
    made.shape = shape;
    made.dtype = static_cast<Dtype>(at % 3);
    made.options.normalize = random() % 2;
    made.listed_pairs = random() % 3 == 0;
    made.zero_row = options.pooling != Pooling::max && random() % 3 == 0;
    made.threads = random() % 3 == 0 ? 3 : 1;
    for (Form& form : made.forms) form = static_cast<Form>(random() % 4);
    cases.push_back(made);
  };
  for (const auto& norm : norms) {
    for (const Pooling pooling : poolings) {
      for (const bool words_attend : {true, false}) {
        const double lambda = norm.norm == Norm::none ? 2 : random() % 8 == 0 ? -3 : 9;
        add_case({true, false, norm.norm, norm.slope, lambda, random() % 2 ? 6.0 : 1.5, pooling}, words_attend,
                 shapes[cases.size() % 7]);
      }
    }
  }
  for (int round = 0; round < 4; ++round) {
    for (const Pooling pooling : poolings) {
      for (const bool words_attend : {true, false}) {
        add_case({false, false, Norm::none, 1, 1, 1, pooling}, words_attend, shapes[cases.size() % 7]);
      }
    }
  }
  // So deep that products of more than a few rows are cut along k; and, for Sum-Max, items so long that they are taken
  // in parts.
  add_case({true, false, Norm::l2, 0.1, 9, 6, Pooling::lse}, true, {3, 4, 19, 30, 1030});
  add_case({true, false, Norm::softmax, 1, 9, 6, Pooling::avg}, false, {4, 3, 19, 30, 1029});
  add_case({false, false, Norm::none, 1, 1, 1, Pooling::sum}, true, {2, 2, 70, 140, 1031});
  add_case({false, false, Norm::none, 1, 1, 1, Pooling::avg}, false, {1, 2, 70, 140, 1040});
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> available = available_isas(), wanted(argv + 1, argv + argc);
  std::vector<std::string> names;
  for (const std::string& name : wanted) {
    if (std::find(available.begin(), available.end(), name) == available.end()) fail("no %s here", name.c_str());
  }
  for (const std::string& name : available) {
    select_isa(name);
    const bool linked = kernels(Dtype::float32, false).layout != nullptr;
    const bool asked = std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    if (asked && !linked) fail("%s is not linked in", name.c_str());
    if (linked && (wanted.empty() || asked)) names.push_back(name);
  }
  const std::vector<Case> cases = all_cases();
  std::vector<double> worst(names.size(), 0.0);
  for (size_t k = 0; k < cases.size(); ++k) {
    check_reference(cases[k].options);
    unsigned seed = static_cast<unsigned>(k);
    auto batch = std::make_unique<Batch>(cases[k], seed);
    for (int tries = 0; !batch->well_posed() && tries < 50; ++tries) {
      batch = std::make_unique<Batch>(cases[k], seed += 1000);
    }
    if (!batch->well_posed()) fail("no well-posed batch for case %d", static_cast<int>(k));
    for (size_t i = 0; i < names.size(); ++i) {
      select_isa(names[i]);
      const Kernels& chosen = kernels(cases[k].dtype, false);
      worst[i] = std::max(worst[i], batch->check(chosen, false));
      const Side any{nullptr, 0, 2, 0, 0, cases[k].dtype, false, nullptr};
      if (chosen.layout(any, true, true).kind == Elements::split_context) batch->check(chosen, true);
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    std::printf("%s: %d cases, errors up to %.2f of the tolerance\n", names[i].c_str(), static_cast<int>(cases.size()),
                worst[i]);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
