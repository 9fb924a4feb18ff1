#include "cross_attention/cpu.h"

#include <algorithm>
#include <vector>

#include "pairs/parallel.h"

namespace crossret {

CROSSRET_BY_SET(CrossAttentionKernels, cross_attention_kernels)

namespace {

int64_t gram_floats(int64_t contexts) { return contexts * gram_row(contexts); }

void lay_out(CrossAttentionCall& call) {
  call.factors = true;
  call.vectors = call.made.attended != nullptr;
  call.dots = call.context_layout.kind == Elements::floats && call.query_layout.kind == Elements::floats;
  call.limits = plan_limits(call.contexts, call.queries, call.query_layout);
}

int64_t counted(const Kernels& kernels, const CrossAttentionCall& call,
                void (*memory)(const CrossAttentionCall&, Workspace&)) {
  Workspace count, preparing;
  memory(call, count);
  kernels.prepare_memory(call, preparing);
  return std::max(count.bytes(), preparing.bytes());
}

Steps steps_of(const Kernels& kernels, const CrossAttentionCall& call) {
  Steps steps{};
  steps.whole_items = true;
  steps.pack = [&](const Rectangle& pairs, const QueryBlock& block, Workspace& memory) {
    kernels.pack_queries(call, pairs, block, memory);
  };
  steps.prepare = [&](const Rectangle& pairs, const ContextGroup& group, Workspace& memory) {
    kernels.prepare_contexts(call, pairs, group, memory);
  };
  return steps;
}

// The gradients of a chunk's attended vectors, an item for each pair; without items where there are none.
RaggedView given_side(const CrossAttentionCall& call, const BackwardChunk& chunk, std::vector<Item>& items) {
  RaggedView side{};
  side.dim = call.contexts.dim;
  side.dtype = Dtype::float32;
  if (call.given.attended == nullptr) return side;
  const int64_t row_bytes = side.dim * static_cast<int64_t>(sizeof(float));
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    const Item& query = call.queries.items[chunk.pairs.queries[k]];
    const auto* rows = reinterpret_cast<const char*>(call.given.attended);
    rows += chunk.places[k] * call.given.query_places * row_bytes;
    items.push_back({rows, row_bytes, query.places, query.length, 0, 0});
  }
  side.items = items.data();
  side.count = chunk.pairs.size();
  return side;
}

void run_chunk(const Kernels& kernels, const CrossAttentionCall& call, const BackwardProblem& problem,
               const ScoreGradients& grads, const BackwardChunk& chunk) {
  std::vector<int64_t> similarity_offsets(chunk.pairs.size()), query_offsets(chunk.pairs.size()),
      gram_offsets(chunk.pairs.size());
  int64_t similarities = 0, queries = 0, grams = 0;
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    const int64_t rows = call.contexts.length(chunk.pairs.contexts[k]);
    const int64_t columns = call.queries.length(chunk.pairs.queries[k]);
    similarity_offsets[k] = similarities;
    query_offsets[k] = queries;
    similarities += rows * gram_row(columns);
    queries += columns;
  }
  const ItemPairs contexts = chunk.by_context.view();
  for (int64_t index = 0; index < contexts.count; ++index) {
    for (int64_t p = contexts.offsets[index]; p < contexts.offsets[index + 1]; ++p) {
      gram_offsets[contexts.slots[p]] = grams;
    }
    grams += gram_floats(call.contexts.length(contexts.items[index]));
  }
  const bool more = call.given.there();
  Workspace count;
  for (const int64_t floats : {similarities, grams, queries, more ? similarities : 0}) count.floats(floats);
  Workspace memory = chunk.keep(count.bytes());
  float *const similarity_grads = memory.floats(similarities), *const gram_grads = memory.floats(grams);
  float *const query_coefs = memory.floats(queries), *const weights = memory.floats(more ? similarities : 0);
  std::vector<Item> attended;
  std::vector<float> of_scores = chunk.grads;
  for (int64_t k = 0; more && k < chunk.pairs.size(); ++k) of_scores[k] = grads.of_pair(chunk.places[k]);
  std::fill_n(gram_grads, grams, 0.0f);  // added to; the other arrays are written
  const CrossAttentionGradients kept{
      of_scores.data(), similarity_grads,    similarity_offsets.data(), query_coefs, query_offsets.data(),
      gram_grads,       gram_offsets.data(), chunk.places.data(),       weights,     given_side(call, chunk, attended)};
  Steps steps = steps_of(kernels, call);
  steps.in_turn = true;
  steps.bytes = counted(kernels, call, cross_attention_kernels_of(kernels).backward_memory);
  steps.run = [&](const Rectangle& pairs, const ContextGroup& group, const QueryBlock& block, const Partial&,
                  Workspace& memory) {
    cross_attention_kernels_of(kernels).backward(call, kept, pairs, group, block, memory);
  };
  run_pairs(problem, chunk, steps);
  run_feature_gradients(
      problem, chunk, counted(kernels, call, cross_attention_kernels_of(kernels).feature_memory),
      [&](bool of_contexts, const ItemPairs& jobs, const JobGroup& group, int64_t column, Workspace& memory) {
        cross_attention_kernels_of(kernels).feature_gradients(call, kept, of_contexts, jobs, group, column, memory);
      });
}

}  // namespace

void score_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                           int64_t context_stride, int64_t query_stride) {
  lay_out(call);
  Steps steps = steps_of(kernels, call);
  steps.bytes = counted(kernels, call, cross_attention_kernels_of(kernels).forward_memory);
  steps.run = [&](const Rectangle& pairs, const ContextGroup& group, const QueryBlock& block, const Partial&,
                  Workspace& memory) {
    cross_attention_kernels_of(kernels).forward(call, pairs, group, block, memory);
  };
  walk_batch(call, pairs, context_stride, query_stride, Owner::context, steps);
}

void keep_factors(const Kernels& kernels, const RaggedView& side, int64_t longest, int64_t ld, float* out) {
  const auto keep = cross_attention_kernels_of(kernels).keep_factor;
  Workspace count;
  keep(side, 0, longest, ld, nullptr, count);
  Memory memory;
  const double work = pass_work(side) * static_cast<double>(side.longest) / 4;
  parallel(side.count, work, count.bytes(), memory, [&](int64_t item, Workspace& workspace) {
    keep(side, item, longest, ld, out + item * longest * ld, workspace);
  });
}

void differentiate_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const ScoreGradients& grads, SideGradient& context_gradient,
                                   SideGradient& query_gradient) {
  lay_out(call);
  const auto pair_floats = [&](int64_t context, int64_t query) {
    const int64_t rows = call.contexts.length(context), columns = call.queries.length(query);
    const int64_t more = call.given.there() ? sizeof(Item) / sizeof(float) + rows * gram_row(columns) : 0;
    return rows * gram_row(columns) + columns + more;
  };
  const auto context_floats = [&](int64_t context) { return gram_floats(call.contexts.length(context)); };
  constexpr float one = 1;  // no pair is left out where more than its score may have a gradient
  const ScoreGradients wanted = call.given.there() ? ScoreGradients{&one, 0, 0} : grads;
  const BackwardProblem problem{call, pairs, wanted, context_gradient, query_gradient, pair_floats, context_floats};
  run_backward(problem, [&](const BackwardChunk& chunk) { run_chunk(kernels, call, problem, grads, chunk); });
}

}  // namespace crossret
