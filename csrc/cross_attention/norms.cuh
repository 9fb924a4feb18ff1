// Norms of a tile's similarities in CUDA: sums over the queries of an item, a context at a time, become factors of
// logits (SCAN Eqs. 1 and 9; kernels.md §1).
#pragma once
#include "cross_attention/job.cuh"

namespace crossret {
namespace gpu {

// A `usual` problem's options are known when the kernel is compiled: an L2 norm, a clip of slope 0 to 1, no shift. For
// gradients the norms are kept beside the factors.
template <class Shape, class Arithmetic, bool gradients, bool usual>
class NormedTile : public JobTile<Shape, Arithmetic> {
  using Base = JobTile<Shape, Arithmetic>;

 public:
  using Base::floats, Base::ints;

  CROSSRET_DEVICE explicit NormedTile(const AttentionProblem& problem) : Base(problem) {}

  CROSSRET_DEVICE Norm norm() const { return usual ? Norm::l2 : options_.norm; }
  CROSSRET_DEVICE bool shifted() const { return !usual && options_.shifted; }
  CROSSRET_DEVICE float clip(float s) const {
    return usual ? fmaxf(s, options_.slope * s) : clipped(s, options_.slope);
  }

  // Calls take(outer, inner) for every `apart`-th of outer × inner units, the inner ones first, from `first` on.
  template <class Take>
  CROSSRET_DEVICE static void each_unit(int n_outer, int n_inner, int first, int apart, const Take& take) {
    if (n_outer == 0 || n_inner == 0) return;
    for (int outer = 0, inner = first;; inner += apart) {
      for (; inner >= n_inner; inner -= n_inner) {
        if (++outer >= n_outer) return;
      }
      take(outer, inner);
    }
  }
  // Calls take(item, column) for the thread's share of every item of queries and two contexts from an even column on.
  template <class Take>
  CROSSRET_DEVICE static void each_two(const Job& job, const Take& take) {
    each_unit(job.n_queries, (job.n_columns + 1) / 2, thread_index(), Shape::threads,
              [&](int item, int two) { take(item, 2 * two); });
  }
  CROSSRET_DEVICE static Shared<Two<float>> twos(int byte) { return shared_at<Two<float>>(byte); }

  // Adds the piece from row `begin` on to the norms' sums of every item of queries and context, in `factors`.
  CROSSRET_DEVICE void measure(const Job& job, int begin) const {
    each_two(job, [&](int item, int column) {
      const int at = (item * at_.pitch + column) / 2;
      const int first = ints(at_.query_begins)[item] - begin, last = ints(at_.query_begins)[item + 1] - begin;
      const int from = first > 0 ? first : 0, to = last < Shape::rows ? last : Shape::rows;
      const Shared<Two<float>> cells = twos(at_.similarities) + column / 2;
      const auto each_row = [&](const auto& add) {
        for (int row = from; row < to; ++row) {
          const Two<float> s = cells[row * (at_.pitch / 2)];
          add(0, clip(s.at[0])), add(1, clip(s.at[1]));
        }
      };
      Two<float> sums{};
      if (norm() == Norm::softmax) {
        Two<float> before{{-INFINITY, -INFINITY}};
        if (begin > 0) before = twos(at_.greatest)[at];
        Two<float> greatest = before;
        each_row([&](int e, float x) { greatest.at[e] = fmaxf(greatest.at[e], x); });
        each_row([&](int e, float x) { sums.at[e] += approx_exp2((x - greatest.at[e]) * kLog2E); });
        if (begin > 0) {
          const Two<float> so_far = twos(at_.factors)[at];
          for (int e = 0; e < 2; ++e) {
            if (before.at[e] > -INFINITY) {
              sums.at[e] += so_far.at[e] * approx_exp2((before.at[e] - greatest.at[e]) * kLog2E);
            }
          }
        }
        twos(at_.greatest)[at] = greatest;
      } else if (norm() != Norm::none) {
        each_row([&](int e, float x) { sums.at[e] = add_norm_term(norm(), x, sums.at[e]); });
        if (begin > 0) {
          const Two<float> so_far = twos(at_.factors)[at];
          for (int e = 0; e < 2; ++e) sums.at[e] += so_far.at[e];
        }
      }
      twos(at_.factors)[at] = sums;
    });
  }

  // Factors of logits in place of the norms' sums, by the same threads.
  CROSSRET_DEVICE void finish_factors(const Job& job) const {
    each_two(job, [&](int item, int column) {
      const int at = (item * at_.pitch + column) / 2;
      Two<float> found = twos(at_.factors)[at];
      for (int e = 0; e < 2; ++e) found.at[e] = finish_norm(norm(), found.at[e]);
      if (gradients) twos(at_.norms)[at] = found;
      for (int e = 0; e < 2; ++e) found.at[e] = logit_factor(norm(), options_.lambda_softmax, found.at[e]);
      twos(at_.factors)[at] = found;
    });
    this->sync();
  }

 protected:
  using Base::problem_, Base::options_, Base::at_;
};

}  // namespace gpu
}  // namespace crossret
