// Forward pass of stacked cross attention: the pairs of a group of context items and a block of queries.
#pragma once
#include "cross_attention/attention.inl"
#include "pairs/pooling.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Workspace of the forward pass.
struct AttentionBuffers {
  float* similarities;  // group × block
  DotBuffers dots;
  AttentionTile tile;  // one item × block
  Queries queries;
  float** attended;  // destinations of the block's attended vectors
  float* norms;      // of a turned block's queries

  AttentionBuffers(const Operands& operands, Workspace& memory) {
    const int64_t rows = operands.limits.rows, columns = operands.limits.columns;
    similarities = memory.floats(rows * columns);
    dots = operands.dots ? take_dot_buffers(operands, memory) : DotBuffers{};
    tile = {nullptr, memory.floats(rows * columns), columns, memory.floats(rows * V::width)};
    queries = take_queries(columns, memory);
    attended = memory.addresses<float>(columns);
    norms = memory.floats(columns);
  }
};

// A group and a block in the other direction: the block's items are the contexts, the group's the queries.
struct Turned {
  Rectangle pairs;
  ContextGroup group;
  QueryBlock block;
};

// Turns the similarities of a group and a block, too. A rectangle with slots has one item on one side.
static Turned turn(const CrossAttentionCall& call, const Rectangle& pairs, const ContextGroup& group,
                   const QueryBlock& block, const AttentionBuffers& buffers, AttentionBuffers& turned) {
  transpose(buffers.similarities, buffers.tile.ld, group.rows, block.columns, turned.similarities, turned.tile.ld,
            round_up(group.rows, V::width));
  for_each_row(call.contexts, pairs.contexts + group.first, 0, group.rows, [&](int64_t i, int64_t item, int64_t row) {
    turned.norms[i] = call.turned->query_norms[call.contexts.items[item].first + row];
  });
  Turned made{};
  made.pairs = {pairs.queries,
                pairs.n_queries,
                pairs.contexts,
                pairs.n_contexts,
                pairs.slots,
                pairs.query_stride,
                pairs.context_stride,
                pairs.first_slot,
                0,
                false};
  made.group.first = block.first;
  made.group.count = block.count;
  made.block.first = group.first;
  made.block.count = group.count;
  made.block.columns = group.rows;
  made.block.norms = turned.norms;
  return made;
}

// Calls visit(place, row) for every place of an item in results; row is −1 at places without a valid row.
template <class Visit>
static inline void each_place(const Item& item, int64_t places, const Visit& visit) {
  int64_t r = 0;
  for (int64_t place = 0; place < places; ++place) {
    const bool there = r < item.length && (item.places ? item.places[r] : r) == place;
    visit(place, there ? r++ : -1);
  }
}

static inline void clear(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += V::width) V::store(x + i, V::zero(), n - i);
}

// Finds the destinations of a block's attended vectors; stores zeros at places without a query.
static void place_attended(const CrossAttentionCall& call, const Rectangle& pairs, int64_t item,
                           const QueryBlock& block, float** to) {
  const AttentionOf<float>& made = call.made;
  for (int64_t q = block.first; q < block.first + block.count; ++q) {
    float* out = made.attended + pairs.slot(item, q) * made.query_places * call.contexts.dim;
    each_place(call.queries.items[pairs.queries[q]], made.query_places, [&](int64_t, int64_t row) {
      if (row >= 0) {
        *to++ = out;
      } else {
        clear(out, call.contexts.dim);
      }
      out += call.contexts.dim;
    });
  }
}

// Stores weights and relevances of one pair, whose queries are the columns from c0 on.
static void keep_attention(const CrossAttentionCall& call, const AttentionTile& tile, const Queries& queries,
                           const Item& contexts, const Item& attending, int64_t slot, int64_t c0) {
  const AttentionOf<float>& made = call.made;
  float* relevance = made.relevances + slot * made.query_places;
  float* out = made.weights + slot * made.query_places * made.context_places;
  each_place(attending, made.query_places, [&](int64_t, int64_t row) {
    *relevance++ = row < 0 ? 0.0f : queries.relevance[c0 + row];
    if (row < 0 || contexts.length < made.context_places) clear(out, made.context_places);
    for (int64_t c = 0; row >= 0 && c < contexts.length; ++c) {
      out[contexts.places ? contexts.places[c] : c] = tile.weights[c * tile.ld + c0 + row] * queries.inverse[c0 + row];
    }
    out += made.context_places;
  });
}

// Calls visit(index of the item, its first row in the group, its factor) for every context item of a group, whose
// similarities are in the tile.
template <class Visit>
static void for_each_context(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                             AttentionBuffers& buffers, const Visit& visit) {
  int64_t row = 0, factors = 0;
  for (int64_t i = group.first; i < group.first + group.count; ++i) {
    const int64_t n = operands.contexts.length(pairs.contexts[i]);
    buffers.tile.similarities = buffers.similarities + row * buffers.tile.ld;
    visit(i, row, factor_of(operands, pairs, group, i, row, factors));
    row += n;
    factors += operands.factor_floats(n, pairs.columns);
  }
}

// Scores from similarities.
static void score_items(const CrossAttentionCall& call, const Rectangle& pairs, const ContextGroup& group,
                        const QueryBlock& block, AttentionBuffers& buffers) {
  const CrossAttentionOptions& options = call.options;
  if (call.made.attended) buffers.queries.attended = buffers.attended;
  for_each_context(call, pairs, group, buffers, [&](int64_t item, int64_t, const Factor& factor) {
    if (call.made.attended) place_attended(call, pairs, item, block, buffers.attended);
    attend(options, call.queries, pairs, factor, block, buffers.tile, buffers.queries, nullptr);
    const float* relevance = buffers.queries.relevance;
    for (int64_t q = block.first; q < block.first + block.count; ++q) {
      const int64_t n = call.queries.length(pairs.queries[q]), slot = pairs.slot(item, q);
      const float score = pool(relevance, n, options.pooling, options.lambda_lse);
      call.scores[slot] = call.averages ? 0.5f * call.scores[slot] + 0.5f * score : score;
      if (call.made.there()) {
        keep_attention(call, buffers.tile, buffers.queries, call.contexts.items[pairs.contexts[item]],
                       call.queries.items[pairs.queries[q]], slot, relevance - buffers.queries.relevance);
      }
      relevance += n;
    }
  });
}

static void cross_attention_forward(const CrossAttentionCall& call, const Rectangle& pairs, const ContextGroup& group,
                                    const QueryBlock& block, Workspace& memory) {
  AttentionBuffers buffers(call, memory);
  similarities_of(call, pairs, group, block, buffers.similarities, buffers.tile.ld, buffers.dots);
  score_items(call, pairs, group, block, buffers);
  if (call.turned == nullptr) return;
  AttentionBuffers of_turned(*call.turned, memory);
  const Turned turned = turn(call, pairs, group, block, buffers, of_turned);
  score_items(*call.turned, turned.pairs, turned.group, turned.block, of_turned);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
