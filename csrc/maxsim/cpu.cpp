#include "maxsim/cpu.h"

#include <algorithm>
#include <cmath>
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
  count.floats(3 * call.queries.longest);
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
                                      block.first + block.count, block.column, memory.floats(3 * call.queries.longest));
  };
  return steps;
}

// Memory for the best rows of one side of a chunk's pairs.
class BestRowsMemory {
 public:
  BestRowsMemory(const RaggedView& side, const std::vector<int64_t>& items) : offsets_(items.size()) {
    int64_t rows = 0;
    for (size_t k = 0; k < items.size(); ++k) {
      offsets_[k] = rows;
      rows += side.length(items[k]);
    }
    best_.resize(rows);
    coefs_.resize(rows);
  }

  BestRows of(const std::vector<float>& grads) { return {grads.data(), best_.data(), coefs_.data(), offsets_.data()}; }

 private:
  std::vector<int64_t> offsets_;
  std::vector<int32_t> best_;
  std::vector<float> coefs_;
};

void add_feature_gradients(const Kernels& kernels, const MaxSimCall& call, const BackwardProblem& problem,
                           const BackwardChunk& chunk, const MaxSimGradients& kept) {
  Workspace slice;
  slice.floats(std::max(call.contexts.longest, call.queries.longest) * kSlice);
  run_feature_gradients(
      problem, chunk, slice.bytes(),
      [&](bool of_contexts, const ItemPairs& jobs, const JobGroup& group, int64_t column, Workspace& memory) {
        maxsim_kernels_of(kernels).feature_gradients(call, kept, of_contexts, jobs, group, column, memory);
      });
}

void run_chunk(const Kernels& kernels, const MaxSimCall& call, const BackwardProblem& problem,
               const BackwardChunk& chunk) {
  BestRowsMemory memory(call.queries, chunk.pairs.queries);
  const MaxSimGradients kept{memory.of(chunk.grads), {}, nullptr, nullptr};
  if (call.kept == nullptr) {
    run_pairs(problem, chunk, steps_of(kernels, call, &kept));
  } else {  // kept by the forward pass; all queries of a pair have one gradient
    const BestRows& own = kept.queries;
    for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
      const int64_t query = chunk.pairs.queries[k], n = call.queries.length(query);
      const bool averages = call.options.pooling == Pooling::avg;
      std::copy_n(call.kept_of(chunk.pairs.contexts[k], query), n, own.best + own.offsets[k]);
      std::fill_n(own.coefs + own.offsets[k], n, averages ? chunk.grads[k] / static_cast<float>(n) : chunk.grads[k]);
    }
  }
  add_feature_gradients(kernels, call, problem, chunk, kept);
}

int64_t soft_pair_floats(const MaxSimCall& call, int64_t context, int64_t query) {
  return call.contexts.length(context) * gram_row(call.queries.length(query));
}

void lay_out_whole_items(MaxSimCall& call) {
  call.factors = call.dots = false;
  call.limits = plan_limits(call.contexts, call.queries, call.query_layout);
}

// Without gradients scores, else best rows of either side.
Steps steps_of_whole_items(const Kernels& kernels, const MaxSimCall& call, const MaxSimGradients* gradients) {
  Workspace count, preparing;
  maxsim_kernels_of(kernels).whole_items_memory(call, count);
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
  steps.run = [&, gradients](const Rectangle& pairs, const ContextGroup& group, const QueryBlock& block, const Partial&,
                             Workspace& memory) {
    maxsim_kernels_of(kernels).whole_items(call, gradients, pairs, group, block, memory);
  };
  return steps;
}

// Soft maxima of a chunk, whose gradients go through all similarities.
void run_soft_chunk(const Kernels& kernels, const MaxSimCall& call, const BackwardProblem& problem,
                    const BackwardChunk& chunk, const float* grads, const float* turned_grads) {
  std::vector<int64_t> offsets(chunk.pairs.size());
  int64_t similarities = 0;
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    offsets[k] = similarities;
    similarities += soft_pair_floats(call, chunk.pairs.contexts[k], chunk.pairs.queries[k]);
  }
  Workspace count;
  count.floats(similarities);
  Workspace memory = chunk.keep(count.bytes());
  const MaxSimGradients kept{{grads, nullptr, nullptr, nullptr},
                             {turned_grads, nullptr, nullptr, nullptr},
                             memory.floats(similarities),
                             offsets.data()};
  run_pairs(problem, chunk, steps_of_whole_items(kernels, call, &kept));
  Workspace sums;
  maxsim_kernels_of(kernels).feature_memory(call, sums);
  run_feature_gradients(
      problem, chunk, sums.bytes(),
      [&](bool of_contexts, const ItemPairs& jobs, const JobGroup& group, int64_t column, Workspace& memory) {
        maxsim_kernels_of(kernels).soft_feature_gradients(call, kept, of_contexts, jobs, group, column, memory);
      });
}

}  // namespace

void score_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                  int64_t query_stride) {
  if (call.options.soft()) {
    return score_maxsim_both(kernels, call, pairs, context_stride, query_stride);
  }
  lay_out(call);
  // Listed pairs are taken by query item, which is packed once.
  walk_batch(call, pairs, context_stride, query_stride, Owner::query, steps_of(kernels, call, nullptr));
}

void score_maxsim_both(const Kernels& kernels, MaxSimCall call, const PairList* pairs, int64_t context_stride,
                       int64_t query_stride) {
  lay_out_whole_items(call);
  const Steps steps = steps_of_whole_items(kernels, call, nullptr);
  walk_batch(call, pairs, context_stride, query_stride, Owner::context, steps);
}

void differentiate_maxsim_both(const Kernels& kernels, MaxSimCall call, const PairList* pairs,
                               const ScoreGradients& grads, const ScoreGradients& turned_grads,
                               SideGradient& context_gradient, SideGradient& query_gradient) {
  lay_out_whole_items(call);
  const auto pair_floats = [&](int64_t context, int64_t query) {
    const int64_t rows = call.contexts.length(context) + call.queries.length(query);
    return 2 * rows + 1 + (call.options.soft() ? soft_pair_floats(call, context, query) : 0);
  };
  const auto context_floats = [](int64_t) { return 0; };
  // A pair is left out where neither score has a gradient.
  const int64_t n_queries = call.queries.count, n_pairs = pairs ? pairs->count : call.contexts.count * n_queries;
  std::vector<float> either(n_pairs);
  for (int64_t k = 0; k < n_pairs; ++k) {
    const auto of = [&](const ScoreGradients& own) {
      return std::fabs(pairs ? own.of_pair(k) : own.of(k / n_queries, k % n_queries));
    };
    either[k] = of(grads) + of(turned_grads);
  }
  const ScoreGradients wanted{either.data(), pairs ? 1 : n_queries, 1};
  const BackwardProblem problem{call, pairs, wanted, context_gradient, query_gradient, pair_floats, context_floats};
  run_backward(problem, [&](const BackwardChunk& chunk) {
    std::vector<float> own(chunk.pairs.size()), turned(own.size());
    for (size_t k = 0; k < own.size(); ++k) {
      const int64_t context = chunk.pairs.contexts[k], query = chunk.pairs.queries[k];
      own[k] = pairs ? grads.of_pair(chunk.places[k]) : grads.of(context, query);
      turned[k] = pairs ? turned_grads.of_pair(chunk.places[k]) : turned_grads.of(context, query);
    }
    if (call.options.soft()) return run_soft_chunk(kernels, call, problem, chunk, own.data(), turned.data());
    BestRowsMemory of_queries(call.queries, chunk.pairs.queries), of_contexts(call.contexts, chunk.pairs.contexts);
    const MaxSimGradients kept{of_queries.of(own), of_contexts.of(turned), nullptr, nullptr};
    Steps steps = steps_of_whole_items(kernels, call, &kept);
    run_pairs(problem, chunk, steps);
    add_feature_gradients(kernels, call, problem, chunk, kept);
  });
}

void differentiate_maxsim(const Kernels& kernels, MaxSimCall call, const PairList* pairs, const ScoreGradients& grads,
                          SideGradient& context_gradient, SideGradient& query_gradient) {
  if (call.options.soft()) {
    lay_out_whole_items(call);
  } else {
    lay_out(call);
  }
  const auto pair_floats = [&](int64_t context, int64_t query) {
    return call.options.soft() ? soft_pair_floats(call, context, query) : 2 * call.queries.length(query);
  };
  const auto context_floats = [](int64_t) { return 0; };
  const BackwardProblem problem{call, pairs, grads, context_gradient, query_gradient, pair_floats, context_floats};
  run_backward(problem, [&](const BackwardChunk& chunk) {
    if (call.options.soft()) return run_soft_chunk(kernels, call, problem, chunk, chunk.grads.data(), nullptr);
    run_chunk(kernels, call, problem, chunk);
  });
}

}  // namespace crossret
