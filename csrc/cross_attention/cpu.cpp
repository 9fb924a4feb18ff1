#include "cross_attention/cpu.h"

#include <memory>
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
               const BackwardChunk& chunk, float* image_gradients, float* caption_gradients) {
  const bool t2i = call.options.direction == Direction::t2i;
  const Side& contexts = call.contexts();
  const int64_t count = chunk.pairs.size();
  std::vector<int64_t> similarity_offsets(count), query_offsets(count), gram_offsets(contexts.count, -1);
  int64_t similarities = 0, queries = 0, grams = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t r = call.images.lengths[chunk.pairs.images[k]], w = call.captions.lengths[chunk.pairs.captions[k]];
    similarity_offsets[k] = similarities;
    query_offsets[k] = queries;
    similarities += t2i ? r * gram_row(w) : w * gram_row(r);
    queries += t2i ? w : r;
    const int64_t context = t2i ? chunk.pairs.images[k] : chunk.pairs.captions[k];
    if (gram_offsets[context] < 0) {
      gram_offsets[context] = grams;
      grams += gram_floats(contexts.lengths[context]);
    }
  }
  // Not value-initialised: every similarity gradient is written. The Gram gradients are summed up, so they start at
  // zero.
  const std::unique_ptr<float[]> similarity_grads(new float[similarities]), query_coefs(new float[queries]);
  std::vector<float> gram_grads(grams, 0.0f);
  const CrossAttentionGradients kept{chunk.grads.data(), similarity_grads.get(), similarity_offsets.data(),
                                     query_coefs.get(),  query_offsets.data(),   gram_grads.data(),
                                     gram_offsets.data()};
  run_rectangles(chunk, kernels.backward_bytes(call),
                 [&](const Rectangle& pairs, Workspace& memory) { kernels.backward(call, kept, pairs, memory); });
  run_feature_gradients(
      problem, chunk, image_gradients, caption_gradients, kernels.feature_bytes(call),
      [&](bool of_images, const ItemPairs& jobs, int64_t index, int64_t column, float* gradients, Workspace& memory) {
        kernels.feature_gradients(call, kept, of_images, jobs, index, column, gradients, memory);
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
                                   const float* grad_scores, float* image_gradients, float* caption_gradients) {
  call.limits = plan_limits(call.contexts(), call.queries());
  const bool t2i = call.options.direction == Direction::t2i;
  const BackwardProblem problem{call.images,
                                call.captions,
                                call.limits,
                                owner_of(call),
                                pairs,
                                grad_scores,
                                [&](int64_t image, int64_t caption) {
                                  const int64_t r = call.images.lengths[image], w = call.captions.lengths[caption];
                                  return t2i ? r * gram_row(w) + w : w * gram_row(r) + r;
                                },
                                [&](int64_t item) { return gram_floats(call.contexts().lengths[item]); }};
  for_each_backward_chunk(problem, [&](const BackwardChunk& chunk) {
    run_chunk(kernels, call, problem, chunk, image_gradients, caption_gradients);
  });
}

}  // namespace crossret
