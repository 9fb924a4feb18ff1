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

// From here on of every thread `in` words are taken and `out` given.
CROSSRET_DEVICE int number_in_grid() { return block_x() * block_threads() + thread_index(); }

// Two chunks in two groups, each read by another thread.
CROSSRET_KERNEL(kThreads, 1) copied(Global<const uint32_t> in, Global<uint32_t> out) {
  const Shared<Chunk> kept = shared_at<Chunk>(128);
  const int thread = thread_index(), other = kThreads - 1 - thread;
  const Global<const Chunk> from = Global<const Chunk>(in) + 2 * number_in_grid();
  const Global<Chunk> to = Global<Chunk>(out) + 2 * number_in_grid();
  copy_async(kept + thread, from);
  commit_copies();
  copy_async(kept + (kThreads + thread), from + 1);
  commit_copies();
  wait_copies<1>();
  sync_block();
  const Chunk first = kept[other];
  store(to, 0, first);
  wait_copies<0>();
  sync_block();
  const Chunk second = kept[kThreads + other];
  store(to, 1, second);
}

// Of rows that lanes bring, matrices of those that they name.
CROSSRET_KERNEL(kThreads, 1) loaded(Global<const uint32_t> in, Global<uint32_t> out) {
  const int lane = thread_index() % kWarp, warp = thread_index() / kWarp;
  const Shared<Chunk> rows = shared_at<Chunk>(warp * kWarp * 16);
  rows[lane] = load(Global<const Chunk>(in), number_in_grid());
  sync_warp();
  uint32_t four[4], two[2];
  load_matrices(four, rows + 5 * lane % kWarp);
  load_matrices(two, rows + (lane < 16 ? 31 - lane : 1 << 20));
  for (int i = 0; i < 4; ++i) store(out, 6 * number_in_grid() + i, four[i]);
  for (int i = 0; i < 2; ++i) store(out, 6 * number_in_grid() + 4 + i, two[i]);
}

// Of a's, b's and the sums' words.
template <class T>
CROSSRET_KERNEL(kThreads, 1)
multiplied(Global<const uint32_t> in, Global<uint32_t> out) {
  uint32_t a[4], b[2];
  float sums[4];
  const Global<const uint32_t> from = in + 10 * number_in_grid();
  for (int i = 0; i < 4; ++i) a[i] = load(from, i);
  for (int i = 0; i < 2; ++i) b[i] = load(from, 4 + i);
  for (int i = 0; i < 4; ++i) sums[i] = float_of(static_cast<int>(load(from, 6 + i)));
  multiply<T>(sums, a, b);
  for (int i = 0; i < 4; ++i) store(out, 4 * number_in_grid() + i, static_cast<uint32_t>(bits_of(sums[i])));
}

// Of two numbers.
CROSSRET_KERNEL(kThreads, 1) calculated(Global<const uint32_t> in, Global<uint32_t> out) {
  const uint32_t bits = load(in, 2 * number_in_grid());
  const float x = float_of(static_cast<int>(bits));
  const float y = float_of(static_cast<int>(load(in, 2 * number_in_grid() + 1)));
  const uint32_t made[] = {static_cast<uint32_t>(bits_of(approx_exp2(x))),
                           static_cast<uint32_t>(bits_of(approx_log2(x))),
                           tfloat32_of(x),
                           pack_bfloat16(x, y),
                           static_cast<uint32_t>(first_one(bits)),
                           static_cast<uint32_t>(bits_of(approx_sqrt(x))),
                           static_cast<uint32_t>(bits_of(approx_reciprocal(x)))};
  for (int i = 0; i < 7; ++i) store(out, 7 * number_in_grid() + i, made[i]);
}

// Whether any number of the block, of its even and of its odd ones is not zero.
CROSSRET_KERNEL(kThreads, 1) voted(Global<const uint32_t> in, Global<uint32_t> out) {
  const int thread = thread_index();
  const Shared<uint32_t> numbers = shared_at<uint32_t>(0);
  const bool vote = load(in, number_in_grid()) != 0;
  numbers[thread] = load(in, number_in_grid());
  const Global<uint32_t> to = out + 4 * number_in_grid();
  store(to, 0, any_in_block(vote) ? 1u : 0u);
  const uint32_t opposite = numbers[kThreads - 1 - thread];  // for it is a barrier
  store(to, 1, any_in_block(vote && thread % 2 == 0) ? 1u : 0u);
  store(to, 2, any_in_block(vote && thread % 2 == 1) ? 1u : 0u);
  store(to, 3, opposite);
}

constexpr int kSharedBytes = 128 + 2 * kThreads * 16;

}  // namespace vocabulary
}  // namespace gpu
}  // namespace crossret
