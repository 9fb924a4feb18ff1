// Forward pass of stacked cross attention over one rectangle of pairs.
namespace crossret {
namespace CROSSRET_ISA {

struct CrossAttentionBuffers {
  BlockBuffers blocks;
  Tiles tiles;
  Queries queries;
};

static CrossAttentionBuffers take_attention_buffers(const CrossAttentionCall& call, Workspace& memory) {
  const Limits& limits = call.limits;
  CrossAttentionBuffers buffers{};
  buffers.blocks = take_buffers(call.contexts(), call.queries(), limits, true, memory);
  buffers.tiles.weights = memory.floats(limits.rows * limits.columns);
  buffers.tiles.gram_weights = memory.floats(limits.rows * limits.columns);
  buffers.tiles.ld = limits.columns;
  buffers.queries = take_queries(limits.columns, memory);
  return buffers;
}

static void cross_attention_forward(const CrossAttentionCall& call, const Rectangle& pairs, Workspace& memory) {
  CrossAttentionBuffers buffers = take_attention_buffers(call, memory);
  Queries& queries = buffers.queries;
  const CrossAttentionOptions& options = call.options;
  const Roles roles(call.images, call.captions, pairs, options.direction);
  for_each_block(roles, call.limits, buffers.blocks, [&](const ContextItem& item, const QueryBlock& block) {
    attend(options, roles, item, block, buffers.tiles, queries);
    int64_t c0 = 0;
    for (int64_t q = block.first; q < block.first + block.count; ++q) {
      const int64_t n = roles.query_rows(q);
      call.scores[roles.slot(item.index, q)] = pool(queries.relevance + c0, n, options.pooling, options.lambda_lse);
      c0 += n;
    }
  });
}

static int64_t cross_attention_forward_bytes(const CrossAttentionCall& call) {
  Workspace count;
  take_attention_buffers(call, count);
  return count.bytes();
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
