// Scores of stacked cross attention on compute capability 9.0: most warps attend to a job's similarities while others
// copy and multiply the next one's rows (`cuda/warpgroups.cuh`).
//
// Blocks stay on their multiprocessors and take job after job. Both blocks of a cluster have one job of contexts, with
// successive ones of queries.
#pragma once
#include "cross_attention/forward.cuh"
#include "cuda/warpgroups.cuh"

namespace crossret {
namespace gpu {

template <class Shape, class Arithmetic>
class WarpgroupsBlock : AttendBlock<Shape, Arithmetic, true> {
  using Block = AttendBlock<Shape, Arithmetic, true>;
  using Block::at_, Block::problem_;

 public:
  CROSSRET_DEVICE WarpgroupsBlock(const AttentionProblem& problem, const ListedPairs& none, const Scores& scores)
      : Block(problem, none, scores), rank_(Shape::cluster > 1 ? cluster_rank() : 0) {}

  // Runs the block, by all its threads: each warp has one of three roles.
  CROSSRET_DEVICE void run(const TensorMap& queries, const TensorMap& contexts) const {
    Ring<Shape> ring(at_.ring, at_.barriers);
    if (thread_index() == 0) ring.init();
    sync_warp();
    sync_blocks();
    if (thread_index() >= Shape::multiplying) {
      take_registers<Shape::to_multiply>();
      multiply(ring);
    } else {
      give_registers<Shape::to_attend>();
      if (thread_index() < Shape::threads) {
        attend();
      } else if (thread_index() == Shape::copying) {
        copy(ring, queries, contexts);
      }
    }
    sync_warp();
    if (Shape::cluster > 1) sync_blocks();  // the other one copies into this block's memory, and arrives there
  }

 private:
  CROSSRET_DEVICE static void sync_blocks() {
    if constexpr (Shape::cluster > 1) {
      sync_cluster();
    } else {
      sync_block();
    }
  }

  // Calls take(jobs) for each of the block's; of a cluster's both, the last one's queries may not be there.
  template <class Take>
  CROSSRET_DEVICE void each_job(const Take& take) const {
    const int of_cluster = (problem_.n_query_jobs + Shape::cluster - 1) / Shape::cluster;
    const int64_t count = int64_t{of_cluster} * problem_.n_context_jobs;
    for (int64_t number = block_x() / Shape::cluster; number < count; number += blocks() / Shape::cluster) {
      JobNumbers jobs = JobNumbers::of(static_cast<int>(number), of_cluster, problem_.n_context_jobs);
      jobs.query = jobs.query * Shape::cluster + rank_;
      take(jobs);
    }
  }
  CROSSRET_DEVICE bool there(const JobNumbers& jobs) const { return jobs.query < problem_.n_query_jobs; }

  CROSSRET_DEVICE void attend() const {
    each_job([&](const JobNumbers& jobs) {
      if (!there(jobs)) return;
      Job job{};
      this->describe_queries(job, jobs.query);
      this->choose_contexts(job, jobs.context);
      this->score(job, 0);
      this->sync();
    });
  }

  CROSSRET_DEVICE void multiply(Ring<Shape>& ring) const {
    WarpgroupSums<Shape> sums;
    each_job([&](const JobNumbers& jobs) {
      multiply_tile<Shape, Arithmetic>(ring, sums, stages(), rank_);
      if (!there(jobs)) return;
      sync_named(kDescribed, Shape::exchanging);
      this->store_scaled(sums, 0, Shape::columns);
      sync_named(kStored, Shape::exchanging);
    });
  }

  CROSSRET_DEVICE void copy(Ring<Shape>& ring, const TensorMap& queries, const TensorMap& contexts) const {
    each_job([&](const JobNumbers& jobs) {
      const int query = there(jobs) ? jobs.query : problem_.n_query_jobs - 1;
      copy_tile<Shape>(ring, queries, load(problem_.queries.items, problem_.query_jobs.begin(query)).first, contexts,
                       load(problem_.contexts.items, problem_.context_jobs.begin(jobs.context)).first, stages(), rank_);
    });
  }

  CROSSRET_DEVICE int stages() const {
    constexpr int element = static_cast<int>(sizeof(typename Block::Element));
    return (problem_.dim * element + kBoxBytes - 1) / kBoxBytes;
  }

  int rank_;
};

template <class Shape, class Arithmetic>
CROSSRET_KERNEL(Shape::all_threads, Shape::blocks)
attend_by_warpgroups(CROSSRET_PARAMETER AttentionProblem problem, CROSSRET_PARAMETER Scores scores,
                     CROSSRET_PARAMETER TensorMap queries, CROSSRET_PARAMETER TensorMap contexts) {
#ifdef CROSSRET_HOPPER
  const ListedPairs none{};
  const WarpgroupsBlock<Shape, Arithmetic> block(problem, none, scores);
  block.run(queries, contexts);
#endif
}

}  // namespace gpu
}  // namespace crossret
