// A kernel that does what a table says: what is reported of it is held against a model of what races.
#pragma once
#include "cuda/device.cuh"

namespace crossret {
namespace gpu {
namespace programs {

enum class Kind : int { nothing, read, write, copy };

// What a thread does in one step: an access of 2, 4, 8 or 16 bytes; then it may wait for its copies.
struct Step {
  Kind kind;
  int at, bytes, waits;
};

// Steps of every thread, in phases. A warp meets behind every second step, the block behind each phase.
struct Program {
  const Step* steps;  // (threads, phases, steps)
  int phases, steps_of_phase, shared_bytes;
};

template <class T>
void access(const Step& step) {
  const Shared<T> place = shared_at<T>(step.at);
  if (step.kind == Kind::read) {
    [[maybe_unused]] const T value = place[0];
  } else {
    place[0] = T{};
  }
}

inline void perform(const Step& step) {
  if (step.kind == Kind::nothing) return;
  if (step.kind == Kind::copy) {
    static constexpr Chunk kZeros{};
    simt::copies.issue(*shared_at<Chunk>(step.at).memory(), step.at, &kZeros);
    return commit_copies();
  }
  switch (step.bytes) {
    case 2:
      return access<uint16_t>(step);
    case 4:
      return access<float>(step);
    case 8:
      return access<double>(step);
    default:
      return access<Chunk>(step);
  }
}

CROSSRET_KERNEL(1024, 1) run(const Program& program) {
  const Step* step = program.steps + int64_t{thread_index()} * program.phases * program.steps_of_phase;
  for (int at = 16 * thread_index(); at < program.shared_bytes; at += 16 * block_threads())
    shared_at<Chunk>(at)[0] = {};
  sync_block();
  for (int phase = 0; phase < program.phases; ++phase) {
    for (int i = 0; i < program.steps_of_phase; ++i, ++step) {
      if (i > 0 && i % 2 == 0) sync_warp();
      perform(*step);
      if (step->waits != 0) wait_copies<0>();
    }
    if (phase + 1 < program.phases) sync_block();
  }
  wait_copies<0>();
}

}  // namespace programs
}  // namespace gpu
}  // namespace crossret
