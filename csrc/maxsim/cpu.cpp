#include "maxsim/cpu.h"

#include <vector>

#include "common/backward.h"
#include "common/dispatch.h"
#include "common/parallel.h"

namespace crossret {

namespace {

void run_chunk(const MaxSimCall& call, const BackwardChunk& chunk, float* image_gradients, float* caption_gradients) {
  const MaxSimKernels& run = *kernels().maxsim;
  const bool t2i = call.direction == Direction::t2i;
  std::vector<int64_t> offsets(chunk.pairs.size());
  int64_t queries = 0;
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    offsets[k] = queries;
    queries += t2i ? call.captions.lengths[chunk.pairs.captions[k]] : call.images.lengths[chunk.pairs.images[k]];
  }
  std::vector<int32_t> best(queries);
  std::vector<float> coefs(queries);
  const MaxSimGradients gradients{chunk.grads.data(), best.data(), coefs.data(), offsets.data()};
  parallel(
      static_cast<int64_t>(chunk.plan.rectangles.size()), run.score_bytes(call),
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

void maxsim_scores(MaxSimCall call, const Pairs* pairs) {
  call.limits = plan_limits(call.images, call.captions);
  const MaxSimKernels& run = *kernels().maxsim;
  const Plan plan = pairs ? plan_pairs(*pairs, call.images.count, call.captions.count, Owner::image, false)
                          : plan_all(call.images, call.captions, call.limits, {0, call.images.count},
                                     {0, call.captions.count}, thread_count(), nullptr);
  parallel(static_cast<int64_t>(plan.rectangles.size()), run.score_bytes(call),
           [&](int64_t item, Workspace& memory) { run.forward(call, plan.rectangles[item], memory); });
}

void maxsim_gradients(MaxSimCall call, const Pairs* pairs, const float* grad_scores, float* image_gradients,
                      float* caption_gradients) {
  call.limits = plan_limits(call.images, call.captions);
  const bool t2i = call.direction == Direction::t2i;
  for_each_backward_chunk(
      {call.images, call.captions, call.limits, Owner::image, pairs, grad_scores},
      [&](int64_t image, int64_t caption) {
        return 2 * (t2i ? call.captions.lengths[caption] : call.images.lengths[image]);
      },
      [&](const BackwardChunk& chunk) { run_chunk(call, chunk, image_gradients, caption_gradients); });
}

}  // namespace crossret
