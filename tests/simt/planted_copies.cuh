// The same, each with a mistake about dynamic shared memory, copies into it or matrices out of it.
#pragma once
#include "planted.cuh"

namespace crossret {
namespace gpu {
namespace planted {

constexpr int kChunks = kThreads / 4;  // that the numbers of a block are

// The first threads ask for the block's numbers, in one group.
inline void copy_numbers(const Call& call, Shared<Chunk> to) {
  const Global<const Chunk> from = Global<const Chunk>(call.in + first());
  if (thread_index() < kChunks) copy_async(to + thread_index(), from + thread_index());
  commit_copies();
}

inline void clear() {
  shared_at<float>(0)[thread_index()] = 0.0f;
  sync_block();
}

CROSSRET_KERNEL(kThreads, 1) copy_without_a_wait(Call call) {
  clear();
  copy_numbers(call, shared_at<Chunk>(0));
  if (!call.planted) wait_copies<0>();
  sync_block();
  give(call, shared_at<float>(0)[opposite()]);
  wait_copies<0>();
}

CROSSRET_KERNEL(kThreads, 1) copy_without_a_barrier(Call call) {
  clear();
  copy_numbers(call, shared_at<Chunk>(0));
  wait_copies<0>();
  if (!call.planted) sync_block();
  give(call, shared_at<float>(0)[opposite()]);
}

// What was waited for is another group.
CROSSRET_KERNEL(kThreads, 1) wait_for_all_but_one(Call call) {
  clear();
  if (thread_index() == 0) copy_async(shared_at<Chunk>(512), Global<const Chunk>(call.in));
  commit_copies();
  copy_numbers(call, shared_at<Chunk>(0));
  if (call.planted) {
    wait_copies<1>();
  } else {
    wait_copies<0>();
  }
  sync_block();
  give(call, shared_at<float>(0)[opposite()]);
  wait_copies<0>();
}

// Waits are for groups.
CROSSRET_KERNEL(kThreads, 1) wait_before_the_commit(Call call) {
  const Global<const Chunk> from = Global<const Chunk>(call.in + first());
  if (thread_index() < kChunks) copy_async(shared_at<Chunk>(0) + thread_index(), from + thread_index());
  if (!call.planted) commit_copies();
  wait_copies<0>();
  sync_block();
  give(call, shared_at<float>(0)[opposite()]);
  commit_copies();
  wait_copies<0>();
}

CROSSRET_KERNEL(kThreads, 1) copy_that_nobody_waits_for(Call call) {
  give(call, load(call.in, first() + opposite()));
  copy_numbers(call, shared_at<Chunk>(0));
  if (!call.planted) wait_copies<0>();
}

// Four steps of 16 numbers, two of them on their way while one is read.
CROSSRET_KERNEL(kThreads, 1) ring_too_short(Call call) {
  const int stages = call.planted ? 2 : 3, thread = thread_index();
  const Global<const Chunk> from = Global<const Chunk>(call.in + first());
  const auto copy_step = [&](int step) {
    if (step < 4 && thread < 4) copy_async(shared_at<Chunk>(step % stages * 64) + thread, from + (4 * step + thread));
    commit_copies();
  };
  copy_step(0);
  copy_step(1);
  float number = 0.0f;
  for (int step = 0; step < 4; ++step) {
    wait_copies<1>();
    sync_block();
    copy_step(step + 2);
    const float read = shared_at<float>(step % stages * 64)[opposite() % 16];
    if (opposite() / 16 == step) number = read;
  }
  give(call, number);
  wait_copies<0>();
}

CROSSRET_KERNEL(kThreads, 1) write_under_a_copy(Call call) {
  copy_numbers(call, shared_at<Chunk>(0));
  if (call.planted && thread_index() == 40) shared_at<float>(0)[3] = 0.0f;
  wait_copies<0>();
  sync_block();
  give(call, shared_at<float>(0)[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) two_copies_to_one_place(Call call) {
  copy_numbers(call, shared_at<Chunk>(0));
  if (call.planted) copy_numbers(call, shared_at<Chunk>(0));
  wait_copies<0>();
  sync_block();
  give(call, shared_at<float>(0)[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) copy_beyond_the_input(Call call) {
  const Global<const Chunk> from = Global<const Chunk>(call.in + first()) + (thread_index() + (call.planted ? 1 : 0));
  if (thread_index() < kChunks) copy_async(shared_at<Chunk>(0) + thread_index(), from);
  commit_copies();
  wait_copies<0>();
  sync_block();
  give(call, shared_at<float>(0)[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) misaligned_chunk(Call call) {
  const int begin = call.planted ? 8 : 16;
  copy_numbers(call, shared_at<Chunk>(begin));
  wait_copies<0>();
  sync_block();
  give(call, shared_at<float>(begin)[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) misaligned_source(Call call) {
  if (call.planted && thread_index() == 0) {
    copy_async(shared_at<Chunk>(512), Global<const Chunk>(call.in + 2));
  }
  copy_numbers(call, shared_at<Chunk>(0));
  wait_copies<0>();
  sync_block();
  give(call, shared_at<float>(0)[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) write_beyond_dynamic_memory(Call call) {
  const Shared<float> numbers = shared_at<float>(kSharedBytes - 4 * kThreads + (call.planted ? 4 : 0));
  numbers[thread_index()] = given(call);
  sync_block();
  give(call, numbers[opposite()]);
}

// What are floats becomes halves as long as others read the floats.
CROSSRET_KERNEL(kThreads, 1) memory_of_two_types(Call call) {
  const Shared<float> numbers = shared_at<float>(0);
  const Shared<BFloat16> halves = shared_at<BFloat16>(0);
  numbers[thread_index()] = given(call);
  sync_block();
  BFloat16 half;
  narrow(numbers[opposite()], half);
  if (!call.planted) sync_block();
  halves[thread_index()] = half;
  sync_block();
  give(call, widened(halves[thread_index()]));
}

// A matrix is of all lanes' rows, whose lanes need not have come.
CROSSRET_KERNEL(kThreads, 1) matrix_before_its_rows(Call call) {
  const int thread = thread_index(), lane = thread % kWarp, begin = thread / kWarp * kWarp * 4;
  clear();
  shared_at<float>(begin)[lane] = given(call);
  if (!call.planted) sync_warp();
  uint32_t of_first_matrix[2];
  load_matrices(of_first_matrix, shared_at<Chunk>(begin) + lane % 8);
  sync_block();
  shared_at<float>(256)[opposite()] = float_of(static_cast<int>(of_first_matrix[0]));
  sync_block();
  give(call, shared_at<float>(256)[thread]);
}

CROSSRET_KERNEL(kThreads, 1) product_of_half_a_warp(Call call) {
  float sums[4] = {given(call)};
  const uint32_t a[4] = {}, b[2] = {};
  if (call.planted && thread_index() % 2 == 1) return;
  multiply<BFloat16>(sums, a, b);
  store(call.out, first() + opposite(), sums[0]);
}

// Barriers of two kinds do not meet.
CROSSRET_KERNEL(kThreads, 1) vote_beside_a_barrier(Call call) {
  const float number = given(call);
  if (call.planted && thread_index() >= kWarp) {
    sync_block();
  } else {
    any_in_block(number > 0.0f);
  }
  store(call.out, first() + opposite(), number);
}

}  // namespace planted
}  // namespace gpu
}  // namespace crossret
