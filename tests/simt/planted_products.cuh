// Kernels that multiply rows by a pipeline of copies and products, each with a mistake that can be planted in it.
//
// A thread copies stages of 32 columns into a ring of two, a warpgroup multiplies them: (64, 96) times (16, 96), of
// which blocks of a cluster copy a part each to all of them.
#pragma once
#include "cuda/hopper.cuh"

namespace crossret {
namespace gpu {
namespace planted {

constexpr int kRows = 64, kColumns = 16, kDim = 96, kOfBox = 32, kStages = 2;
constexpr int kMultiplying = kWarpgroup, kPipelineThreads = kMultiplying + kWarp;
constexpr int kLeftBytes = kRows * kBoxBytes, kRightBytes = kColumns * kBoxBytes;
constexpr int kStageBytes = kLeftBytes + kRightBytes, kRingBytes = kStages * kStageBytes;
constexpr int kPipelineBytes = kRingBytes + 2 * kStages * 8;

struct ProductCall {
  bool planted;
  int cluster;
  TensorMap left, right;              // whose boxes have kRows and kColumns / cluster rows
  Global<const float> right_numbers;  // the same
  Global<float> out;                  // (64, 16) of each block
};

// Habits of the threads, right where nothing is planted.
struct Habits {
  int expected = kStageBytes;  // bytes
  int wrong_parity = 0, misplaced = 0, absent = -1, silent = -1;
  bool init_fenced = true, init_awaited = true, stage_awaited = true, all_lanes_wait = true;
  bool right_copied = true, right_written = false, copies_fenced = true;
  bool products_fenced = true, products_awaited = true, released_early = false, released_by_one = false;
  bool read_early = false, written_early = false, written_behind_fence = false, cleared_early = false;
  bool released_by_lanes = false, read_by_threads = false, lanes_meet = true, read_after_release = false,
       fenced_behind_barrier = false;
  bool copied_in_vain = false, ended_early = false, others_awaited = true, others_told = true;
};

inline Shared<Chunk> left_of(int stage) { return shared_at<Chunk>(stage * kStageBytes); }
inline Shared<Chunk> right_of(int stage) { return shared_at<Chunk>(stage * kStageBytes + kLeftBytes); }
inline Shared<Arrivals> ready(int stage) { return shared_at<Arrivals>(kRingBytes) + 2 * stage; }
inline Shared<Arrivals> free_again(int stage) { return ready(stage) + 1; }

inline void copy_right(const ProductCall& call, int stage, int number) {
  const int rows = kColumns / call.cluster, first = cluster_rank() * rows;
  if (call.cluster == 1) return copy_box(right_of(stage), call.right, number, 0, ready(stage));
  copy_box_to_all(right_of(stage) + first * 8, call.right, number, first, ready(stage));
}

inline void copy_stages(const ProductCall& call, const Habits& habits) {
  for (int number = 0; number < kDim / kOfBox; ++number) {
    const int stage = number % kStages;
    wait_phase(free_again(stage), number / kStages % 2 ^ 1);
    expect_bytes(ready(stage), habits.expected);
    copy_box(left_of(stage) + habits.misplaced, call.left, number, block_x() * kRows, ready(stage));
    if (habits.right_copied) copy_right(call, stage, number);
  }
  if (!habits.copied_in_vain) return;
  wait_phase(free_again(1), 0);
  expect_bytes(ready(1), kRightBytes);
  copy_right(call, 1, 0);
}

// Writes the right rows by threads, a chunk each.
inline void write_right(const ProductCall& call, const Habits& habits, int number) {
  if (const int thread = thread_index(), row = thread / 8, chunk = thread % 8; row < kColumns) {
    const Global<const float> from = call.right_numbers + (row * kDim + number * kOfBox + chunk * 4);
    right_of(number % kStages)[row * 8 + (chunk ^ row % 8)] = load(Global<const Chunk>(from), 0);
  }
  if (habits.copies_fenced && !habits.fenced_behind_barrier) fence_copies();
  sync_named(1, kMultiplying);
  if (habits.fenced_behind_barrier) fence_copies();
}

inline void release(const ProductCall& call, const Habits& habits, int stage) {
  const int warp = thread_index() / kWarp;
  if (!habits.released_by_lanes && thread_index() % kWarp != 0) return;
  if (warp == habits.silent || (habits.released_by_one && warp != 0)) return;
  for (int rank = 0; rank < call.cluster && habits.others_told; ++rank) {
    if (rank != cluster_rank()) arrive_at(free_again(stage), rank);
  }
  arrive(free_again(stage));
}

inline void multiply_stages(const ProductCall& call, const Habits& habits, float (&sums)[kColumns / 2], float& early) {
  const int thread = thread_index();
  for (int number = 0; number < kDim / kOfBox; ++number) {
    const int stage = number % kStages;
    if (habits.ended_early && number == 2 && cluster_rank() == 1) return;
    if (habits.stage_awaited && (habits.all_lanes_wait || thread % kWarp == 0)) {
      wait_phase(ready(stage), (number / kStages % 2) ^ habits.wrong_parity);
    }
    if (habits.right_written) write_right(call, habits, number);
    if (number > 0 && !habits.written_behind_fence) sums[0] += 1.0f;
    if (habits.products_fenced || number == 0) fence_products();
    if (number > 0 && habits.written_behind_fence) sums[0] += 1.0f;
    for (int step = 0; step < 4; ++step) {
      if (thread == habits.absent) return;
      multiply_rows<TFloat32>(sums, left_of(stage), right_of(stage), step, number + step > 0);
    }
    commit_products();
    if (habits.released_early) release(call, habits, stage);
    early = sums[0];
    if (habits.written_early) sums[1] = 0.0f;
    if (habits.cleared_early && thread < kOfBox) shared_at<float>(stage * kStageBytes)[thread] = 0.0f;
    if (habits.products_awaited || number < 2) wait_products<0>();
    const auto read = [&] { sums[0] += 0.0f * shared_at<float>(stage * kStageBytes)[thread]; };
    if (habits.read_by_threads && !habits.read_after_release) read();
    if (habits.read_by_threads && habits.lanes_meet) sync_warp();
    if (!habits.released_early) release(call, habits, stage);
    if (habits.read_by_threads && habits.read_after_release) read();
  }
  sums[0] -= 2.0f;
}

inline void multiply(const ProductCall& call, const Habits& habits) {
  const int thread = thread_index();
  float sums[kColumns / 2], early = 0.0f;
  multiply_stages(call, habits, sums, early);
  const int first_row = block_x() * kRows + thread / kWarp * 16 + thread % kWarp / 4;
  if (habits.read_early) sums[0] = early;
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = first_row + i % 4 / 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
    store(call.out, row * kColumns + column, sums[i]);
  }
}

inline void pipeline(const ProductCall& call, const Habits& habits) {
  const int thread = thread_index();
  if (thread == kMultiplying) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_arrivals(ready(stage), 1);
      const int blocks = habits.others_told ? call.cluster : 1;
      init_arrivals(free_again(stage),
                    blocks * (habits.released_by_one ? 1 : 4) * (habits.released_by_lanes ? kWarp : 1));
    }
    if (habits.init_fenced) fence_arrivals();
  }
  if (habits.init_awaited) sync_cluster();
  if (thread >= kMultiplying) {
    if (thread == kMultiplying) copy_stages(call, habits);
  } else {
    multiply(call, habits);
  }
  if (habits.others_awaited && call.cluster > 1) sync_cluster();
}

#define CROSSRET_PLANTED(name, habit, right, wrong)  \
  CROSSRET_KERNEL(kPipelineThreads, 1)               \
  name(ProductCall call) {                           \
    Habits habits;                                   \
    habits.habit = call.planted ? (wrong) : (right); \
    pipeline(call, habits);                          \
  }
CROSSRET_PLANTED(refill_under_a_product, released_early, false, true)
CROSSRET_PLANTED(refill_when_one_warp_is_done, released_by_one, false, true)
CROSSRET_PLANTED(write_under_a_product, cleared_early, false, true)
CROSSRET_PLANTED(wait_for_the_wrong_parity, wrong_parity, 0, 1)
CROSSRET_PLANTED(fewer_bytes_expected, expected, kStageBytes, kLeftBytes)
CROSSRET_PLANTED(more_bytes_expected, expected, kStageBytes, kStageBytes + 128)
CROSSRET_PLANTED(product_without_a_fence, products_fenced, true, false)
CROSSRET_PLANTED(sums_written_behind_the_fence, written_behind_fence, false, true)
CROSSRET_PLANTED(sums_read_early, read_early, false, true)
CROSSRET_PLANTED(sums_written_early, written_early, false, true)
CROSSRET_PLANTED(product_that_nobody_waits_for, products_awaited, true, false)
CROSSRET_PLANTED(missed_arrival, silent, -1, 2)
CROSSRET_PLANTED(product_of_a_stage_on_its_way, stage_awaited, true, false)
CROSSRET_PLANTED(wait_by_one_lane, all_lanes_wait, true, false)
CROSSRET_PLANTED(arrivals_without_a_fence, init_fenced, true, false)
CROSSRET_PLANTED(arrivals_without_a_barrier, init_awaited, true, false)
CROSSRET_PLANTED(misaligned_box, misplaced, 0, 8)
CROSSRET_PLANTED(box_beyond_shared_memory, misplaced, 0, kPipelineBytes / 1024 * 64)
CROSSRET_PLANTED(product_without_a_thread, absent, -1, 5)
CROSSRET_PLANTED(box_that_nobody_waits_for, copied_in_vain, false, true)
// In clusters alone.
CROSSRET_PLANTED(arrivals_at_a_block_that_ended, others_awaited, true, false)
CROSSRET_PLANTED(copies_to_a_block_that_ended, ended_early, false, true)
CROSSRET_PLANTED(refill_under_anothers_product, others_told, true, false)
#undef CROSSRET_PLANTED

// Barriers of another block that may not be there yet.
CROSSRET_KERNEL(kPipelineThreads, 1) cluster_that_does_not_meet(ProductCall call) {
  Habits habits;
  if (call.planted) {
    habits.init_awaited = false;
    if (thread_index() == kMultiplying) arrive_at(free_again(0), cluster_rank() ^ 1);
  }
  pipeline(call, habits);
}

// A product of rows that nobody has written.
CROSSRET_KERNEL(kPipelineThreads, 1) product_of_nothing(ProductCall call) {
  Habits habits;
  habits.right_copied = !call.planted;
  if (call.planted) habits.expected = kLeftBytes;
  pipeline(call, habits);
}

// A product of rows that threads have written.
inline void multiply_what_is_written(const ProductCall& call, Habits habits) {
  habits.right_copied = false, habits.right_written = true, habits.expected = kLeftBytes;
  pipeline(call, habits);
}
CROSSRET_KERNEL(kPipelineThreads, 1) written_rows_without_a_fence(ProductCall call) {
  Habits habits;
  habits.copies_fenced = !call.planted;
  multiply_what_is_written(call, habits);
}
CROSSRET_KERNEL(kPipelineThreads, 1) fence_behind_the_barrier(ProductCall call) {
  Habits habits;
  habits.fenced_behind_barrier = call.planted;
  multiply_what_is_written(call, habits);
}

// A stage that threads read too, of whom the first of each warp releases it.
CROSSRET_KERNEL(kPipelineThreads, 1) release_before_the_warp_meets(ProductCall call) {
  Habits habits;
  habits.read_by_threads = true, habits.lanes_meet = !call.planted;
  pipeline(call, habits);
}
CROSSRET_KERNEL(kPipelineThreads, 1) read_behind_every_lanes_release(ProductCall call) {
  Habits habits;
  habits.released_by_lanes = habits.read_by_threads = true, habits.lanes_meet = false;
  habits.read_after_release = call.planted;
  pipeline(call, habits);
}
CROSSRET_KERNEL(kPipelineThreads, 1) read_behind_the_release(ProductCall call) {
  Habits habits;
  habits.read_by_threads = true, habits.read_after_release = call.planted;
  pipeline(call, habits);
}

}  // namespace planted
}  // namespace gpu
}  // namespace crossret
