// The formulas of kernels.md §1, and their derivatives one after the other.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "cross_attention/problem.h"
#include "rows.h"

namespace crossret_test {

using namespace crossret;

struct Options {
  bool cross_attention, normalize;
  Norm norm;
  double slope;  // of the clip; 1 where there is none
  double lambda, lambda_lse;
  Pooling pooling;
  double threshold = -1;  // of min-max attention
};

struct Reference {
  double scores_scale = 1;  // what rounding of scores is relative to
  double logits = 1;        // the largest λn
  double least = 1;         // ‖attended‖ / Σ α ‖context‖, at least
  bool ambiguous = false;   // a maximum or a clip that rounding decides
};

inline double pooled(const Row& values, const Options& options, double lambda, double grad, Row& grads,
                     Reference& seen) {
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

inline Rows unit_rows(const Rows& rows, bool normalize) {
  Rows units = rows;
  for (Row& row : units) {
    const double norm = length_of(row);
    for (double& x : row) x /= normalize && norm > 0 ? norm : 1.0;
  }
  return units;
}

// n of one context's similarities to all queries, and ∂L/∂s from ∂L/∂n.
inline Row logits_of(const Row& s, const Options& options) {
  Row n = s;
  double sum = 0;
  for (double& x : n) x = x > 0 ? x : options.slope * x;
  if (options.norm == Norm::softmax) {
    for (double& x : n) sum += x = std::exp(x);
    for (double& x : n) x /= sum;
  } else if (options.norm != Norm::none && options.norm != Norm::minmax) {
    for (const double x : n) sum += options.norm == Norm::l2 ? x * x : std::fabs(x);
    for (double& x : n) x /= (options.norm == Norm::l2 ? std::sqrt(sum) : sum) + kEps;
  }
  return n;
}

inline Row logits_gradient(const Row& s, const Row& n, const Row& dn, const Options& options) {
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
    } else if (options.norm == Norm::none || options.norm == Norm::minmax) {
      ds[j] = dn[j];
    } else if (norm > 0) {  // n = x / (‖x‖ + eps)
      ds[j] = (dn[j] - along * (options.norm == Norm::l2 ? x[j] / norm : sign)) / (norm + kEps);
    }
    if (options.norm != Norm::softmax) ds[j] *= s[j] > 0 ? 1.0 : options.slope;
  }
  return ds;
}

// Weights of a query of min-max attention before they are divided by their sum; zeros where `kept` is not.
inline Row spread(const Row& s, double threshold, std::vector<bool>& kept, Reference& seen) {
  const auto [least, most] = std::minmax_element(s.begin(), s.end());
  const double width = *most - *least, from = threshold < 0 ? 1.0 / static_cast<double>(s.size()) : threshold;
  Row n(s.size(), 1.0);
  kept.assign(s.size(), true);
  seen.ambiguous = seen.ambiguous || (width > 0 && width < 1e-2 * std::max(std::fabs(*most), std::fabs(*least)));
  for (size_t c = 0; width > 0 && c < s.size(); ++c) {
    n[c] = (s[c] - *least) / width;
    seen.ambiguous = seen.ambiguous || (n[c] > 0 && n[c] < 1 && std::fabs(n[c] - from) < 1e-4);
    if (!(kept[c] = n[c] >= from)) n[c] = 0;
  }
  return n;
}

// ∂L/∂s from ∂L/∂n, through the least and the greatest, which ties share.
inline Row spread_gradient(const Row& s, const Row& n, const std::vector<bool>& kept, const Row& dn) {
  const auto [least, most] = std::minmax_element(s.begin(), s.end());
  const double width = *most - *least, least_ties = std::count(s.begin(), s.end(), *least),
               most_ties = std::count(s.begin(), s.end(), *most);
  double of_least = 0, of_most = 0;
  Row ds(s.size());
  if (width == 0) return ds;
  for (size_t c = 0; c < s.size(); ++c) {
    if (!kept[c]) continue;
    ds[c] = dn[c] / width;
    of_least += dn[c] * (n[c] - 1) / width;
    of_most -= dn[c] * n[c] / width;
  }
  for (size_t c = 0; c < s.size(); ++c) {
    ds[c] += (s[c] == *least ? of_least / least_ties : 0) + (s[c] == *most ? of_most / most_ties : 0);
  }
  return ds;
}

// What else is made of a pair of cross attention, by queries, and ∂L/∂ it.
struct Attended {
  Rows vectors, weights;
  Row relevances;
};

// One pair's score; adds `grad` times its gradients to those of both sides' rows, and those through what else is made
// of it, which becomes that, where there is any.
inline double cross_attention(const Rows& contexts, const Rows& queries, const Options& options, double grad,
                              Rows& dcontexts, Rows& dqueries, Reference& seen, Attended* more = nullptr) {
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
    for (const double x : options.norm == Norm::minmax ? Row() : n[c])
      seen.logits = std::max(seen.logits, std::fabs(options.lambda * x));
  }
  Rows attended;
  Row relevance, grads, sums;
  const auto of_query = [](const Rows& rows, size_t q) {
    Row column;
    for (const Row& row : rows) column.push_back(row[q]);
    return column;
  };
  std::vector<std::vector<bool>> kept(columns);
  for (size_t q = 0; q < columns; ++q) {
    double sum = 0, most = -INFINITY, longest = 0;
    if (options.norm == Norm::minmax) {
      const Row p = spread(of_query(s, q), options.threshold, kept[q], seen);
      for (size_t c = 0; c < rows; ++c) sum += alpha[c][q] = p[c];
    } else {
      for (size_t c = 0; c < rows; ++c) most = std::max(most, options.lambda * n[c][q]);
      for (size_t c = 0; c < rows; ++c) sum += alpha[c][q] = std::exp(options.lambda * n[c][q] - most);
    }
    sums.push_back(sum);
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
  for (size_t q = 0; more != nullptr && q < columns; ++q) grads[q] += more->relevances[q];
  for (size_t q = 0; q < columns; ++q) {
    const Row &a = attended[q], &query = queries[q];
    const double length = length_of(a) * length_of(query), r = relevance[q], g = grads[q];
    if (length == 0 && more == nullptr) continue;
    Row da(dim);
    if (length > 0) {
      add(da, g / std::max(length, kEps), query);
      add(dqueries[q], g / std::max(length, kEps), a);
    }
    if (length > kEps) {
      add(da, -g * r / dot(a, a), a);
      add(dqueries[q], -g * r / dot(query, query), query);
    }
    if (more != nullptr) add(da, 1, more->vectors[q]);
    double mean = 0;
    Row dalpha(rows);
    for (size_t c = 0; c < rows; ++c) {
      dalpha[c] = dot(da, contexts[c]) + (more == nullptr ? 0.0 : more->weights[q][c]);
      mean += alpha[c][q] * dalpha[c];
    }
    for (size_t c = 0; c < rows; ++c) {
      dn[c][q] = options.lambda * alpha[c][q] * (dalpha[c] - mean);
      add(dcontexts[c], alpha[c][q], da);
    }
    if (options.norm == Norm::minmax) {
      Row p = of_query(alpha, q), dp(rows);
      for (size_t c = 0; c < rows; ++c) {
        p[c] *= sums[q];
        dp[c] = (dalpha[c] - mean) / sums[q];
      }
      const Row ds = spread_gradient(of_query(s, q), p, kept[q], dp);
      for (size_t c = 0; c < rows; ++c) dn[c][q] = ds[c];
    }
  }
  for (size_t c = 0; c < rows; ++c) {
    const Row ds = logits_gradient(s[c], n[c], dn[c], options);
    for (size_t q = 0; q < columns; ++q) {
      add(dcontexts[c], ds[q], queries[q]);
      add(dqueries[q], ds[q], contexts[c]);
    }
  }
  for (size_t q = 0; more != nullptr && q < columns; ++q) {
    more->vectors[q] = attended[q];
    more->relevances[q] = relevance[q];
    for (size_t c = 0; c < rows; ++c) more->weights[q][c] = alpha[c][q];
  }
  return score;
}

// The same of Sum-Max; `best` gets the context of every query.
inline double maxsim(const Rows& contexts, const Rows& queries, const Options& options, double grad, Rows& dcontexts,
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
inline Row through_norm(const Row& row, const Row& unit, Row grad, bool normalize) {
  if (!normalize) return grad;
  const double norm = length_of(row);
  if (norm == 0) return Row(row.size());
  add(grad, -dot(unit, grad), unit);
  for (double& g : grad) g /= norm;
  return grad;
}

// Is the reference's gradient that of its score? Central differences say so.
inline void check_reference(const Options& options) {
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
  Attended given{Rows(4, Row(5)), Rows(4, Row(5)), Row(4)};  // four queries, five contexts
  for (Rows* rows : {&given.vectors, &given.weights}) {
    for (Row& row : *rows) {
      for (double& x : row) x = uniform(random);
    }
  }
  for (double& x : given.relevances) x = uniform(random);
  const auto score = [&](double grad, Rows& dcontexts, Rows& dqueries) {
    const Rows contexts = unit_rows(sides[0], options.normalize), queries = unit_rows(sides[1], options.normalize);
    dcontexts.assign(contexts.size(), Row(5));
    dqueries.assign(queries.size(), Row(5));
    Attended more = given;
    double result = options.cross_attention
                        ? cross_attention(contexts, queries, options, grad, dcontexts, dqueries, seen, &more)
                        : maxsim(contexts, queries, options, grad, dcontexts, dqueries, best, seen);
    for (size_t q = 0; options.cross_attention && q < queries.size(); ++q) {
      result += dot(more.vectors[q], given.vectors[q]) + dot(more.weights[q], given.weights[q]) +
                more.relevances[q] * given.relevances[q];
    }
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

}  // namespace crossret_test
