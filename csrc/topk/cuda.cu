// Launches of the kernels that merge the best k.
#include "topk/cuda.cuh"

#include <algorithm>

#include "cuda/launch.cuh"
#include "topk/gpu.h"

namespace crossret {
namespace gpu {

namespace {

constexpr int kFirstRun = 4096;  // columns that a block of threads takes one segment after another

// Where a run of columns ends: rows that hold fewer than they may take the first few as they are, and then ever more
// against the k-th of those.
int run_end(const TopkCall& call, int first) {
  if (call.held == call.most) return call.n_columns;
  const int64_t end = first == 0 ? std::max(call.most - call.held, kFirstRun) : int64_t{8} * first;
  return static_cast<int>(std::min<int64_t>(end, call.n_columns));
}

// Warps of the first pass read neighbours.
void find_groups(const ScoreRun& run, const BestSoFar& best, Global<uint32_t> groups, const Stream& stream) {
  const int64_t segments = segments_of(run.end - run.first), rows = run.n_rows;
  if (run.row_stride < run.column_stride && rows > 1) {
    const int64_t blocks = (rows + kWarp - 1) / kWarp * segments;
    launch("groups_with_better", groups_with_better<true>, {blocks, 1, kTopkThreads}, stream, run, best, groups);
  } else {
    const int64_t blocks = (rows * segments + kTopkWarps - 1) / kTopkWarps;
    launch("groups_with_better", groups_with_better<false>, {blocks, 1, kTopkThreads}, stream, run, best, groups);
  }
}

}  // namespace

int64_t topk_scratch(const TopkCall& call) { return int64_t{call.n_rows} * segments_of(call.n_columns); }

void merge_topk(const TopkCall& call, const Stream& stream, void* scratch) {
  if (call.n_rows == 0 || call.n_columns == 0 || call.most == 0) return;
  const int64_t scores = (call.n_rows - 1) * call.row_stride + (call.n_columns - 1) * call.column_stride + 1;
  const int64_t places = int64_t{call.n_rows} * call.most;
  ScoreRun run{
      input<float>(stream, "scores", call.scores, scores), call.row_stride, call.column_stride, call.n_rows, 0, 0};
  BestSoFar best{updated<float>(stream, "values", call.values, places),
                 updated<int64_t>(stream, "indices", call.indices, places), call.held, call.most};
  const auto groups = output<uint32_t>(stream, "groups", scratch, topk_scratch(call));
  const auto bytes = static_cast<int64_t>(sizeof(Ranked)) * (call.most + kRoom);
  for (; run.end < call.n_columns; best.held = best.most) {
    run.first = run.end;
    run.end = run_end(call, run.first);
    if (best.held == best.most) find_groups(run, best, groups, stream);
    launch("merge_better", merge_better, {call.n_rows, 1, kTopkThreads, bytes}, stream, run, best, groups, call.start);
  }
}

}  // namespace gpu
}  // namespace crossret
