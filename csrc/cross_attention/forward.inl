// Forward pass of stacked cross attention: the pairs of a group of context items and a block of queries.
namespace crossret {
namespace CROSSRET_ISA {

struct AttentionBuffers {
  float* similarities;  // of all contexts of a group
  DotBuffers dots;
  AttentionTile tile;  // of one item
  Queries queries;
};

static AttentionBuffers take_attention_buffers(const Operands& operands, Workspace& memory) {
  const Limits& limits = operands.limits;
  AttentionBuffers buffers{};
  buffers.similarities = memory.floats(limits.rows * limits.columns);
  if (operands.dots) buffers.dots = take_dot_buffers(operands, memory);
  buffers.tile.weights = memory.floats(limits.rows * limits.columns);
  buffers.tile.ld = limits.columns;
  buffers.tile.last_features = memory.floats(limits.rows * V::width);
  buffers.queries = take_queries(limits.columns, memory);
  return buffers;
}

// Calls visit(index of the item, its factor, its first row in the group) for every context item of a group, its
// similarities with the block in the tile.
template <class Visit>
static void for_each_context(const Operands& operands, const Rectangle& pairs, const ContextGroup& group,
                             const QueryBlock& block, AttentionBuffers& buffers, const Visit& visit) {
  const int64_t ld = buffers.tile.ld;
  similarities_of(operands, pairs, group, block, buffers.similarities, ld, buffers.dots);
  int64_t row = 0, factors = 0;
  for (int64_t i = group.first; i < group.first + group.count; ++i) {
    const int64_t n = operands.contexts.length(pairs.contexts[i]);
    buffers.tile.similarities = buffers.similarities + row * ld;
    visit(i, factor_of(operands, pairs, group, i, row, factors));
    row += n;
    factors += operands.factor_floats(n, pairs.columns);
  }
}

static void cross_attention_forward(const CrossAttentionCall& call, const Rectangle& pairs, const ContextGroup& group,
                                    const QueryBlock& block, Workspace& memory) {
  AttentionBuffers buffers = take_attention_buffers(call, memory);
  const CrossAttentionOptions& options = call.options;
  for_each_context(call, pairs, group, block, buffers, [&](int64_t item, const Factor& factor) {
    attend(options, call.queries, pairs, factor, block, buffers.tile, buffers.queries, nullptr);
    const float* relevance = buffers.queries.relevance;
    for (int64_t q = block.first; q < block.first + block.count; ++q) {
      const int64_t n = call.queries.length(pairs.queries[q]);
      call.scores[pairs.slot(item, q)] = pool(relevance, n, options.pooling, options.lambda_lse);
      relevance += n;
    }
  });
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
