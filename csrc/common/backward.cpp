#include "common/backward.h"

#include <algorithm>

#include "common/parallel.h"

namespace crossret {

namespace {

constexpr int64_t kChunkFloats = 8 * 1024 * 1024;  // 32 MiB between the passes

// Gathers pairs in the order they come and runs a chunk whenever one is full.
class Gatherer {
 public:
  Gatherer(const BackwardProblem& problem, const std::function<void(const BackwardChunk&)>& run)
      : problem_(problem), run_(run) {}

  void add(int64_t image, int64_t caption, float grad) {
    if (grad == 0.0f) return;
    const int64_t owner = problem_.owner == Owner::image ? image : caption;
    // An owner that comes again later is counted again: the bound holds in any order.
    const int64_t floats =
        problem_.pair_floats(image, caption) + (owner == last_owner_ ? 0 : problem_.item_floats(owner));
    if (chunk_.pairs.size() == kPlannedPairs || (chunk_.pairs.size() > 0 && held_ + floats > kChunkFloats)) flush();
    chunk_.pairs.add(image, caption);
    chunk_.grads.push_back(grad);
    held_ += floats;
    last_owner_ = owner;
  }

  void flush() {
    if (chunk_.pairs.size() > 0) {
      chunk_.plan = plan_pairs(chunk_.pairs, problem_.images.count, problem_.captions.count, problem_.owner, true);
      run_(chunk_);
    }
    chunk_ = BackwardChunk{};
    held_ = 0;
    last_owner_ = -1;
  }

 private:
  const BackwardProblem& problem_;
  const std::function<void(const BackwardChunk&)>& run_;
  BackwardChunk chunk_;
  int64_t held_ = 0;
  int64_t last_owner_ = -1;
};

int64_t longest_item(const Side& side) {
  return std::max_element(side.lengths, side.lengths + side.count) - side.lengths;
}

// All pairs, by ranges of images × ranges of captions.
void run_all(const BackwardProblem& problem, const std::function<void(const BackwardChunk&)>& run) {
  const Side &images = problem.images, &captions = problem.captions;
  const int64_t image = longest_item(images), caption = longest_item(captions);
  const int64_t pair = problem.pair_floats(image, caption);
  const int64_t per_image = problem.owner == Owner::image ? problem.item_floats(image) : 0;
  const int64_t per_caption = problem.owner == Owner::caption ? problem.item_floats(caption) : 0;
  const int64_t n_images = std::clamp<int64_t>(kChunkFloats / 2 / (per_image + per_caption + pair), 1, 128);
  const int64_t n_captions = std::clamp<int64_t>(
      (kChunkFloats - n_images * per_image) / (n_images * pair + per_caption), 1, kPlannedPairs / n_images);
  for (int64_t i = 0; i < images.count; i += n_images) {
    for (int64_t c = 0; c < captions.count; c += n_captions) {
      const Range rows{i, std::min(i + n_images, images.count)};
      const Range columns{c, std::min(c + n_captions, captions.count)};
      BackwardChunk chunk;
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          chunk.pairs.add(row, column);
          chunk.grads.push_back(problem.grad_scores[row * captions.count + column]);
        }
      }
      chunk.plan = plan_all(images, captions, problem.limits, rows, columns, thread_count(), problem.owner, true);
      run(chunk);
    }
  }
}

}  // namespace

void for_each_backward_chunk(const BackwardProblem& problem, const std::function<void(const BackwardChunk&)>& run) {
  const int64_t n_images = problem.images.count, n_captions = problem.captions.count;
  Gatherer gatherer(problem, run);
  if (problem.pairs != nullptr) {
    for (int64_t k = 0; k < problem.pairs->count; ++k) {
      gatherer.add(problem.pairs->image(k), problem.pairs->caption(k), problem.grad_scores[k]);
    }
    return gatherer.flush();
  }
  const int64_t zeros = std::count(problem.grad_scores, problem.grad_scores + n_images * n_captions, 0.0f);
  // Listed pairs cost up to half as much again each: a rectangle of one item packs the other side for itself alone.
  if (3 * zeros < n_images * n_captions) return run_all(problem, run);
  const bool by_image = problem.owner == Owner::image;
  for (int64_t own = 0; own < (by_image ? n_images : n_captions); ++own) {
    for (int64_t other = 0; other < (by_image ? n_captions : n_images); ++other) {
      const int64_t image = by_image ? own : other, caption = by_image ? other : own;
      gatherer.add(image, caption, problem.grad_scores[image * n_captions + caption]);
    }
  }
  gatherer.flush();
}

void run_rectangles(const BackwardChunk& chunk, int64_t bytes,
                    const std::function<void(const Rectangle&, Workspace&)>& run) {
  parallel(static_cast<int64_t>(chunk.plan.rectangles.size()), bytes,
           [&](int64_t item, Workspace& memory) { run(chunk.plan.rectangles[item], memory); });
}

void run_feature_gradients(const BackwardProblem& problem, const BackwardChunk& chunk, float* image_gradients,
                           float* caption_gradients, int64_t bytes, const FeatureGradients& run) {
  for (const bool of_images : {true, false}) {
    float* gradients = of_images ? image_gradients : caption_gradients;
    if (gradients == nullptr) continue;
    const Side& own = of_images ? problem.images : problem.captions;
    const ItemPairsPlan items = plan_items(chunk.pairs, own.count, of_images ? Owner::image : Owner::caption);
    const ItemPairs jobs = items.view();
    const int64_t slices = (own.dim + kSlice - 1) / kSlice;
    parallel(jobs.count * slices, bytes, [&](int64_t item, Workspace& memory) {
      run(of_images, jobs, item / slices, item % slices * kSlice, gradients, memory);
    });
  }
}

}  // namespace crossret
