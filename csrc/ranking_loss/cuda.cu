// Launches of the ranking losses' kernels.
#include "ranking_loss/cuda.cuh"

#include <type_traits>

#include "cuda/dtypes.cuh"
#include "cuda/launch.cuh"
#include "ranking_loss/gpu.h"

namespace crossret {
namespace gpu {

namespace {

// Negatives and, of softmax, the factors of a `Slope`.
template <Negatives negatives, int factors = 0>
struct Kind {};

// run(kind) of the call's negatives. Orders that are often asked for have kernels of their own.
template <class Run>
void by_negatives(const LossCall& call, const Run& run) {
  if (call.negatives == Negatives::hardest) return run(Kind<Negatives::hardest>{});
  if (call.negatives == Negatives::sum) return run(Kind<Negatives::sum>{});
  if (call.order == 2) return run(Kind<Negatives::softmax, 1>{});
  if (call.order == 4) return run(Kind<Negatives::softmax, 3>{});
  if (call.order == 8) return run(Kind<Negatives::softmax, 7>{});
  run(Kind<Negatives::softmax>{});
}

// run(element, whether there are ids) of the call's scores.
template <class Run>
void by_scores(const LossCall& call, const Run& run) {
  by_dtype(call.dtype, [&](auto element) {
    if (call.image_ids != nullptr || call.caption_ids != nullptr) {
      run(element, std::true_type{});
    } else {
      run(element, std::false_type{});
    }
  });
}

LossPlan plan_of(const LossCall& call, const Stream& stream) {
  return plan_loss(call.n_rows, call.n_columns, stream.multiprocessors);
}

// Tiles narrower than the widest are few: two a multiprocessor at most, and as many again.
static_assert(plan_loss(1 << 24, 1 << 24, 1).column_tiles <= kMostY, "the grid of the widest scores");

// p − 1. From 2⁴⁰ on, powers of float32 below 1 are 0 and their order does not show.
float slope_of(const LossCall& call) { return static_cast<float>(call.order - 1 < 0x1p40 ? call.order - 1 : 0x1p40); }

Grid grid_of(const LossPlan& plan) { return {plan.row_tiles, plan.column_tiles, plan.threads()}; }

template <class T>
LossProblem<T> problem_of(const LossCall& call, const Stream& stream, const LossPlan& plan) {
  LossProblem<T> problem{};
  const int64_t elements = (call.n_rows - 1) * call.row_stride + call.n_columns;
  problem.scores = input<T>(stream, "scores", call.scores, elements);
  problem.row_stride = call.row_stride;
  problem.n_rows = call.n_rows, problem.n_columns = call.n_columns, problem.offset = call.offset;
  problem.tile_rows = plan.rows;
  problem.margin = call.margin;
  problem.slope = slope_of(call);
  problem.aligned = in_fours(static_cast<const T*>(call.scores), call.row_stride);
  const int64_t* const ids[2] = {call.image_ids, call.caption_ids};
  for (int kind = 0; kind < 2; ++kind) {
    const int64_t* const given = ids[kind] != nullptr ? ids[kind] : ids[1 - kind];
    if (given != nullptr) problem.ids[kind] = input<int64_t>(stream, "ids", given, call.n_columns);
  }
  return problem;
}

// Numbers of the statistics of one row or column.
int numbers(Negatives negatives) { return negatives == Negatives::softmax ? 3 : 2; }

template <Negatives negatives, int factors>
void measure(Kind<negatives, factors>, const LossCall& call, const Stream& stream, const LossOutput& made,
             void* scratch) {
  static_assert(sizeof(Statistic<negatives>) % sizeof(float) == 0, "counted in numbers");
  const LossPlan plan = plan_of(call, stream);
  auto* const parts = static_cast<Statistic<negatives>*>(scratch);
  const auto rows = output<Statistic<negatives>>(stream, "statistics of rows", parts, plan.row_parts);
  const auto columns =
      output<Statistic<negatives>>(stream, "statistics of columns", parts + plan.row_parts, plan.column_parts);
  by_scores(call, [&](auto element, auto with_ids) {
    using T = decltype(element);
    launch("hinge_statistics", hinge_statistics<T, negatives, factors, with_ids>, grid_of(plan), stream,
           problem_of<T>(call, stream, plan), rows, columns);
  });
  launch("losses_of_statistics", losses_of_statistics<negatives>,
         {(call.n_rows + kWarp - 1) / kWarp, 1, kFinishThreads}, stream, rows, columns, made, call.n_rows,
         plan.column_tiles, plan.row_tiles, Slope{0, slope_of(call)}, static_cast<float>(call.order));
}

template <Negatives negatives, int factors>
void differentiate(Kind<negatives, factors>, const LossCall& call, const Stream& stream, const LossPlan& plan,
                   const LossGradient& given, void* out) {
  by_scores(call, [&](auto element, auto with_ids) {
    using T = decltype(element);
    constexpr bool reads_ids = decltype(with_ids)::value && negatives != Negatives::hardest;
    LossProblem<T> problem = problem_of<T>(call, stream, plan);
    problem.aligned = problem.aligned && in_fours(static_cast<T*>(out), call.n_columns);
    launch("score_gradients", score_gradients<T, negatives, factors, reads_ids>, grid_of(plan), stream, problem, given,
           output<T>(stream, "gradient", out, int64_t{call.n_rows} * call.n_columns));
  });
}

}  // namespace

int64_t loss_scratch(const LossCall& call, const Stream& stream) {
  const LossPlan plan = plan_of(call, stream);
  return (plan.row_parts + plan.column_parts) * numbers(call.negatives) +
         (call.reduction != Reduction::none ? call.n_rows : 0);
}

void measure_ranking_loss(const LossCall& call, const Stream& stream, float* loss, float* statistics, void* scratch) {
  const int64_t n = call.n_rows;
  const bool reduced = call.reduction != Reduction::none;
  float* const losses = reduced ? static_cast<float*>(scratch) + loss_scratch(call, stream) - n : loss;
  const LossOutput made{output<float>(stream, "losses", losses, n),
                        output<float>(stream, "statistics", statistics, 4 * n)};
  if (n > 0) by_negatives(call, [&](auto negatives) { measure(negatives, call, stream, made, scratch); });
  if (!reduced) return;
  launch("sum_losses", sum_losses, {1, 1, kSumThreads}, stream, made.losses, output<float>(stream, "loss", loss, 1),
         call.n_rows, call.reduction == Reduction::mean);
}

void differentiate_ranking_loss(const LossCall& call, const Stream& stream, const float* grads, int64_t stride,
                                const float* statistics, void* out) {
  const int64_t n = call.n_rows;
  if (n == 0) return;
  const LossPlan plan = plan_of(call, stream);
  const LossGradient given{input<float>(stream, "grads", grads, (n - 1) * stride + 1), stride,
                           call.reduction == Reduction::mean ? 1.0f / static_cast<float>(n) : 1.0f,
                           input<float>(stream, "statistics", statistics, 4 * n)};
  by_negatives(call, [&](auto kind) { differentiate(kind, call, stream, plan, given, out); });
}

}  // namespace gpu
}  // namespace crossret
