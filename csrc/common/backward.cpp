#include "common/backward.h"

#include <algorithm>
#include <numeric>

#include "common/parallel.h"

namespace crossret {

namespace {

constexpr int64_t kChunkFloats = 8 * 1024 * 1024;  // 32 MiB between the passes

Pairs active_pairs(const BackwardProblem& problem, std::vector<float>& grads) {
  Pairs active;
  const auto add = [&](int64_t image, int64_t caption, float grad) {
    if (grad == 0.0f) return;
    active.images.push_back(image);
    active.captions.push_back(caption);
    grads.push_back(grad);
  };
  if (problem.pairs != nullptr) {
    for (int64_t k = 0; k < problem.pairs->size(); ++k) {
      add(problem.pairs->images[k], problem.pairs->captions[k], problem.grad_scores[k]);
    }
    return active;
  }
  for (int64_t i = 0, k = 0; i < problem.images.count; ++i) {
    for (int64_t c = 0; c < problem.captions.count; ++c, ++k) add(i, c, problem.grad_scores[k]);
  }
  return active;
}

// Listed pairs in the order of their owners, cut where a chunk is full.
void run_listed(const BackwardProblem& problem, const Pairs& active, const std::vector<float>& grads,
                const std::function<int64_t(int64_t, int64_t)>& floats,
                const std::function<void(const BackwardChunk&)>& run) {
  const std::vector<int64_t>& owners = problem.owner == Owner::image ? active.images : active.captions;
  std::vector<int64_t> order(active.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return owners[a] < owners[b]; });
  BackwardChunk chunk;
  int64_t held = 0;
  const auto flush = [&] {
    if (chunk.grads.empty()) return;
    chunk.plan = plan_pairs(chunk.pairs, problem.images.count, problem.captions.count, problem.owner, true);
    run(chunk);
    chunk = BackwardChunk{};
    held = 0;
  };
  for (const int64_t k : order) {
    const int64_t size = floats(active.images[k], active.captions[k]);
    if (held + size > kChunkFloats) flush();
    chunk.pairs.images.push_back(active.images[k]);
    chunk.pairs.captions.push_back(active.captions[k]);
    chunk.grads.push_back(grads[k]);
    held += size;
  }
  flush();
}

// All pairs, by ranges of images × ranges of captions.
void run_all(const BackwardProblem& problem, const std::function<int64_t(int64_t, int64_t)>& floats,
             const std::function<void(const BackwardChunk&)>& run) {
  int64_t longest_image = 0, longest_caption = 0;
  for (int64_t i = 1; i < problem.images.count; ++i) {
    if (problem.images.lengths[i] > problem.images.lengths[longest_image]) longest_image = i;
  }
  for (int64_t c = 1; c < problem.captions.count; ++c) {
    if (problem.captions.lengths[c] > problem.captions.lengths[longest_caption]) longest_caption = c;
  }
  const int64_t pairs = std::max<int64_t>(1, kChunkFloats / floats(longest_image, longest_caption));
  const int64_t n_images = std::min(problem.images.count, std::max<int64_t>(1, std::min<int64_t>(pairs, 128)));
  const int64_t n_captions = std::max<int64_t>(1, pairs / n_images);
  for (int64_t i = 0; i < problem.images.count; i += n_images) {
    for (int64_t c = 0; c < problem.captions.count; c += n_captions) {
      const Range images{i, std::min(i + n_images, problem.images.count)};
      const Range captions{c, std::min(c + n_captions, problem.captions.count)};
      BackwardChunk chunk;
      for (int64_t image = images.begin; image < images.end; ++image) {
        for (int64_t caption = captions.begin; caption < captions.end; ++caption) {
          chunk.pairs.images.push_back(image);
          chunk.pairs.captions.push_back(caption);
          chunk.grads.push_back(problem.grad_scores[image * problem.captions.count + caption]);
        }
      }
      chunk.plan =
          plan_all(problem.images, problem.captions, problem.limits, images, captions, thread_count(), &problem.owner);
      run(chunk);
    }
  }
}

}  // namespace

void for_each_backward_chunk(const BackwardProblem& problem, const std::function<int64_t(int64_t, int64_t)>& floats,
                             const std::function<void(const BackwardChunk&)>& run) {
  const int64_t all = problem.images.count * problem.captions.count;
  if (problem.pairs == nullptr) {
    const int64_t zeros = std::count(problem.grad_scores, problem.grad_scores + all, 0.0f);
    // Listed pairs cost up to half as much again each: a rectangle of one item packs the other side for itself alone.
    if (3 * zeros < all) return run_all(problem, floats, run);
  }
  std::vector<float> grads;
  const Pairs active = active_pairs(problem, grads);
  run_listed(problem, active, grads, floats, run);
}

}  // namespace crossret
