// Kernels whose accesses cost what can be told by hand: what traffic.h counts of them is held against that.
#pragma once
#include "cuda/device.cuh"
#include "vocabulary.cuh"

namespace crossret {
namespace gpu {
namespace accesses {

using vocabulary::kSharedBytes;
using vocabulary::kThreads;
using vocabulary::number_in_grid;

// What the first warp of the block does; others give zero.
template <class Read>
CROSSRET_DEVICE void by_a_warp(Global<uint32_t> out, const Read& read) {
  uint32_t found = 0;
  if (thread_index() < kWarp) found = read(thread_index());
  store(out, number_in_grid(), found);
}

template <class Place>
CROSSRET_DEVICE void from_shared(Global<uint32_t> out, const Place& place) {
  const Shared<uint32_t> kept = shared_at<uint32_t>(0);
  for (int at = thread_index(); at < kSharedBytes / 4; at += kThreads) kept[at] = at;
  sync_block();
  by_a_warp(out, [&](int lane) -> uint32_t { return kept[place(lane)]; });
}

CROSSRET_KERNEL(kThreads, 1) rows(Global<const uint32_t>, Global<uint32_t> out) {
  from_shared(out, [](int lane) { return 64 + lane; });
}
// Of a matrix 16 words wide.
CROSSRET_KERNEL(kThreads, 1) columns(Global<const uint32_t>, Global<uint32_t> out) {
  from_shared(out, [](int lane) { return 16 * lane; });
}
CROSSRET_KERNEL(kThreads, 1) padded_columns(Global<const uint32_t>, Global<uint32_t> out) {
  from_shared(out, [](int lane) { return 17 * lane; });
}
CROSSRET_KERNEL(kThreads, 1) one_word(Global<const uint32_t>, Global<uint32_t> out) {
  from_shared(out, [](int) { return 7; });
}
CROSSRET_KERNEL(kThreads, 1) odd_lanes(Global<const uint32_t> in, Global<uint32_t> out) {
  by_a_warp(out, [&](int lane) { return lane % 2 == 1 ? load(in, 16 * (lane / 2)) : 0u; });
}

// Of rows of 128 bytes a column of chunks, as load_matrices takes it; `turned` lies its rows' chunks in another order.
CROSSRET_DEVICE void column_of_chunks(Global<uint32_t> out, bool turned) {
  const Shared<Chunk> kept = shared_at<Chunk>(0);
  for (int at = thread_index(); at < kSharedBytes / 16; at += kThreads) kept[at] = {};
  sync_block();
  by_a_warp(out, [&](int lane) {
    uint32_t words[2];
    load_matrices(words, kept + (8 * (lane % 16) + (turned ? lane % 8 : 0)));
    return words[0];
  });
}
CROSSRET_KERNEL(kThreads, 1) chunks_of_rows(Global<const uint32_t>, Global<uint32_t> out) {
  column_of_chunks(out, false);
}
CROSSRET_KERNEL(kThreads, 1) turned_chunks_of_rows(Global<const uint32_t>, Global<uint32_t> out) {
  column_of_chunks(out, true);
}

}  // namespace accesses
}  // namespace gpu
}  // namespace crossret
