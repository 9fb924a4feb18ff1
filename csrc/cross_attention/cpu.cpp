#include "cross_attention/cpu.h"

#include <algorithm>
#include <utility>
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

// Triangular factors of a side's items, padded to `longest` rows, or as they are where that is null, and unless it is
// null the norms of all rows.
void make_factors(const Kernels& kernels, const RaggedView& side, const int64_t* longest, int64_t ld, float* out,
                  float* norms) {
  const auto keep = cross_attention_kernels_of(kernels).keep_factor;
  Workspace count;
  keep(side, 0, side.longest, ld, nullptr, nullptr, count);
  Memory memory;
  const double work = pass_work(side) * static_cast<double>(side.longest) / 4;
  parallel(side.count, work, count.bytes(), memory, [&](int64_t item, Workspace& workspace) {
    const int64_t first = side.items[item].first, row = longest != nullptr ? item * *longest : first;
    keep(side, item, longest != nullptr ? *longest : side.length(item), ld, out + row * ld,
         norms != nullptr ? norms + first : nullptr, workspace);
  });
}

// The other direction of a call in both, with the factors of either and norms of what attends in the other.
class OtherWay {
 public:
  OtherWay(const Kernels& kernels, CrossAttentionCall& call) : turned_(call) {
    if (!call.both_ways || call.contexts.rows == 0 || call.queries.rows == 0) return;
    std::swap(turned_.contexts, turned_.queries);
    std::swap(turned_.context_layout, turned_.query_layout);
    turned_.limits = {call.limits.filled_columns, call.limits.rows, pad_columns(call.limits.rows)};
    turned_.options.lambda_softmax = call.turned_lambda_softmax;
    turned_.dots = false;
    turned_.averages = true;
    norms_.resize(call.contexts.rows);
    turned_.query_norms = norms_.data();
    keep(kernels, call, norms_.data(), factors_[0]);
    keep(kernels, turned_, nullptr, factors_[1]);
    call.turned = &turned_;
  }
  OtherWay(const OtherWay&) = delete;
  OtherWay& operator=(const OtherWay&) = delete;

 private:
  static void keep(const Kernels& kernels, CrossAttentionCall& call, float* norms, Memory& memory) {
    call.kept_row = gram_row(call.contexts.longest);
    const int64_t floats = call.contexts.rows * call.kept_row;
    auto* const made = static_cast<float*>(memory.bytes(floats * static_cast<int64_t>(sizeof(float))));
    make_factors(kernels, call.contexts, nullptr, call.kept_row, made, norms);
    call.kept_factors = made;
  }

  CrossAttentionCall turned_;
  std::vector<float> norms_;
  Memory factors_[2];
};

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

// The place of each pair of a chunk in an array.
struct Parts {
  std::vector<int64_t> offsets;
  int64_t floats = 0;

  void add(int64_t n) {
    offsets.push_back(floats);
    floats += n;
  }
};

void run_chunk(const Kernels& kernels, const CrossAttentionCall& call, const BackwardProblem& problem,
               const ScoreGradients& grads, const BackwardChunk& chunk) {
  const bool both = call.turned != nullptr, more = call.given.there();
  Parts similarities, queries, grams, turned_queries, turned_grams;
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    const int64_t rows = call.contexts.length(chunk.pairs.contexts[k]);
    const int64_t columns = call.queries.length(chunk.pairs.queries[k]);
    similarities.add(rows * gram_row(columns));
    queries.add(columns);
    turned_queries.add(both ? rows : 0);
    turned_grams.add(both ? gram_floats(columns) : 0);
  }
  const ItemPairs contexts = chunk.by_context.view();
  grams.offsets.resize(chunk.pairs.size());
  for (int64_t index = 0; index < contexts.count; ++index) {
    for (int64_t p = contexts.offsets[index]; p < contexts.offsets[index + 1]; ++p) {
      grams.offsets[contexts.slots[p]] = grams.floats;
    }
    grams.floats += gram_floats(call.contexts.length(contexts.items[index]));
  }
  const int64_t weights = more ? similarities.floats : 0;
  Workspace count;
  for (const Parts* parts : {&similarities, &queries, &grams, &turned_queries, &turned_grams}) {
    count.floats(parts->floats);
  }
  count.floats(weights);
  Workspace memory = chunk.keep(count.bytes());
  const auto zeros = [&](const Parts& parts) {  // added to; the other arrays are written
    float* const made = memory.floats(parts.floats);
    std::fill_n(made, parts.floats, 0.0f);
    return made;
  };
  std::vector<Item> attended;
  std::vector<float> of_scores = chunk.grads;
  for (int64_t k = 0; more && k < chunk.pairs.size(); ++k) of_scores[k] = grads.of_pair(chunk.places[k]);
  for (float& grad : of_scores) grad *= both ? 0.5f : 1.0f;
  CrossAttentionGradients of_turned{};
  of_turned.grad_scores = of_scores.data();
  of_turned.query_coefs = memory.floats(turned_queries.floats);
  of_turned.query_offsets = turned_queries.offsets.data();
  of_turned.gram_grads = zeros(turned_grams);
  of_turned.gram_offsets = turned_grams.offsets.data();
  const CrossAttentionGradients kept{of_scores.data(),
                                     memory.floats(similarities.floats),
                                     similarities.offsets.data(),
                                     memory.floats(queries.floats),
                                     queries.offsets.data(),
                                     zeros(grams),
                                     grams.offsets.data(),
                                     both ? &of_turned : nullptr,
                                     chunk.places.data(),
                                     memory.floats(weights),
                                     given_side(call, chunk, attended)};
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
  const OtherWay other(kernels, call);
  Steps steps = steps_of(kernels, call);
  steps.bytes = counted(kernels, call, cross_attention_kernels_of(kernels).forward_memory);
  steps.run = [&](const Rectangle& pairs, const ContextGroup& group, const QueryBlock& block, const Partial&,
                  Workspace& memory) {
    cross_attention_kernels_of(kernels).forward(call, pairs, group, block, memory);
  };
  walk_batch(call, pairs, context_stride, query_stride, Owner::context, steps);
}

void keep_factors(const Kernels& kernels, const RaggedView& side, int64_t longest, int64_t ld, float* out) {
  make_factors(kernels, side, &longest, ld, out, nullptr);
}

void differentiate_cross_attention(const Kernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const ScoreGradients& grads, SideGradient& context_gradient,
                                   SideGradient& query_gradient) {
  lay_out(call);
  const OtherWay other(kernels, call);
  const auto pair_floats = [&](int64_t context, int64_t query) {
    const int64_t rows = call.contexts.length(context), columns = call.queries.length(query);
    const int64_t more = call.given.there() ? sizeof(Item) / sizeof(float) + rows * gram_row(columns) : 0;
    return rows * gram_row(columns) + columns + more + (call.both_ways ? rows + gram_floats(columns) : 0);
  };
  const auto context_floats = [&](int64_t context) { return gram_floats(call.contexts.length(context)); };
  constexpr float one = 1;  // no pair is left out where more than its score may have a gradient
  const ScoreGradients wanted = call.given.there() ? ScoreGradients{&one, 0, 0} : grads;
  const BackwardProblem problem{call, pairs, wanted, context_gradient, query_gradient, pair_floats, context_floats};
  run_backward(problem, [&](const BackwardChunk& chunk) { run_chunk(kernels, call, problem, grads, chunk); });
}

}  // namespace crossret
