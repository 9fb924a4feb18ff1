// Launches of Sum-Max's gradients and of the norms of rows.
#include "maxsim/cuda_sides.cuh"
#include "maxsim/gradients.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

void invert_norms(const SideCall& side, const Stream& stream, float* scales) {
  by_dtype(side.dtype, [&](auto element) {
    using T = decltype(element);
    launch("inverse_norms", inverse_norms<T>, {parts_of(side.n_rows, kNormRows), 1, kGradientThreads}, stream,
           rows_of<T>(side, stream), output<float>(stream, "scales", scales, side.n_rows),
           static_cast<int>(side.n_rows));
  });
}

int64_t gradient_scratch(const GradientCall& call) {
  return call.n_runs > 1 ? call.n_runs * call.own.n_rows * (call.own.dim + 1) : 0;
}

void add_gradients(const GradientCall& call, const Stream& stream, float* scratch) {
  by_dtype(call.own.dtype, [&](auto element) {
    using T = decltype(element);
    GradientProblem<T> problem{};
    problem.own = rows_of<T>(call.own, stream), problem.others = rows_of<T>(call.others, stream);
    problem.grads = input<float>(stream, "grads", call.grads, call.n_grads);
    problem.indices = input<int>(stream, "indices", call.indices, call.n_found);
    if (call.normalize) problem.maxima = input<float>(stream, "maxima", call.maxima, call.n_found);
    problem.query_slots = static_cast<int>(call.query_slots);
    if (call.query_slots == 0) {
      const int64_t n_items = call.of_contexts ? call.others.n_items : call.own.n_items;
      problem.starts = input<int>(stream, "starts of queries", call.starts, n_items);
      problem.holders = input<int>(stream, "items of queries", call.holders, call.n_queries);
    }
    problem.listed = call.listed.pairs != nullptr;
    if (problem.listed) {
      problem.pairs = input<int64_t>(stream, "pairs", call.listed.pairs, 2 * call.listed.count);
      problem.order = input<int64_t>(stream, "order", call.listed.order, call.listed.count);
      problem.begins = input<int64_t>(stream, "begins", call.begins, call.own.n_items + 1);
    }
    problem.out = updated<T>(stream, "gradient", call.out, call.own.n_rows * call.own.dim);
    if (call.n_runs > 1) {
      const int64_t rows = call.n_runs * call.own.n_rows;
      problem.runs = output<float>(stream, "runs", scratch, rows * call.own.dim);
      problem.alongs = output<float>(stream, "sums along rows", scratch + rows * call.own.dim, rows);
    }
    problem.grad_context = call.grad_context, problem.grad_query = call.grad_query;
    problem.index_context = call.index_context;
    problem.first_own = static_cast<int>(call.first_own), problem.item_blocks = static_cast<int>(call.item_blocks);
    problem.block_rows = static_cast<int>(call.block_rows);
    problem.n_runs = static_cast<int>(call.n_runs);
    problem.first_item = static_cast<int>(call.first_item), problem.n_items = static_cast<int>(call.n_items);
    problem.n_queries = static_cast<int>(call.n_queries);
    problem.context_column = call.listed.context_column;
    problem.pieces = static_cast<int>(parts_of(call.longest, kWarp));
    problem.average = call.average, problem.normalize = call.normalize, problem.add = call.add;
    problem.fours = problem.own.whole && problem.others.whole;
    const int64_t columns = parts_of(call.own.dim, kGradientColumns);
    const Grid grid{call.n_blocks, columns * call.n_runs, kGradientThreads};
    if (call.of_contexts) {
      launch("context_gradients", context_gradients<T>, grid, stream, problem);
    } else {
      launch("query_gradients", query_gradients<T>, grid, stream, problem);
    }
    if (call.n_runs > 1) {
      launch("sum_of_runs", sum_of_runs<T>, {call.n_blocks, columns, kGradientThreads}, stream, problem);
    }
  });
}

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
