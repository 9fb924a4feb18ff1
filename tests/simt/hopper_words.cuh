// Kernels that say each word of csrc/cuda/hopper.cuh, so that what they mean can be checked.
#pragma once
#include "cuda/hopper.cuh"

namespace crossret {
namespace gpu {
namespace vocabulary {

constexpr int kCopying = kWarpgroup, kHopperThreads = kWarpgroup + kWarp, kWide = 72;

// Initialises barriers by one thread; then all meet.
inline void init_all(Shared<Arrivals> first, int barriers, int count) {
  if (thread_index() == kCopying) {
    for (int i = 0; i < barriers; ++i) init_arrivals(first + i, count);
    fence_arrivals();
  }
  sync_block();
}

// A box of block_x()'s row and column, as rows again.
CROSSRET_KERNEL(kHopperThreads, 1)
boxes(TensorMap from, int box_rows, Global<const int> places, Global<Chunk> out) {
  const int bytes = box_rows * kBoxBytes;
  const Shared<Arrivals> come = shared_at<Arrivals>((bytes + 1023) / 1024 * 1024);
  const int row = load(places, 2 * block_x()), column = load(places, 2 * block_x() + 1);
  init_all(come, 1, 1);
  if (thread_index() == kCopying) {
    expect_bytes(come, bytes);
    copy_box(shared_at<Chunk>(0), from, column, row, come);
  }
  wait_phase(come, 0);
  for (int at = thread_index(); at < box_rows * 8; at += kHopperThreads) {
    const Chunk chunk = shared_at<Chunk>(0)[at / 8 * 8 + (at % 8 ^ at / 8 % 8)];
    store(out, block_x() * box_rows * 8 + at, chunk);
  }
}

// sums (64, 2 * count) of a warpgroup's threads.
template <int count, class Visit>
void each_sum(float (&sums)[count], const Visit& visit) {
  const int thread = thread_index();
  for (int j = 0; j < count / 4; ++j) {
    for (int e = 0; e < 4; ++e) {
      const int row = thread / kWarp * 16 + thread % kWarp / 4 + e / 2 * 8, column = 8 * j + thread % 4 * 2 + e % 2;
      visit(sums[4 * j + e], row * 2 * count + column);
    }
  }
}

// Block x takes step x % 4 of two boxes, which its products are added to `in` or not: blocks from the fifth on.
template <class T, int count>
CROSSRET_KERNEL(kHopperThreads, 1)
products(TensorMap left, TensorMap right, Global<const float> in, Global<float> out) {
  constexpr int columns = 2 * count, left_bytes = 64 * kBoxBytes, bytes = left_bytes + columns * kBoxBytes;
  const Shared<Arrivals> come = shared_at<Arrivals>(bytes);
  init_all(come, 1, 1);
  if (thread_index() >= kCopying) {
    if (thread_index() > kCopying) return;
    expect_bytes(come, bytes);
    copy_box(shared_at<Chunk>(0), left, 0, 0, come);
    copy_box(shared_at<Chunk>(left_bytes), right, 0, 0, come);
    return;
  }
  float sums[count];
  each_sum(sums, [&](float& sum, int at) { sum = load(in, at); });
  wait_phase(come, 0);
  fence_products();
  multiply_rows<T>(sums, shared_at<Chunk>(0), shared_at<Chunk>(left_bytes), block_x() % 4, block_x() < 4);
  commit_products();
  wait_products<0>();
  each_sum(sums, [&](float& sum, int at) { store(out, block_x() * 64 * columns + at, sum); });
}

// A ring of copies, of which products read: (64, dim) times (144, dim), three stages. Blocks of a cluster copy a part
// each of what all of them multiply with.
template <class T>
CROSSRET_KERNEL(kHopperThreads, 1)
pipelined(TensorMap left, TensorMap right, int cluster, int steps, Global<float> out) {
  constexpr int stages = 3, left_bytes = 64 * kBoxBytes, bytes = left_bytes + 2 * kWide * kBoxBytes;
  const Shared<Arrivals> ready = shared_at<Arrivals>(stages * bytes), free = ready + stages;
  if (thread_index() == kCopying) {
    for (int stage = 0; stage < stages; ++stage) {
      init_arrivals(ready + stage, 1);
      init_arrivals(free + stage, 4 * cluster);
    }
    fence_arrivals();
  }
  sync_cluster();
  const int share = 2 * kWide / cluster, first = cluster_rank() * share;
  if (thread_index() == kCopying) {
    for (int number = 0; number < steps; ++number) {
      const int stage = number % stages;
      wait_phase(free + stage, number / stages % 2 ^ 1);
      expect_bytes(ready + stage, bytes);
      copy_box(shared_at<Chunk>(stage * bytes), left, number, 64 * block_x(), ready + stage);
      copy_box_to_all(shared_at<Chunk>(stage * bytes + left_bytes) + first * 8, right, number, first, ready + stage);
    }
  }
  if (thread_index() >= kCopying) return sync_cluster();
  take_registers<208>();
  float sums[kWide];
  const auto release = [&](int number) {
    if (number < 0 || thread_index() % kWarp != 0) return;
    for (int rank = 0; rank < cluster; ++rank) arrive_at(free + number % stages, rank);
  };
  for (int number = 0; number < steps; ++number) {
    const int stage = number % stages;
    wait_phase(ready + stage, number / stages % 2);
    fence_products();
    for (int step = 0; step < 4; ++step) {
      multiply_rows<T>(sums, shared_at<Chunk>(stage * bytes), shared_at<Chunk>(stage * bytes + left_bytes), step,
                       number + step > 0);
    }
    commit_products();
    wait_products<1>();
    release(number - 1);
  }
  wait_products<0>();
  release(steps - 1);
  each_sum(sums, [&](float& sum, int at) { store(out, block_x() * 128 * kWide + at, sum); });
  sync_cluster();
}

// Numbers go round a ring of three from one thread to four warps, of which all lanes or the first tell all blocks of
// the cluster that they have read: what each thread has read, weighted by rounds.
CROSSRET_KERNEL(kHopperThreads, 1) rounds(int cluster, int count, Global<const int> in, Global<int> out) {
  constexpr int stages = 3;
  const Shared<Arrivals> ready = shared_at<Arrivals>(0), free = ready + stages;
  const Shared<int> numbers = shared_at<int>(1024);
  const bool by_lanes = block_x() / cluster % 2 == 0;
  if (thread_index() == kCopying) {
    for (int stage = 0; stage < stages; ++stage) {
      init_arrivals(ready + stage, 1);
      init_arrivals(free + stage, cluster * (by_lanes ? 4 * kWarp : 4));
    }
    fence_arrivals();
  }
  sync_cluster();
  if (thread_index() == kCopying) {
    for (int round = 0; round < count; ++round) {
      wait_phase(free + round % stages, round / stages % 2 ^ 1);
      numbers[round % stages] = load(in, round);
      arrive(ready + round % stages);
    }
  }
  if (thread_index() >= kCopying) return sync_cluster();
  int sum = 0;
  for (int round = 0; round < count; ++round) {
    wait_phase(ready + round % stages, round / stages % 2);
    sum += (round + 1) * numbers[round % stages];
    if (!by_lanes) sync_warp();
    for (int rank = 0; rank < cluster && (by_lanes || thread_index() % kWarp == 0); ++rank) {
      arrive_at(free + round % stages, rank);
    }
  }
  store(out, block_x() * 4 * kWarp + thread_index(), sum);
  sync_cluster();
}

}  // namespace vocabulary
}  // namespace gpu
}  // namespace crossret
