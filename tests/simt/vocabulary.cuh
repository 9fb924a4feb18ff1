// Kernels that say each word of csrc/cuda/device.cuh, so that what they mean can be checked.
#pragma once
#include "cuda/device.cuh"

namespace crossret {
namespace gpu {
namespace vocabulary {

constexpr int kThreads = 96;  // three warps a block
constexpr int kWords = 8;

// Of every thread eight numbers; in[i] is its number in the grid.
CROSSRET_KERNEL(kThreads, 1) words(Global<const int> in, Global<int> out) {
  CROSSRET_SHARED(int, kept, kThreads);
  const int thread = thread_index(), block = block_y() * 2 + block_x();
  const int number = load(in, block * block_threads() + thread);
  const Global<int> to = out + number * kWords;
  store(to, 0, shuffle(number, thread % 7));
  store(to, 1, shuffle_xor(number, 5));
  store(to, 2, static_cast<int>(ballot(thread % 3 == 0)));
  store(to, 3, all(thread < 64) ? 1 : 0);
  kept[thread] = number;
  sync_warp();
  store(to, 4, kept[thread ^ 1]);
  // The first two warps meet, then all.
  if (thread < 64) sync_named(1, 64);
  store(to, 5, thread < 64 ? kept[63 - thread] : -1);
  sync_block();
  store(to, 6, kept[kThreads - 1 - thread]);
  store(to, 7, bits_of(max_or_nan(float_of(number), thread % 2 == 0 ? 1.0f : float_of(-1))));
}

// Floats as 16 bits, and bits as floats.
CROSSRET_KERNEL(kThreads, 1)
narrowed(Global<const float> in, Global<BFloat16> bfloats, Global<Float16> halves, int count) {
  const int at = block_x() * kThreads + thread_index();
  if (at >= count) return;
  const float x = load(in, at);
  BFloat16 bfloat;
  Float16 half;
  narrow(x, bfloat);
  narrow(x, half);
  store(bfloats, at, bfloat);
  store(halves, at, half);
}

CROSSRET_KERNEL(kThreads, 1)
widened_bits(Global<const BFloat16> bfloats, Global<const Float16> halves, Global<float> out, int count) {
  const int at = block_x() * kThreads + thread_index();
  if (at >= count) return;
  store(out, at, widened(load(bfloats, at)));
  store(out, count + at, widened(load(halves, at)));
}

}  // namespace vocabulary
}  // namespace gpu
}  // namespace crossret
