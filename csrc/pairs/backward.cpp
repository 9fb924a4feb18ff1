#include "pairs/backward.h"

#include <algorithm>
#include <utility>

#include "pairs/parallel.h"

namespace crossret {

namespace {

// 32 MiB for what is kept of a chunk's pairs and for float32 sums of gradients in half precision, at most half of it.
constexpr int64_t kHeldFloats = 8 * 1024 * 1024;
constexpr int64_t kSummedFloats = kHeldFloats / 2;
constexpr int64_t kPlanFloats = 80;  // of a pair in the lists and plans of its chunk, at most

// Items of a part where `items` are cut into the fewest even parts of at most `most`, or of one.
int64_t even_part(int64_t items, int64_t most) {
  const int64_t parts = (items - 1) / std::max<int64_t>(most, 1) + 1;
  return (items - 1) / parts + 1;
}

// Calls run for chunks of pairs of two ranges of items; a chunk keeps at most `floats`.
class Chunks {
 public:
  Chunks(const BackwardProblem& problem, Range contexts, Range queries, int64_t floats, BackwardMemory& memory,
         const std::function<void(const BackwardChunk&)>& run)
      : problem_(problem), contexts_(contexts), queries_(queries), floats_(floats), memory_(memory), run_(run) {}

  void run() {
    if (problem_.pairs != nullptr) return run_listed();
    int64_t zeros = 0;
    for (int64_t c = contexts_.begin; c < contexts_.end; ++c) {
      for (int64_t q = queries_.begin; q < queries_.end; ++q) zeros += problem_.grads.of(c, q) == 0.0f;
    }
    // A listed pair costs up to 1.5 times as much: a rectangle of one item packs the other side for itself.
    const int64_t count = (contexts_.end - contexts_.begin) * (queries_.end - queries_.begin);
    return 3 * zeros < count ? run_all() : run_nonzero();
  }

 private:
  void run_listed() {
    for (int64_t k = 0; k < problem_.pairs->count; ++k) {
      const int64_t context = problem_.pairs->context(k), query = problem_.pairs->query(k);
      if (contexts_.contains(context) && queries_.contains(query)) gather(context, query, problem_.grads.of_pair(k), k);
    }
    flush();
  }

  void run_nonzero() {
    for (int64_t c = contexts_.begin; c < contexts_.end; ++c) {
      for (int64_t q = queries_.begin; q < queries_.end; ++q) gather(c, q, problem_.grads.of(c, q), 0);
    }
    flush();
  }

  // Takes all pairs, by ranges of contexts × ranges of queries.
  void run_all() {
    const Operands& operands = problem_.operands;
    const int64_t context = longest_item(operands.contexts), query = longest_item(operands.queries);
    const int64_t pair = problem_.pair_floats(context, query) + kPlanFloats;
    const int64_t per_context = problem_.context_floats(context);
    // A chunk has all of the side with fewer rows, where they fit, which is packed again for every chunk.
    const int64_t all_contexts = contexts_.end - contexts_.begin, all_queries = queries_.end - queries_.begin;
    int64_t n_contexts = all_contexts, n_queries = all_queries;
    if (operands.contexts.rows < operands.queries.rows) {
      n_contexts = std::clamp<int64_t>(floats_ / 4 / (per_context + pair), 1, all_contexts);
      n_queries = even_part(all_queries, (floats_ - n_contexts * per_context) / (n_contexts * pair));
    } else {
      n_queries = std::clamp<int64_t>((floats_ / 4 - per_context) / pair, 1, all_queries);
      n_contexts = even_part(all_contexts, floats_ / (per_context + n_queries * pair));
    }
    for (int64_t c = contexts_.begin; c < contexts_.end; c += n_contexts) {
      for (int64_t q = queries_.begin; q < queries_.end; q += n_queries) {
        const Range rows{c, std::min(c + n_contexts, contexts_.end)};
        const Range columns{q, std::min(q + n_queries, queries_.end)};
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          for (int64_t column = columns.begin; column < columns.end; ++column) {
            chunk_.pairs.add(row, column, chunk_.pairs.size());
            chunk_.grads.push_back(problem_.grads.of(row, column));
          }
        }
        Plan plan = plan_all(operands, rows, columns);
        for (Rectangle& all : plan.rectangles) {
          all.context_stride = columns.end - columns.begin;
          all.query_stride = 1;
          all.first_slot = rows.begin * all.context_stride + columns.begin;
        }
        run_chunk(std::move(plan));
      }
    }
  }

  // Adds a pair and runs the chunk when it is full.
  void gather(int64_t context, int64_t query, float grad, int64_t place) {
    const Operands& operands = problem_.operands;
    if (grad == 0.0f || operands.contexts.length(context) == 0 || operands.queries.length(query) == 0) return;
    const int64_t pair = problem_.pair_floats(context, query) + kPlanFloats, own = problem_.context_floats(context);
    // A context that returns later is counted again, so that the bound holds in any order.
    if (held_ + pair + (context == last_context_ ? 0 : own) > floats_) {
      memory_.kept_at_once = floats_;
      flush();
    }
    chunk_.pairs.add(context, query, chunk_.pairs.size());
    chunk_.grads.push_back(grad);
    chunk_.places.push_back(place);
    held_ += pair + (context == last_context_ ? 0 : own);
    last_context_ = context;
  }

  void flush() {
    if (chunk_.pairs.size() > 0) run_chunk(plan_pairs(problem_.operands, chunk_.pairs, Owner::context, true));
    held_ = 0;
    last_context_ = -1;
  }

  void run_chunk(Plan plan) {
    chunk_.memory = &memory_;
    chunk_.work = product_work(problem_.operands, chunk_.pairs);
    chunk_.plan = std::move(plan);
    chunk_.by_context = plan_items(problem_.operands, chunk_.pairs, Owner::context);
    chunk_.by_query = plan_items(problem_.operands, chunk_.pairs, Owner::query);
    run_(chunk_);
    chunk_ = BackwardChunk{};
  }

  static int64_t longest_item(const RaggedView& side) {
    const auto shorter = [](const Item& a, const Item& b) { return a.length < b.length; };
    return std::max_element(side.items, side.items + side.count, shorter) - side.items;
  }

  const BackwardProblem& problem_;
  const Range contexts_, queries_;
  const int64_t floats_;
  BackwardMemory& memory_;
  const std::function<void(const BackwardChunk&)>& run_;
  BackwardChunk chunk_;
  int64_t held_ = 0;
  int64_t last_context_ = -1;
};

// Groups of successive jobs with the same partners, packed once for the group; small ones where threads would idle.
std::vector<Range> group_jobs(const RaggedView& side, const ItemPairs& jobs, int64_t slices, int64_t threads) {
  const int64_t most = std::clamp<int64_t>(jobs.count * slices / (4 * threads), 1, kGroupJobs);
  const auto same_partners = [&](int64_t a, int64_t b) {
    const int64_t *first = jobs.partners + jobs.offsets[a], *last = jobs.partners + jobs.offsets[a + 1];
    return std::equal(first, last, jobs.partners + jobs.offsets[b], jobs.partners + jobs.offsets[b + 1]);
  };
  std::vector<Range> groups;
  int64_t rows = 0;
  for (int64_t job = 0; job < jobs.count; ++job) {
    const int64_t n = side.length(jobs.items[job]);
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
  SideGradient &of_contexts = problem.context_gradient, &of_queries = problem.query_gradient;
  const RaggedView &contexts = problem.operands.contexts, &queries = problem.operands.queries;
  if ((!of_contexts.wanted() && !of_queries.wanted()) || contexts.rows == 0 || queries.rows == 0) return;
  BackwardMemory memory;
  // Sums `side` range by range, over all pairs of each range.
  const auto run_ranges = [&](SideGradient& side, int64_t held, int64_t floats) {
    for (const Range& range : side.ranges(floats)) {
      side.begin(range);
      const Range own = &side == &of_contexts ? range : Range{0, contexts.count};
      const Range other = &side == &of_queries ? range : Range{0, queries.count};
      Chunks(problem, own, other, kHeldFloats - held - std::min(floats, side.floats()), memory, run).run();
      side.finish();
    }
  };
  SideGradient& smaller = of_contexts.floats() < of_queries.floats() ? of_contexts : of_queries;
  SideGradient& larger = &smaller == &of_contexts ? of_queries : of_contexts;
  if (smaller.floats() <= kSummedFloats / 2) {
    smaller.begin({0, &smaller == &of_contexts ? contexts.count : queries.count});
    run_ranges(larger, smaller.floats(), kSummedFloats - smaller.floats());
    smaller.finish();
  } else {
    run_ranges(smaller, 0, kSummedFloats);
    run_ranges(larger, 0, kSummedFloats);
  }
}

void run_pairs(const BackwardProblem& problem, const BackwardChunk& chunk, const Steps& steps) {
  if (chunk.plan.rectangles.size() == 1) {
    walk(problem.operands, chunk.plan.rectangles[0], steps, chunk.memory->walks);
  } else {
    walk_each(problem.operands, chunk.plan.rectangles, steps, chunk.memory->walks);
  }
}

void run_feature_gradients(const BackwardProblem& problem, const BackwardChunk& chunk, int64_t bytes,
                           const FeatureGradients& run) {
  for (const bool of_contexts : {true, false}) {
    const SideGradient& gradient = of_contexts ? problem.context_gradient : problem.query_gradient;
    if (!gradient.begun()) continue;
    const RaggedView& side = of_contexts ? problem.operands.contexts : problem.operands.queries;
    const ItemPairs jobs = (of_contexts ? chunk.by_context : chunk.by_query).view();
    const int64_t slices = (side.dim + kSlice - 1) / kSlice;
    const std::vector<Range> groups = group_jobs(side, jobs, slices, worthwhile_threads(chunk.work));
    const int64_t count = static_cast<int64_t>(groups.size()) * slices;
    parallel(count, chunk.work, bytes, chunk.memory->walks.workspaces, [&](int64_t item, Workspace& memory) {
      const Range& group = groups[item / slices];
      float* sums[kGroupJobs];
      for (int64_t k = group.begin; k < group.end; ++k) sums[k - group.begin] = gradient.rows(jobs.items[k]);
      run(of_contexts, jobs, {group.begin, group.end - group.begin, sums}, item % slices * kSlice, memory);
    });
  }
}

}  // namespace crossret
