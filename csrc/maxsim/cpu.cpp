#include "maxsim/cpu.h"

#include <vector>

#include "common/backward.h"
#include "common/forward.h"

namespace crossret {

namespace {

Owner owner_of(const MaxSimCall& call) { return call.direction == Direction::t2i ? Owner::image : Owner::caption; }

Limits limits_of(const MaxSimCall& call) {
  return call.direction == Direction::t2i ? plan_limits(call.images, call.captions)
                                          : plan_limits(call.captions, call.images);
}

int64_t query_count(const MaxSimCall& call, int64_t image, int64_t caption) {
  return call.direction == Direction::t2i ? call.captions.lengths[caption] : call.images.lengths[image];
}

void run_chunk(const MaxSimKernels& kernels, const MaxSimCall& call, const BackwardProblem& problem,
               const BackwardChunk& chunk, float* image_gradients, float* caption_gradients) {
  std::vector<int64_t> offsets(chunk.pairs.size());
  int64_t queries = 0;
  for (int64_t k = 0; k < chunk.pairs.size(); ++k) {
    offsets[k] = queries;
    queries += query_count(call, chunk.pairs.images[k], chunk.pairs.captions[k]);
  }
  std::vector<int32_t> best(queries);
  std::vector<float> coefs(queries);
  const MaxSimGradients kept{chunk.grads.data(), best.data(), coefs.data(), offsets.data()};
  run_rectangles(chunk, kernels.score_bytes(call),
                 [&](const Rectangle& pairs, Workspace& memory) { kernels.backward(call, kept, pairs, memory); });
  run_feature_gradients(
      problem, chunk, image_gradients, caption_gradients, kernels.feature_bytes(call),
      [&](bool of_images, const ItemPairs& jobs, int64_t index, int64_t column, float* gradients, Workspace& memory) {
        kernels.feature_gradients(call, kept, of_images, jobs, index, column, gradients, memory);
      });
}

}  // namespace

void score_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs) {
  call.limits = limits_of(call);
  run_forward(call.images, call.captions, call.limits, owner_of(call), pairs, kernels.score_bytes(call),
              [&](const Rectangle& rectangle, int64_t first, Workspace& memory) {
                MaxSimCall part = call;
                part.scores += first;
                kernels.forward(part, rectangle, memory);
              });
}

void differentiate_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs,
                          const float* grad_scores, float* image_gradients, float* caption_gradients) {
  call.limits = limits_of(call);
  const BackwardProblem problem{call.images,
                                call.captions,
                                call.limits,
                                owner_of(call),
                                pairs,
                                grad_scores,
                                [&](int64_t image, int64_t caption) { return 2 * query_count(call, image, caption); },
                                [](int64_t) { return 0; }};
  for_each_backward_chunk(problem, [&](const BackwardChunk& chunk) {
    run_chunk(kernels, call, problem, chunk, image_gradients, caption_gradients);
  });
}

}  // namespace crossret
