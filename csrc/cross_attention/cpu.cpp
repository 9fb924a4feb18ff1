#include "cross_attention/cpu.h"

#include <memory>
#include <vector>

#include "common/backward.h"
#include "common/dispatch.h"
#include "common/parallel.h"

namespace crossret {

namespace {

Owner owner_of(const CrossAttentionCall& call) {
  return call.options.direction == Direction::t2i ? Owner::image : Owner::caption;
}

void run_chunk(const CrossAttentionCall& call, const BackwardChunk& chunk, float* image_gradients,
               float* caption_gradients) {
  const CrossAttentionKernels& run = *kernels().cross_attention;
  const bool t2i = call.options.direction == Direction::t2i;
  const Side& contexts = t2i ? call.images : call.captions;
  const int64_t count = chunk.pairs.size();
  std::vector<int64_t> similarity_offsets(count), query_offsets(count), gram_offsets(contexts.count, -1);
  int64_t similarities = 0, queries = 0, grams = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t r = call.images.lengths[chunk.pairs.images[k]], w = call.captions.lengths[chunk.pairs.captions[k]];
    similarity_offsets[k] = similarities;
    query_offsets[k] = queries;
    similarities += r * gram_row(w);
    queries += t2i ? w : r;
    const int64_t context = t2i ? chunk.pairs.images[k] : chunk.pairs.captions[k];
    if (gram_offsets[context] < 0) {
      gram_offsets[context] = grams;
      grams += contexts.lengths[context] * gram_row(contexts.lengths[context]);
    }
  }
  // Not value-initialised: every similarity gradient is written. The Gram gradients are summed up, so they start at
  // zero.
  const std::unique_ptr<float[]> similarity_grads(new float[similarities]), query_coefs(new float[queries]);
  std::vector<float> gram_grads(grams, 0.0f);
  const CrossAttentionGradients gradients{chunk.grads.data(), similarity_grads.get(), similarity_offsets.data(),
                                          query_coefs.get(),  query_offsets.data(),   gram_grads.data(),
                                          gram_offsets.data()};
  parallel(
      static_cast<int64_t>(chunk.plan.rectangles.size()), run.backward_bytes(call),
      [&](int64_t item, Workspace& memory) { run.backward(call, gradients, chunk.plan.rectangles[item], memory); });
  for (const bool of_images : {true, false}) {
    float* out = of_images ? image_gradients : caption_gradients;
    if (out == nullptr) continue;
    const Side& own = of_images ? call.images : call.captions;
    const ItemPairsPlan items = plan_items(chunk.pairs, own.count, of_images ? Owner::image : Owner::caption);
    const ItemPairs jobs = items.view();
    const int64_t slices = (own.dim + kSlice - 1) / kSlice;
    parallel(jobs.count * slices, run.feature_bytes(call), [&](int64_t item, Workspace& memory) {
      run.feature_gradients(call, gradients, of_images, jobs, item / slices, item % slices * kSlice, out, memory);
    });
  }
}

}  // namespace

void cross_attention_scores(CrossAttentionCall call, const Pairs* pairs) {
  call.limits = plan_limits(call.images, call.captions);
  const CrossAttentionKernels& run = *kernels().cross_attention;
  const Plan plan = pairs ? plan_pairs(*pairs, call.images.count, call.captions.count, owner_of(call), false)
                          : plan_all(call.images, call.captions, call.limits, {0, call.images.count},
                                     {0, call.captions.count}, thread_count(), nullptr);
  parallel(static_cast<int64_t>(plan.rectangles.size()), run.forward_bytes(call),
           [&](int64_t item, Workspace& memory) { run.forward(call, plan.rectangles[item], memory); });
}

void cross_attention_gradients(CrossAttentionCall call, const Pairs* pairs, const float* grad_scores,
                               float* image_gradients, float* caption_gradients) {
  call.limits = plan_limits(call.images, call.captions);
  const bool t2i = call.options.direction == Direction::t2i;
  for_each_backward_chunk(
      {call.images, call.captions, call.limits, owner_of(call), pairs, grad_scores},
      [&](int64_t image, int64_t caption) {
        const int64_t r = call.images.lengths[image], w = call.captions.lengths[caption];
        return r * gram_row(w) + (t2i ? w : r);
      },
      [&](const BackwardChunk& chunk) { run_chunk(call, chunk, image_gradients, caption_gradients); });
}

}  // namespace crossret
