#include "maxsim/cpu.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "common/backward.h"
#include "common/forward.h"
#include "common/parallel.h"

namespace crossret {

namespace {

Owner owner_of(const MaxSimCall& call) { return call.direction == Direction::t2i ? Owner::image : Owner::caption; }

const Side& contexts(const MaxSimCall& call) { return call.direction == Direction::t2i ? call.images : call.captions; }

const Side& queries(const MaxSimCall& call) { return call.direction == Direction::t2i ? call.captions : call.images; }

int64_t query_count(const MaxSimCall& call, int64_t image, int64_t caption) {
  return queries(call).lengths[call.direction == Direction::t2i ? caption : image];
}

void limit(MaxSimCall& call) {
  constexpr int64_t panel_floats = 144 * 1024;  // somewhat over half of a second-level cache
  constexpr int64_t held_floats = 64 * 1024;
  call.limits = plan_limits(contexts(call), queries(call));
  call.columns =
      std::min(call.limits.columns, std::clamp<int64_t>(panel_floats / call.images.dim / kPad * kPad, kPad, 4096));
  call.held = call.limits.columns == call.columns ? call.columns : std::max(call.limits.columns, held_floats);
  call.first_context = 0;
  call.last_context = std::numeric_limits<int64_t>::max();
}

// Runs a kernel over every pair.
void run(void (*kernel)(const MaxSimCall&, const Rectangle&, Workspace&), int64_t bytes, const MaxSimCall& call,
         const PairList* pairs) {
  // Of listed pairs those of one query item go together: it is packed once.
  const bool by_image = (owner_of(call) == Owner::image) == (pairs == nullptr);
  run_forward(call.images, call.captions, call.limits, by_image ? Owner::image : Owner::caption, pairs, bytes,
              [&](const Rectangle& rectangle, int64_t first, Workspace& memory) {
                MaxSimCall part = call;
                if (part.scores) part.scores += first;
                if (part.argmax) part.argmax += first * call.argmax_row;
                kernel(part, rectangle, memory);
              });
}

// One context item against some query items, that are in slots first_slot, first_slot + slot_step, …
struct Job {
  int64_t context;
  std::vector<int64_t> queries;
  int64_t first_slot, slot_step;
};

std::vector<Job> jobs_of(const MaxSimCall& call, const PairList* pairs) {
  const bool t2i = call.direction == Direction::t2i;
  std::vector<Job> jobs;
  for (int64_t k = 0; pairs != nullptr && k < pairs->count; ++k) {
    const int64_t image = pairs->image(k), caption = pairs->caption(k);
    jobs.push_back({t2i ? image : caption, {t2i ? caption : image}, k, 0});
  }
  if (pairs != nullptr) return jobs;
  std::vector<int64_t> all(queries(call).count);
  std::iota(all.begin(), all.end(), 0);
  const int64_t row = call.captions.count;
  for (int64_t k = 0; k < contexts(call).count; ++k) jobs.push_back({k, all, t2i ? k * row : k, t2i ? 1 : row});
  return jobs;
}

// Few items of many contexts: cuts each item's contexts into parts, so that no thread waits for another's item, and
// merges what the parts found. False where there are items enough, or too little to cut.
bool score_parts(const MaxSimKernels& kernels, const MaxSimCall& call, const PairList* pairs) {
  constexpr int64_t least_work = 1 << 20;  // multiply-adds of a part: far more than it costs to hand it out …
  constexpr int64_t least_rows = 64;       // … and contexts: more than it costs to pack the queries
  constexpr int64_t most_values = 1 << 22;
  const int64_t threads = thread_count();
  const int64_t n_jobs = pairs ? pairs->count : contexts(call).count;
  if (threads == 1 || n_jobs > 16 * threads || (pairs == nullptr && n_jobs * queries(call).count > most_values)) {
    return false;
  }
  struct Part {
    int64_t job, first, last, values;
  };
  const std::vector<Job> jobs = jobs_of(call, pairs);
  std::vector<Part> parts;
  int64_t n_values = 0;
  for (int64_t k = 0; k < n_jobs; ++k) {
    int64_t n = 0;
    for (const int64_t query : jobs[k].queries) n += queries(call).lengths[query];
    const int64_t rows = contexts(call).lengths[jobs[k].context];
    const int64_t worth = std::min(rows / least_rows, rows * n * call.images.dim / least_work);
    const int64_t wanted = std::clamp<int64_t>(worth, 1, 4 * threads), step = (rows + wanted - 1) / wanted;
    for (int64_t first = 0; first < rows; first += step, n_values += n) {
      parts.push_back({k, first, first + step, n_values});
    }
  }
  const int64_t n_parts = static_cast<int64_t>(parts.size());
  if (n_parts == n_jobs || n_values > most_values) return false;
  std::vector<float> values(n_values);
  Memory workspaces;
  const double work = least_work * static_cast<double>(n_parts);
  parallel(n_parts, work, kernels.score_bytes(call), workspaces, [&](int64_t index, Workspace& memory) {
    const Part& part = parts[index];
    const Job& job = jobs[part.job];
    const int64_t n = static_cast<int64_t>(job.queries.size());
    MaxSimCall cut = call;
    cut.first_context = part.first;
    cut.last_context = part.last;
    const Rectangle pairs_of_job = call.direction == Direction::t2i
                                       ? Rectangle{&job.context, 1, job.queries.data(), n, nullptr, 0, 0}
                                       : Rectangle{job.queries.data(), n, &job.context, 1, nullptr, 0, 0};
    kernels.best(cut, pairs_of_job, values.data() + part.values, memory);
  });
  for (int64_t p = 0; p < n_parts;) {
    const Job& job = jobs[parts[p].job];
    float* best = values.data() + parts[p].values;
    const int64_t first = p++;
    for (; p < n_parts && parts[p].job == parts[first].job; ++p) {
      const float* others = values.data() + parts[p].values;
      const int64_t n = parts[first + 1].values - parts[first].values;
      for (int64_t q = 0; q < n; ++q) best[q] = others[q] > best[q] || others[q] != others[q] ? others[q] : best[q];
    }
    int64_t slot = job.first_slot;
    for (const int64_t query : job.queries) {
      const int64_t n = queries(call).lengths[query];
      call.scores[slot] = kernels.pool(best, n, call.pooling);
      best += n;
      slot += job.slot_step;
    }
  }
  return true;
}

void run_chunk(const MaxSimKernels& kernels, const MaxSimCall& call, const BackwardProblem& problem,
               const BackwardChunk& chunk) {
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
      problem, chunk, kernels.feature_bytes(call),
      [&](bool of_images, const ItemPairs& jobs, const JobGroup& group, int64_t column, Workspace& memory) {
        kernels.feature_gradients(call, kept, of_images, jobs, group, column, memory);
      });
}

}  // namespace

void score_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs) {
  limit(call);
  if (!score_parts(kernels, call, pairs)) run(kernels.forward, kernels.score_bytes(call), call, pairs);
}

void argmax_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs) {
  limit(call);
  run(kernels.argmax, kernels.score_bytes(call), call, pairs);
}

void differentiate_maxsim(const MaxSimKernels& kernels, MaxSimCall call, const PairList* pairs,
                          const ScoreGradients& grads, SideGradient& image_gradient, SideGradient& caption_gradient) {
  limit(call);
  const BackwardProblem problem{call.images,
                                call.captions,
                                call.limits,
                                owner_of(call),
                                pairs,
                                grads,
                                image_gradient,
                                caption_gradient,
                                [&](int64_t image, int64_t caption) { return 2 * query_count(call, image, caption); },
                                [](int64_t) { return 0; }};
  run_backward(problem, [&](const BackwardChunk& chunk) { run_chunk(kernels, call, problem, chunk); });
}

}  // namespace crossret
