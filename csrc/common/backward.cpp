#include "common/backward.h"

#include <algorithm>
#include <utility>

#include "common/parallel.h"

namespace crossret {

namespace {

// 16 MiB for what is kept of a chunk's pairs and, besides, the sums of gradients that are returned in half precision;
// the sums get half of it at most.
constexpr int64_t kHeldFloats = 4 * 1024 * 1024;
constexpr int64_t kSummedFloats = kHeldFloats / 2;
constexpr int64_t kPlanFloats = 80;  // what a pair takes at most in the lists and plans of its chunk

// Calls run for chunks of pairs within two ranges of items; a chunk holds at most `floats`.
class Chunks {
 public:
  Chunks(const BackwardProblem& problem, Range images, Range captions, int64_t floats, BackwardMemory& memory,
         const std::function<void(const BackwardChunk&)>& run)
      : problem_(problem), images_(images), captions_(captions), floats_(floats), memory_(memory), run_(run) {}

  void run() {
    if (problem_.pairs != nullptr) return run_listed();
    int64_t zeros = 0;
    for (int64_t i = images_.begin; i < images_.end; ++i) {
      for (int64_t c = captions_.begin; c < captions_.end; ++c) zeros += problem_.grads.of(i, c) == 0.0f;
    }
    // Listed pairs cost up to half as much again each: a rectangle of one item packs the other side for itself alone.
    const int64_t count = (images_.end - images_.begin) * (captions_.end - captions_.begin);
    return 3 * zeros < count ? run_all() : run_nonzero();
  }

 private:
  void run_listed() {
    for (int64_t k = 0; k < problem_.pairs->count; ++k) {
      const int64_t image = problem_.pairs->image(k), caption = problem_.pairs->caption(k);
      if (images_.contains(image) && captions_.contains(caption)) gather(image, caption, problem_.grads.of_pair(k));
    }
    flush();
  }

  void run_nonzero() {
    const bool by_image = problem_.owner == Owner::image;
    const Range owners = by_image ? images_ : captions_, others = by_image ? captions_ : images_;
    for (int64_t own = owners.begin; own < owners.end; ++own) {
      for (int64_t other = others.begin; other < others.end; ++other) {
        const int64_t image = by_image ? own : other, caption = by_image ? other : own;
        gather(image, caption, problem_.grads.of(image, caption));
      }
    }
    flush();
  }

  // All pairs, by ranges of images × ranges of captions.
  void run_all() {
    const Side &images = problem_.images, &captions = problem_.captions;
    const int64_t image = longest_item(images), caption = longest_item(captions);
    const int64_t pair = problem_.pair_floats(image, caption) + kPlanFloats;
    const int64_t per_image = problem_.owner == Owner::image ? problem_.item_floats(image) : 0;
    const int64_t per_caption = problem_.owner == Owner::caption ? problem_.item_floats(caption) : 0;
    const int64_t n_images = std::clamp<int64_t>(floats_ / 2 / (per_image + per_caption + pair), 1, 128);
    const int64_t n_captions = std::max<int64_t>((floats_ - n_images * per_image) / (n_images * pair + per_caption), 1);
    for (int64_t i = images_.begin; i < images_.end; i += n_images) {
      for (int64_t c = captions_.begin; c < captions_.end; c += n_captions) {
        const Range rows{i, std::min(i + n_images, images_.end)};
        const Range columns{c, std::min(c + n_captions, captions_.end)};
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          for (int64_t column = columns.begin; column < columns.end; ++column) {
            chunk_.pairs.add(row, column);
            chunk_.grads.push_back(problem_.grads.of(row, column));
          }
        }
        const int64_t threads = worthwhile_threads(product_work(images, captions, chunk_.pairs));
        run_chunk(plan_all(images, captions, problem_.limits, rows, columns, threads, problem_.owner, true));
      }
    }
  }

  // Takes pairs in the order they come and runs a chunk whenever one is full.
  void gather(int64_t image, int64_t caption, float grad) {
    if (grad == 0.0f) return;
    const int64_t owner = problem_.owner == Owner::image ? image : caption;
    // An owner that comes again later is counted again: the bound holds in any order.
    const int64_t floats =
        problem_.pair_floats(image, caption) + kPlanFloats + (owner == last_owner_ ? 0 : problem_.item_floats(owner));
    if (held_ + floats > floats_) {
      memory_.kept_at_once = floats_;
      flush();
    }
    chunk_.pairs.add(image, caption);
    chunk_.grads.push_back(grad);
    held_ += floats;
    last_owner_ = owner;
  }

  void flush() {
    if (chunk_.pairs.size() > 0) run_chunk(plan_pairs(chunk_.pairs, problem_.owner, true));
    held_ = 0;
    last_owner_ = -1;
  }

  void run_chunk(Plan plan) {
    chunk_.memory = &memory_;
    chunk_.work = product_work(problem_.images, problem_.captions, chunk_.pairs);
    chunk_.plan = std::move(plan);
    chunk_.by_image = plan_items(chunk_.pairs, Owner::image);
    chunk_.by_caption = plan_items(chunk_.pairs, Owner::caption);
    run_(chunk_);
    chunk_ = BackwardChunk{};
  }

  static int64_t longest_item(const Side& side) {
    return std::max_element(side.lengths, side.lengths + side.count) - side.lengths;
  }

  const BackwardProblem& problem_;
  const Range images_, captions_;
  const int64_t floats_;
  BackwardMemory& memory_;
  const std::function<void(const BackwardChunk&)>& run_;
  BackwardChunk chunk_;
  int64_t held_ = 0;
  int64_t last_owner_ = -1;
};

// Successive jobs with the same partners, as all pairs have: what is prepared of a partner then serves the whole group.
// Groups stay small where threads would idle.
std::vector<Range> group_jobs(const Side& side, const ItemPairs& jobs, int64_t slices, int64_t threads) {
  const int64_t most = std::clamp<int64_t>(jobs.count * slices / (4 * threads), 1, kGroupJobs);
  const auto same_partners = [&](int64_t a, int64_t b) {
    const int64_t *first = jobs.partners + jobs.offsets[a], *last = jobs.partners + jobs.offsets[a + 1];
    return std::equal(first, last, jobs.partners + jobs.offsets[b], jobs.partners + jobs.offsets[b + 1]);
  };
  std::vector<Range> groups;
  int64_t rows = 0;
  for (int64_t job = 0; job < jobs.count; ++job) {
    const int64_t n = side.lengths[jobs.items[job]];
    rows += n;
    if (groups.empty() || groups.back().end - groups.back().begin == most || rows > kGroupRows ||
        !same_partners(groups.back().begin, job)) {
      groups.push_back({job, job});
      rows = n;
    }
    groups.back().end = job + 1;
  }
  return groups;
}

}  // namespace

void run_backward(const BackwardProblem& problem, const std::function<void(const BackwardChunk&)>& run) {
  SideGradient &of_images = problem.image_gradient, &of_captions = problem.caption_gradient;
  if (!of_images.wanted() && !of_captions.wanted()) return;
  BackwardMemory memory;
  // Sums `side` range by range, over all pairs of each range.
  const auto run_ranges = [&](SideGradient& side, int64_t held, int64_t floats) {
    for (const Range& range : side.ranges(floats)) {
      side.begin(range);
      const Range images = &side == &of_images ? range : Range{0, problem.images.count};
      const Range captions = &side == &of_captions ? range : Range{0, problem.captions.count};
      Chunks(problem, images, captions, kHeldFloats - held - std::min(floats, side.floats()), memory, run).run();
      side.finish();
    }
  };
  SideGradient& smaller = of_images.floats() < of_captions.floats() ? of_images : of_captions;
  SideGradient& larger = &smaller == &of_images ? of_captions : of_images;
  if (smaller.floats() <= kSummedFloats / 2) {
    smaller.begin({0, &smaller == &of_images ? problem.images.count : problem.captions.count});
    run_ranges(larger, smaller.floats(), kSummedFloats - smaller.floats());
    smaller.finish();
  } else {
    run_ranges(smaller, 0, kSummedFloats);
    run_ranges(larger, 0, kSummedFloats);
  }
}

void run_rectangles(const BackwardChunk& chunk, int64_t bytes,
                    const std::function<void(const Rectangle&, Workspace&)>& run) {
  parallel(static_cast<int64_t>(chunk.plan.rectangles.size()), chunk.work, bytes, chunk.memory->workspaces,
           [&](int64_t item, Workspace& memory) { run(chunk.plan.rectangles[item], memory); });
}

void run_feature_gradients(const BackwardProblem& problem, const BackwardChunk& chunk, int64_t bytes,
                           const FeatureGradients& run) {
  for (const bool of_images : {true, false}) {
    const SideGradient& gradient = of_images ? problem.image_gradient : problem.caption_gradient;
    if (!gradient.begun()) continue;
    const ItemPairs jobs = (of_images ? chunk.by_image : chunk.by_caption).view();
    const int64_t slices = (problem.images.dim + kSlice - 1) / kSlice;
    const std::vector<Range> groups =
        group_jobs(of_images ? problem.images : problem.captions, jobs, slices, worthwhile_threads(chunk.work));
    const int64_t count = static_cast<int64_t>(groups.size()) * slices;
    parallel(count, chunk.work, bytes, chunk.memory->workspaces, [&](int64_t item, Workspace& memory) {
      const Range& group = groups[item / slices];
      float* sums[kGroupJobs];
      for (int64_t k = group.begin; k < group.end; ++k) sums[k - group.begin] = gradient.rows(jobs.items[k]);
      run(of_images, jobs, {group.begin, group.end - group.begin, sums}, item % slices * kSlice, memory);
    });
  }
}

}  // namespace crossret
