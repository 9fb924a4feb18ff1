// Scores in the order in which a stable descending sort has them, in shared memory: sorted, and put into a list.
#pragma once
#include "cuda/device.cuh"

namespace crossret {
namespace gpu {

constexpr int kTopkThreads = 256;
constexpr int kRoom = 4 * kTopkThreads;  // for scores that wait to be put into the list

// A score; of equal ones the lower tag comes first.
struct alignas(8) Ranked {
  float score;
  int tag;
};
// Behind all others: tags of scores are less.
constexpr int kLastTag = 0x7FFFFFFF;

// The greater the score the less: 0 of every NaN, and one number of both zeros.
CROSSRET_DEVICE uint32_t rank_of(float score) {
  if (score != score) return 0;
  const auto bits = static_cast<uint32_t>(bits_of(score == 0.0f ? 0.0f : score));
  return bits >> 31 != 0 ? bits : ~(bits | 0x80000000u);
}

CROSSRET_DEVICE bool ahead(const Ranked& a, const Ranked& b) {
  const uint32_t of_a = rank_of(a.score), of_b = rank_of(b.score);
  return of_a < of_b || (of_a == of_b && a.tag < b.tag);
}

// How many of the sorted items are ahead of one that is not among them.
CROSSRET_DEVICE int count_ahead(Shared<const Ranked> items, int count, const Ranked& one) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    const Ranked item = items[middle];
    if (ahead(item, one)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// By the whole block, in a bitonic network; there must be room for the next power of two. It begins and ends with a
// barrier.
CROSSRET_DEVICE void sort_ranked(Shared<Ranked> items, int count) {
  const int thread = thread_index();
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + thread; i < size; i += kTopkThreads) items[i] = Ranked{float_of(~0x7FFFFF), kLastTag};
  sync_block();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int pair = thread; pair < size / 2; pair += kTopkThreads) {
        const int low = 2 * pair - (pair & (step - 1)), high = low + step;
        const Ranked a = items[low], b = items[high];
        const bool best_first = (low & run) == 0;
        if (ahead(b, a) == best_first) items[low] = b, items[high] = a;
      }
      sync_block();
    }
  }
}

// Puts `count` ≤ kRoom more into a sorted list of `held`, and gives how many it holds then, `most` at most: by the
// whole block, which has passed no barrier since the last of them was written. It ends with a barrier.
//
// Places are found by bisection, so that the list is not sorted again: its items only ever move back, the last first.
CROSSRET_DEVICE int put_into_list(Shared<Ranked> list, int held, int most, Shared<Ranked> more, int count) {
  if (count == 0) return held;
  constexpr int kOwn = kRoom / kTopkThreads;
  const int thread = thread_index();
  sort_ranked(more, count);
  int places[kOwn];
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int i = thread + own * kTopkThreads;
    places[own] = most;
    if (i >= count) continue;
    const Ranked item = more[i];
    places[own] = i + count_ahead(list, held, item);
  }
  for (int first = (held - 1) / kTopkThreads * kTopkThreads; first >= 0 && held > 0; first -= kTopkThreads) {
    const int i = first + thread;
    Ranked item{};
    int place = most;
    if (i < held) {
      item = list[i];
      place = i + count_ahead(more, count, item);
    }
    sync_block();
    if (place < most && place != i) list[place] = item;
  }
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    if (places[own] >= most) continue;
    const Ranked item = more[thread + own * kTopkThreads];
    list[places[own]] = item;
  }
  sync_block();
  return held + count < most ? held + count : most;
}

}  // namespace gpu
}  // namespace crossret
