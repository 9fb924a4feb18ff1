#include "maxsim/cpu.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "pairs/parallel.h"

namespace crossret {

CROSSRET_BY_SET(MaxSimKernels, maxsim_kernels)

namespace {

void lay_out(MaxSimCall& call) {
  const int64_t cache = second_cache_floats();
  const int64_t panel_floats = cache * 9 / 16;
  const int64_t part_floats = cache / 4;         // rows that stay in the cache while panels pass over them
  const int64_t copied_floats = cache * 3 / 32;  // copied rows, whose originals take cache too
  call.factors = call.dots = false;              // a score's bits do not depend on the batch
  call.limits = plan_limits(call.contexts, call.queries, call.query_layout);
  Limits& limits = call.limits;
  const int64_t fitting = panel_floats / call.query_layout.depth / kPad * kPad;
  limits.columns = std::min(limits.columns, std::clamp<int64_t>(fitting, kPad, 4096));
  limits.filled_columns = std::min(limits.filled_columns, limits.columns);
  constexpr int64_t tile = 12;  // rows of the highest tile
  const bool copied = call.context_layout.copied || call.contexts.masked || call.contexts.norms != nullptr ||
                      (call.context_layout.kind == Elements::floats && call.contexts.dtype != Dtype::float32);
  const int64_t rows = (copied ? copied_floats : part_floats) / call.context_layout.ld / tile * tile;
  limits.rows = std::clamp<int64_t>(rows, tile, std::max(call.contexts.longest, tile));
}

Steps steps_of(const Kernels& kernels, const MaxSimCall& call, const MaxSimGradients* gradients) {
  Steps steps{};
  Workspace count, preparing;
  count.floats(2 * call.queries.longest);
  kernels.prepare_memory(call, preparing);
  steps.bytes = std::max(count.bytes(), preparing.bytes());
  steps.numbers = gradients != nullptr || call.argmax != nullptr || call.kept != nullptr;
  steps.pack = [&](const Rectangle& pairs, const QueryBlock& block, Workspace& memory) {
    kernels.pack_queries(call, pairs, block, memory);
  };
  steps.prepare = [&](const Rectangle& pairs, const ContextGroup& group, Workspace&) {
    if (!group.once) kernels.copy_contexts(call, pairs, group);  // else `best` copies strips
  };
  steps.run = [&](const Rectangle& pairs, const ContextGroup& group, const QueryBlock& block, const Partial& best,
                  Workspace&) { maxsim_kernels_of(kernels).best(call, best, pairs, group, block); };
  steps.finish = [&, gradients](const Rectangle& pairs, const ContextGroup* parts, int64_t n_parts,
                                const QueryBlock& block, const Partial& best, Workspace& memory) {
    maxsim_kernels_of(kernels).finish(call, gradients, best, pairs, parts, n_parts, block.first,
                                      block.first + block.count, block.column, memory.floats(2 * call.queries.longest));
  };
  return steps;
}

void run_chunk(const Kernels& kernels, const MaxSimCall& call, const BackwardProblem& problem,
               const BackwardChunk& chunk) {
  std::vector<int64_t> offsets(chunk.pairs.size());
  int64_t queries = 0;
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    offsets[k] = queries;
    queries += call.queries.length(chunk.pairs.queries[k]);
  }
  std::vector<int32_t> best(queries);
  std::vector<float> coefs(queries);
  const MaxSimGradients kept{chunk.grads.data(), best.data(), coefs.data(), offsets.data()};
  if (call.kept == nullptr) {
    run_pairs(problem, chunk, steps_of(kernels, call, &kept));
  } else {  // kept by the forward pass; all queries of a pair have one gradient
    for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
      const int64_t query = chunk.pairs.queries[k], n = call.queries.length(query);
      std::copy_n(call.kept_of(chunk.pairs.contexts[k], query), n, best.begin() + offsets[k]);
      const float each = call.pooling == Pooling::avg ? chunk.grads[k] / static_cast<float>(n) : chunk.grads[k];
      std::fill_n(coefs.begin() + offsets[k], n, each);
    }
  }
  Workspace slice;
  slice.floats(std::max(call.contexts.longest, call.queries.longest) * kSlice);
  run_feature_gradients(
      problem, chunk, slice.bytes(),
      [&](bool of_contexts, const ItemPairs& jobs, const JobGroup& group, int64_t column, Workspace& memory) {
        maxsim_kernels_of(kernels).feature_gradients(call, kept, of_contexts, jobs, group, column, memory);
      });
}

}  // namespace

void score_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                  int64_t query_stride) {
  lay_out(call);
  // Listed pairs are taken by query item, which is packed once.
  walk_batch(call, pairs, context_stride, query_stride, Owner::query, steps_of(kernels, call, nullptr));
}

void score_maxsim_both(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                       int64_t query_stride) {
  call.factors = call.dots = false;
  call.limits = plan_limits(call.contexts, call.queries, call.query_layout);
  Workspace count, preparing;
  maxsim_kernels_of(kernels).both_memory(call, count);
  kernels.prepare_memory(call, preparing);
  Steps steps{};
  steps.bytes = std::max(count.bytes(), preparing.bytes());
  steps.whole_items = true;
  steps.pack = [&](const Rectangle& pairs, const QueryBlock& block, Workspace& memory) {
    kernels.pack_queries(call, pairs, block, memory);
  };
  steps.prepare = [&](const Rectangle& pairs, const ContextGroup& group, Workspace&) {
    kernels.copy_contexts(call, pairs, group);
  };
  steps.run = [&](const Rectangle& pairs, const ContextGroup& group, const QueryBlock& block, const Partial&,
                  Workspace& memory) { maxsim_kernels_of(kernels).both(call, pairs, group, block, memory); };
  walk_batch(call, pairs, context_stride, query_stride, Owner::context, steps);
}

void differentiate_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, const ScoreGradients& grads,
                          SideGradient& context_gradient, SideGradient& query_gradient) {
  lay_out(call);
  const auto pair_floats = [&](int64_t, int64_t query) { return 2 * call.queries.length(query); };
  const auto context_floats = [](int64_t) { return 0; };
  const BackwardProblem problem{call, pairs, grads, context_gradient, query_gradient, pair_floats, context_floats};
  run_backward(problem, [&](const BackwardChunk& chunk) { run_chunk(kernels, call, problem, chunk); });
}

}  // namespace crossret
