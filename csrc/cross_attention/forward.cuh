// Scores of stacked cross attention in CUDA: a block takes a job, or some listed pairs.
#pragma once
#include "cross_attention/attention.cuh"

namespace crossret {
namespace gpu {

// Scores of all pairs, contexts c and queries q at c · context_stride + q · query_stride; or of listed pairs in order.
struct Scores {
  Global<float> at;
  int64_t context_stride, query_stride;
};

struct ListedPairs {
  Global<const int64_t> items;  // (pairs, 2): items of contexts and of queries
  Global<const int64_t> order;  // (pairs): places of the pairs sorted by their items of contexts
  int64_t count;                // 0 where all pairs are scored
  int a_block;                  // pairs of a block
};

// The jobs of a block: successive blocks take one of queries with eight of contexts, so that they share rows in the L2
// cache.
struct JobNumbers {
  int query, context;

  CROSSRET_DEVICE static JobNumbers of(int number, int n_queries, int n_contexts) {
    constexpr int shared_by = 8;
    const int first = number / (shared_by * n_queries) * shared_by;
    const int left = n_contexts - first, wide = left < shared_by ? left : shared_by;
    const int within = number - first * n_queries;
    return {within / wide, first + within % wide};
  }
};

template <class Shape, class Arithmetic, bool usual>
class AttendBlock : protected AttentionTile<Shape, Arithmetic, false, usual> {
  using Tile = AttentionTile<Shape, Arithmetic, false, usual>;

 public:
  CROSSRET_DEVICE AttendBlock(const AttentionProblem& problem, const ListedPairs& pairs, const Scores& scores)
      : Tile(problem), pairs_(pairs), scores_(scores) {}

  // Scores one job, or some listed pairs.
  CROSSRET_DEVICE void run() const {
    const int64_t first = int64_t{block_x()} * pairs_.a_block;
    const int64_t end = first + pairs_.a_block < pairs_.count ? first + pairs_.a_block : pairs_.count;
    int64_t pair = first;
    do {
      Job job{};
      if (pairs_.count != 0) {
        choose_listed(job, pair, end);
      } else {
        const JobNumbers numbers = JobNumbers::of(block_x(), problem_.n_query_jobs, problem_.n_context_jobs);
        this->describe_queries(job, numbers.query);
        this->choose_contexts(job, numbers.context);
      }
      score(job, pair);
      pair += job.n_queries;
      sync_block();
    } while (pair < end);
  }

 protected:
  using Tile::at_, Tile::options_, Tile::problem_, Tile::floats, Tile::ints;

  // Pairs of one item of contexts from `pair` on, as many as fit.
  CROSSRET_DEVICE void choose_listed(Job& job, int64_t pair, int64_t end) const {
    const int lane = thread_index() % kWarp;
    const bool there = lane < problem_.most_queries && pair + lane < end;
    const int64_t place = load(pairs_.order, there ? pair + lane : pair);
    const int context = static_cast<int>(load(pairs_.items, 2 * place));
    const int query = static_cast<int>(load(pairs_.items, 2 * place + 1));
    const PackedItem item = load(problem_.queries.items, query);
    const int rows = this->sum_so_far(there ? item.count : 0);
    job.first_context = shuffle(context, 0), job.n_contexts = 1;
    const bool fits = there && context == job.first_context && (lane == 0 || rows <= Shape::rows);
    job.n_queries = first_one(~ballot(fits));
    if (thread_index() < job.n_queries) this->describe_query(job, lane, item, rows - item.count);
  }

  // `first_pair` is the place in the order of the first listed pair.
  CROSSRET_DEVICE void score(Job& job, int64_t first_pair) const {
    this->describe_contexts(job);
    this->sync();
    this->count_rows(job);
    // An item in pieces takes two passes: norms, then relevances.
    const bool measured = this->in_pieces(job) && this->norm() != Norm::none;
    Pooled pooled;
    for (int pass = measured ? 0 : 1; pass < 2; ++pass) {
      for (int begin = 0; begin == 0 || begin < job.n_rows; begin += Shape::rows) {  // items may be empty
        this->make_similarities(job, begin);
        if (pass == 0 || (!measured && begin == 0)) this->measure(job, begin);
        if (pass == 0) continue;
        if (begin == 0) this->finish_factors(job);
        this->attend(job, begin);
        this->sync();
        this->pool(job, begin, pooled, [&](int query, int context, const Pooled& all) {
          store_score(job, first_pair, query, context, all);
        });
      }
    }
  }

  CROSSRET_DEVICE void store_score(const Job& job, int64_t first_pair, int query, int context,
                                   const Pooled& pooled) const {
    const int count = ints(at_.query_begins)[query + 1] - ints(at_.query_begins)[query];
    const bool empty = count == 0 || ints(at_.context_begins)[context + 1] == ints(at_.context_begins)[context];
    const bool broken = (ints(at_.context_flags)[context] & kBroken) != 0;
    const float score = empty ? options_.empty_score : broken ? NAN : pooled.score(options_, count);
    if (pairs_.count != 0) {
      store(scores_.at, load(pairs_.order, first_pair + query), score);
    } else {
      store(scores_.at,
            (job.first_context + context) * scores_.context_stride + (job.first_query + query) * scores_.query_stride,
            score);
    }
  }

  const ListedPairs& pairs_;
  const Scores& scores_;
};

template <class Shape, class Arithmetic, bool usual>
CROSSRET_KERNEL(Shape::threads, Shape::blocks)
attend(CROSSRET_PARAMETER AttentionProblem problem, CROSSRET_PARAMETER ListedPairs pairs,
       CROSSRET_PARAMETER Scores scores) {
  const AttendBlock<Shape, Arithmetic, usual> block(problem, pairs, scores);
  block.run();
}

}  // namespace gpu
}  // namespace crossret
