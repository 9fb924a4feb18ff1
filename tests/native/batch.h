// A batch, what its results should be, and how far from that they may be.
#pragma once
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cross_attention/cpu.h"
#include "dispatch.h"
#include "features.h"
#include "formulas.h"
#include "maxsim/cpu.h"

namespace crossret_test {

using namespace crossret;

// Threads that the kernels run on.
inline int64_t test_threads = 1;

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
    attends_ = what_.listed_pairs && what_.options.cross_attention && random_() % 3 > 0;
    const int64_t queries = this->queries().width(), contexts = this->contexts().width();
    const int64_t sizes[] = {queries * shape.dim, queries * contexts, queries};
    for (int k = 0; attends_ && k < 3; ++k) {
      for (int64_t i = 0; i < count() * sizes[k]; ++i) given_[k].push_back(static_cast<float>(uniform(random_)));
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
    if (attends_) check_attended(unit * seen_.scores_scale);
    if (split) return worst_;  // its products decide maxima otherwise
    if (!what_.options.cross_attention) check_argmax(kernels, scores);
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
        more_.push_back({});
        continue;
      }
      more_.push_back(given_of(k));
      scores_.push_back(
          options.cross_attention
              ? cross_attention(units[0][c], units[1][q], options, grads_[k], grads[0][c], grads[1][q], seen_,
                                attends_ ? &more_.back() : nullptr)
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

  // Where the numbers of a pair's query are, and of one of its weights.
  size_t query_at(int64_t pair, int64_t q) const {
    return pair * queries().width() + queries().place(query_of(pair), q);
  }
  size_t weight_at(int64_t pair, int64_t q, int64_t c) const {
    return query_at(pair, q) * contexts().width() + contexts().place(context_of(pair), c);
  }

  // What is given of a pair, as the formulas take it.
  Attended given_of(int64_t pair) const {
    const int64_t dim = what_.shape.dim, rows = contexts().side().length(context_of(pair));
    Attended given;
    for (int64_t q = 0; attends_ && q < queries().side().length(query_of(pair)); ++q) {
      const float* const vector = given_[0].data() + query_at(pair, q) * dim;
      given.vectors.emplace_back(vector, vector + dim);
      given.weights.emplace_back(rows);
      for (int64_t c = 0; c < rows; ++c) given.weights[q][c] = given_[1][weight_at(pair, q, c)];
      given.relevances.push_back(given_[2][query_at(pair, q)]);
    }
    return given;
  }

  // What the forward pass has made, zeros where there is no row.
  void check_attended(double unit) {
    const int64_t dim = what_.shape.dim;
    double largest = 1;
    for (const Attended& more : more_) {
      for (const Row& row : more.vectors) {
        for (const double x : row) largest = std::max(largest, std::fabs(x));
      }
    }
    std::vector<float> rest[] = {made_[0], made_[1], made_[2]};
    const auto take = [&](int which, size_t at, double expected, double bound, const char* what, int64_t k) {
      compare(made_[which][at], expected, bound, what, k, 0, 0);
      rest[which][at] = 0;
    };
    for (int64_t k = 0; k < count(); ++k) {
      const Attended& more = more_[k];
      for (size_t q = 0; q < more.vectors.size(); ++q) {
        take(2, query_at(k, q), more.relevances[q], unit / seen_.least, "a relevance of pair", k);
        for (int64_t d = 0; d < dim; ++d) {
          take(0, query_at(k, q) * dim + d, more.vectors[q][d], unit * largest, "an attended vector of pair", k);
        }
        for (size_t c = 0; c < more.weights[q].size(); ++c) {
          take(1, weight_at(k, q, c), more.weights[q][c], unit, "a weight of pair", k);
        }
      }
    }
    for (const std::vector<float>& numbers : rest) {
      if (std::any_of(numbers.begin(), numbers.end(), [](float x) { return x != 0; })) {
        fail("%s: attention of what is not there", name_.c_str());
      }
    }
  }

  template <class Float>
  AttentionOf<Float> attention_at(Float* attended, Float* weights, Float* relevances) const {
    return {queries().width(), contexts().width(), attended, weights, relevances};
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
    call.options.threshold = static_cast<float>(o.threshold);
    return call;
  }

  MaxSimCall maxsim_call(const Kernels& kernels, bool split) const {
    MaxSimCall call{};
    lay_out(call, kernels, split);
    call.options = {what_.options.pooling, 1.0f, static_cast<float>(what_.options.lambda_lse), 0, 0.0f};
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
      for (int k = 0; k < 3; ++k) made_[k].assign(given_[k].size(), 0.0f);
      if (attends_) call.made = attention_at(made_[0].data(), made_[1].data(), made_[2].data());
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
      CrossAttentionCall call = cross_attention_call(kernels, false);
      if (attends_) call.given = attention_at<const float>(given_[0].data(), given_[1].data(), given_[2].data());
      differentiate_cross_attention(kernels, call, listed(), grads, of_contexts, of_queries);
    } else {
      differentiate_maxsim(kernels, maxsim_call(kernels, false), listed(), grads, of_contexts, of_queries);
    }
  }

  void check_argmax(const Kernels& kernels, const std::vector<float>& scores) {
    const int64_t width = queries().width();
    std::vector<int64_t> found(count() * width, -1);
    MaxSimCall call = maxsim_call(kernels, false);
    std::vector<float> beside(count(), static_cast<float>(kEmptyScore));
    call.scores = beside.data();
    call.argmax = found.data();
    call.argmax_row = width;
    score_maxsim(kernels, call, listed(), context_stride(), query_stride());
    if (std::memcmp(beside.data(), scores.data(), scores.size() * 4) != 0) {
      fail("%s: scores beside their contexts are others", name_.c_str());
    }
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
  bool attends_ = false;
  std::vector<float> given_[3], made_[3];  // attended vectors, weights and relevances of listed pairs
  std::vector<Attended> more_;
  Reference seen_;
  std::vector<double> scores_;
  std::vector<std::vector<int64_t>> best_;  // of Sum-Max, of every pair's queries
  std::vector<Rows> gradients_[2];
  double worst_ = 0;
  std::string name_;
};

}  // namespace crossret_test
