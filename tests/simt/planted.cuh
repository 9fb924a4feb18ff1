// Kernels that reverse 64 numbers, block by block, each with a mistake that can be planted in it.
#pragma once
#include "cuda/device.cuh"

namespace crossret {
namespace gpu {
namespace planted {

constexpr int kThreads = 64;
constexpr int kSharedBytes = 1024;  // that every launch asks for

struct Call {
  bool planted;
  Global<const float> in;
  Global<float> out;  // as long as `in`: kThreads a block
};

inline int first() { return block_x() * kThreads; }
inline float given(const Call& call) { return load(call.in, first() + thread_index()); }
inline void give(const Call& call, float value) { store(call.out, first() + thread_index(), value); }
inline int opposite() { return kThreads - 1 - thread_index(); }

CROSSRET_KERNEL(kThreads, 1) race_between_warps(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = 0.0f;
  sync_block();
  numbers[thread_index()] = given(call);
  if (!call.planted) sync_block();
  give(call, numbers[opposite()]);
}

// The barrier of one warp orders nothing for the other.
CROSSRET_KERNEL(kThreads, 1) race_past_a_warps_barrier(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = 0.0f;
  sync_block();
  numbers[thread_index()] = given(call);
  if (call.planted) {
    sync_warp();
  } else {
    sync_named(3, kThreads);
  }
  give(call, numbers[opposite()]);
}

// Lanes of a warp need not run together.
CROSSRET_KERNEL(kThreads, 1) race_in_a_warp(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = 0.0f;
  sync_block();
  const int turned = thread_index() ^ (kWarp - 1);
  numbers[thread_index()] = given(call);
  if (!call.planted) sync_warp();
  const float other = numbers[turned];
  sync_block();
  numbers[thread_index()] = other;
  sync_block();
  give(call, numbers[(thread_index() + kWarp) % kThreads]);
}

CROSSRET_KERNEL(kThreads, 1) write_before_all_have_read(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = 0.0f;
  sync_block();
  const float zero = numbers[opposite()];
  if (!call.planted) sync_block();
  numbers[thread_index()] = given(call) + zero;
  sync_block();
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) two_writers(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[call.planted ? thread_index() / 2 : thread_index()] = given(call);
  sync_block();
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) barrier_without_a_warp(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = given(call);
  if (call.planted && thread_index() >= kWarp) return;
  sync_block();
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) barrier_without_odd_threads(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = given(call);
  if (call.planted && thread_index() % 2 == 1) return;
  sync_block();
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) barriers_of_two_numbers(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = given(call);
  sync_named(call.planted ? 1 + thread_index() / kWarp : 1, kThreads);
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) barriers_of_two_branches(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = given(call);
  if (call.planted && thread_index() >= kWarp) {
    sync_block();
  } else {
    sync_block();
  }
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) shuffle_by_half_a_warp(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  if (call.planted && thread_index() % 2 == 1) return;
  numbers[thread_index() ^ kWarp] = shuffle_xor(given(call), kWarp - 1);
  sync_block();
  give(call, numbers[thread_index()]);
}

CROSSRET_KERNEL(kThreads, 1) shuffle_beside_a_vote(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  if (call.planted && thread_index() % 2 == 1) ballot(true);
  numbers[thread_index() ^ kWarp] = shuffle_xor(given(call), kWarp - 1);
  sync_block();
  give(call, numbers[thread_index()]);
}

CROSSRET_KERNEL(kThreads, 1) read_of_nothing(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  if (!call.planted || thread_index() != 5) numbers[thread_index()] = given(call);
  sync_block();
  give(call, numbers[opposite()]);
}

// What one block left is nothing to the next.
CROSSRET_KERNEL(kThreads, 1) read_of_another_blocks(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  if (!call.planted || block_x() == 0) numbers[thread_index()] = given(call);
  sync_block();
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) write_beyond_shared_memory(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index() + (call.planted ? 1 : 0)] = given(call);
  sync_block();
  give(call, numbers[opposite()]);
}

CROSSRET_KERNEL(kThreads, 1) read_before_shared_memory(Call call) {
  CROSSRET_SHARED(float, numbers, kThreads);
  numbers[thread_index()] = given(call);
  sync_block();
  give(call, numbers[opposite() - (call.planted ? 1 : 0)]);
}

CROSSRET_KERNEL(kThreads, 1) write_beyond_the_output(Call call) {
  store(call.out, first() + opposite() + (call.planted ? 1 : 0), given(call));
}

CROSSRET_KERNEL(kThreads, 1) read_before_the_input(Call call) {
  give(call, load(call.in, first() + opposite() - (call.planted ? 1 : 0)));
}

CROSSRET_KERNEL(kThreads, 1) read_of_the_output(Call call) {
  if (call.planted && thread_index() == 7) give(call, load(call.out, first() + thread_index()));
  give(call, load(call.in, first() + opposite()));
}

CROSSRET_KERNEL(kThreads, 1) write_to_the_input(Call call) {
  if (call.planted) store(Global<float>(const_cast<float*>(call.in.address()), call.in.buffer()), first(), 0.0f);
  give(call, load(call.in, first() + opposite()));
}

CROSSRET_KERNEL(kThreads, 1) four_at_an_odd_place(Call call) {
  const int at = first() + opposite(), four = at / 4 * 4;
  const Four<float> around = load(Global<const Four<float>>(call.in + (call.planted ? four + 1 : four)), 0);
  give(call, around.at[at % 4]);
}

CROSSRET_KERNEL(kThreads, 1) blocks_that_meet(Call call) {
  give(call, load(call.in, first() + opposite()));
  if (call.planted) store(call.out, 3, 0.0f);
}

// What the shadows do not see: arrays of threads' own, which sanitizers watch. The mistake is made for seven.
CROSSRET_KERNEL(kThreads, 1) write_beyond_an_array(Call call, int seven) {
  float own[4];
  for (int i = 0; i < 4; ++i) own[i] = static_cast<float>(i);
  sync_block();
  const volatile int at = call.planted ? seven : 3;
  own[at] = given(call);
  sync_block();
  store(call.out, first() + opposite(), own[at]);
}

}  // namespace planted
}  // namespace gpu
}  // namespace crossret
