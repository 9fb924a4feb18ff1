#include "cross_attention/cpu.h"

#include <algorithm>
#include <vector>

#include "common/backward.h"
#include "common/forward.h"

namespace crossret {

namespace {

Owner owner_of(const CrossAttentionCall& call) {
  return call.options.direction == Direction::t2i ? Owner::image : Owner::caption;
}

int64_t gram_floats(int64_t contexts) { return contexts * gram_row(contexts); }

void run_chunk(const CrossAttentionKernels& kernels, const CrossAttentionCall& call, const BackwardProblem& problem,
               const BackwardChunk& chunk) {
  const bool t2i = call.options.direction == Direction::t2i;
  std::vector<int64_t> similarity_offsets(chunk.pairs.size()), query_offsets(chunk.pairs.size()),
      gram_offsets(chunk.pairs.size());
  int64_t similarities = 0, queries = 0, grams = 0;
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    const int64_t r = call.images.lengths[chunk.pairs.images[k]], w = call.captions.lengths[chunk.pairs.captions[k]];
    similarity_offsets[k] = similarities;
    query_offsets[k] = queries;
    similarities += t2i ? r * gram_row(w) : w * gram_row(r);
    queries += t2i ? w : r;
  }
  const ItemPairs contexts = (t2i ? chunk.by_image : chunk.by_caption).view();
  for (int64_t index = 0; index < contexts.count; ++index) {
    for (int64_t p = contexts.offsets[index]; p < contexts.offsets[index + 1]; ++p) {
      gram_offsets[contexts.slots[p]] = grams;
    }
    grams += gram_floats((t2i ? call.images : call.captions).lengths[contexts.items[index]]);
  }
  Workspace count;
  for (const int64_t floats : {similarities, grams, queries}) count.floats(floats);
  Workspace memory = chunk.keep(count.bytes());
  float *const similarity_grads = memory.floats(similarities), *const gram_grads = memory.floats(grams);
  float* const query_coefs = memory.floats(queries);
  std::fill_n(gram_grads, grams, 0.0f);  // summed up; of the others every one is written
  const CrossAttentionGradients kept{chunk.grads.data(),   similarity_grads, similarity_offsets.data(), query_coefs,
                                     query_offsets.data(), gram_grads,       gram_offsets.data()};
  run_rectangles(chunk, kernels.backward_bytes(call),
                 [&](const Rectangle& pairs, Workspace& memory) { kernels.backward(call, kept, pairs, memory); });
  run_feature_gradients(
      problem, chunk, kernels.feature_bytes(call),
      [&](bool of_images, const ItemPairs& jobs, const JobGroup& group, int64_t column, Workspace& memory) {
        kernels.feature_gradients(call, kept, of_images, jobs, group, column, memory);
      });
}

}  // namespace

void score_cross_attention(const CrossAttentionKernels& kernels, CrossAttentionCall call, const PairList* pairs) {
  call.limits = plan_limits(call.contexts(), call.queries());
  run_forward(call.images, call.captions, call.limits, owner_of(call), pairs, kernels.forward_bytes(call),
              [&](const Rectangle& rectangle, int64_t first, Workspace& memory) {
                CrossAttentionCall part = call;
                part.scores += first;
                kernels.forward(part, rectangle, memory);
              });
}

void differentiate_cross_attention(const CrossAttentionKernels& kernels, CrossAttentionCall call, const PairList* pairs,
                                   const ScoreGradients& grads, SideGradient& image_gradient,
                                   SideGradient& caption_gradient) {
  call.limits = plan_limits(call.contexts(), call.queries());
  const bool t2i = call.options.direction == Direction::t2i;
  const BackwardProblem problem{call.images,
                                call.captions,
                                call.limits,
                                owner_of(call),
                                pairs,
                                grads,
                                image_gradient,
                                caption_gradient,
                                [&](int64_t image, int64_t caption) {
                                  const int64_t r = call.images.lengths[image], w = call.captions.lengths[caption];
                                  return t2i ? r * gram_row(w) + w : w * gram_row(r) + r;
                                },
                                [&](int64_t item) { return gram_floats(call.contexts().lengths[item]); }};
  run_backward(problem, [&](const BackwardChunk& chunk) { run_chunk(kernels, call, problem, chunk); });
}

}  // namespace crossret
