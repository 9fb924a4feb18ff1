// Forward pass of stacked cross attention over one rectangle of pairs.
namespace crossret {
namespace CROSSRET_ISA {

struct CrossAttentionBuffers {
  BlockBuffers blocks;
  Tiles tiles;
  Queries queries;
};

static CrossAttentionBuffers take_attention_buffers(const CrossAttentionCall& call, Workspace& memory) {
  const bool t2i = call.options.direction == Direction::t2i;
  const Limits& limits = call.limits;
  CrossAttentionBuffers buffers{};
  buffers.blocks = take_buffers(call.images, call.captions, limits, t2i, !t2i, memory);
  buffers.tiles.weights = memory.floats(limits.rows * limits.columns);
  buffers.tiles.gram_weights = memory.floats(limits.rows * limits.columns);
  buffers.tiles.ld = limits.columns;
  buffers.queries = take_queries(t2i ? limits.columns : limits.rows, memory);
  return buffers;
}

static void cross_attention_forward(const CrossAttentionCall& call, const Rectangle& pairs, Workspace& memory) {
  CrossAttentionBuffers buffers = take_attention_buffers(call, memory);
  Tiles& tiles = buffers.tiles;
  Queries& queries = buffers.queries;
  const CrossAttentionOptions& options = call.options;
  const bool t2i = options.direction == Direction::t2i;
  for_each_block(call.images, call.captions, call.limits, pairs, buffers.blocks,
                 [&](const ImageBlock& image, const CaptionBlock& block) {
                   if (t2i) {
                     attend_t2i(call, pairs, image, block, tiles, queries);
                   } else {
                     logits_i2t(call, image, block, tiles);
                   }
                   int64_t c0 = 0, gram = 0;
                   for (int64_t c = 0; c < block.count; ++c) {
                     const int64_t n = call.captions.lengths[pairs.captions[block.first + c]];
                     float score;
                     if (t2i) {
                       score = pool(queries.relevance + c0, n, options.pooling, options.lambda_lse);
                     } else {
                       attend_i2t(image, block, block.grams + gram, c0, n, tiles, queries);
                       score = pool(queries.relevance, image.n_regions, options.pooling, options.lambda_lse);
                     }
                     call.scores[pairs.slot(image.image, block.first + c)] = score;
                     c0 += n;
                     gram += n * gram_row(n);
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
