// The best k of every row so far, merged in CUDA with a block of scores: a pass that finds where in a row there is
// anything better than its k-th, and one that puts what is there into its place.
//
// Bytes for q rows of c columns: 4 a score, each read once, and 4 a row and 256 columns, written and read, for a word
// that tells which groups of 32 columns hold a better one. That is all of a row that has none. Of another, those
// groups are read once more, and its k values; values and indices of places that change are written, and indices that
// move are read: 24 bytes a place at most. Scores in columns one after the other (transposed) cost the first pass the
// same, as its warps go along rows; the second then takes 32 bytes from the cache for each score that it reads.
//
// A row with fewer than k so far takes the first columns without the first pass, and the others in few, ever longer
// runs, each against the k-th of those before.
//
// Nothing is added atomically. Scores are ranked by themselves, then by their column, so that the order in which
// threads bring them does not show.
#pragma once
#include "topk/ranked.cuh"

namespace crossret {
namespace gpu {

constexpr int kTopkWarps = kTopkThreads / kWarp;
constexpr int kSegment = kTopkWarps * kWarp;  // columns that one word tells of: a bit for each group of 32
constexpr int kLoads = 8;                     // of a thread, under way at once

// Some columns of a block of scores.
struct ScoreRun {
  Global<const float> scores;
  int64_t row_stride, column_stride;  // elements
  int n_rows, first, end;             // columns first to end
};

// (n_rows, most) values and indices, the first `held` of each row in order.
struct BestSoFar {
  Global<float> values;
  Global<int64_t> indices;
  int held, most;
};

constexpr int segments_of(int columns) { return (columns + kSegment - 1) / kSegment; }
CROSSRET_DEVICE int segments_of(const ScoreRun& run) { return (run.end - run.first + kSegment - 1) / kSegment; }

// −∞, which is better than nothing, outside.
CROSSRET_DEVICE float score_at(const ScoreRun& run, int row, int column) {
  if (row >= run.n_rows || column >= run.end) return float_of(~0x7FFFFF);
  return load(run.scores, row * run.row_stride + column * run.column_stride);
}

// Whether a later score is ahead of the k-th: NaN of numbers, and nothing of NaN.
CROSSRET_DEVICE bool better(float score, float kth) { return !(score <= kth) && kth == kth; }

// A word of groups a row and segment; all rows hold as many as they may. A warp goes along a segment of one row, or,
// where neighbours are in the same column, along a group of columns of 32 rows.
template <bool along_rows>
CROSSRET_KERNEL(kTopkThreads, 4)
groups_with_better(CROSSRET_PARAMETER ScoreRun run, CROSSRET_PARAMETER BestSoFar best, Global<uint32_t> groups) {
  const int thread = thread_index(), lane = thread % kWarp, warp = thread / kWarp, n_segments = segments_of(run);
  const int64_t last = int64_t{best.most} - 1;
  float scores[kLoads];
  if constexpr (along_rows) {
    CROSSRET_SHARED(uint32_t, rows_of_group, kTopkWarps);
    const int segment = block_x() % n_segments, first_row = block_x() / n_segments * kWarp, row = first_row + lane;
    const int first = run.first + segment * kSegment + warp * kWarp;
    const float kth = row < run.n_rows ? load(best.values, int64_t{row} * best.most + last) : 0.0f;
    bool any = false;
    for (int from = first; from < first + kWarp; from += kLoads) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) scores[i] = score_at(run, row, from + i);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) any = any || better(scores[i], kth);
    }
    const uint32_t rows = ballot(any);
    if (lane == 0) rows_of_group[warp] = rows;
    sync_block();
    if (thread >= kWarp || row >= run.n_rows) return;
    uint32_t word = 0;
    for (int group = 0; group < kTopkWarps; ++group) word |= (rows_of_group[group] >> lane & 1u) << group;
    store(groups, int64_t{row} * n_segments + segment, word);
  } else {
    static_assert(kLoads * kWarp == kSegment, "a warp has all of a segment under way");
    const int64_t number = int64_t{block_x()} * kTopkWarps + warp;
    const int segment = static_cast<int>(number % n_segments);
    const int64_t row = number / n_segments;
    if (row >= run.n_rows) return;
    const float kth = load(best.values, row * best.most + last);
    const int first = run.first + segment * kSegment + lane;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) scores[i] = score_at(run, static_cast<int>(row), first + i * kWarp);
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) word |= ballot(better(scores[i], kth)) != 0 ? 1u << i : 0u;
    if (lane == 0) store(groups, number, word);
  }
}

// The list of a row in memory again; tags are places in it before, then `most` + column. What was there only ever moves
// back: the last places are written first, and none before what is there has been read.
CROSSRET_DEVICE void store_list(const BestSoFar& best, int row, Shared<const Ranked> list, int held, int64_t start) {
  const Global<float> values = best.values + int64_t{row} * best.most;
  const Global<int64_t> indices = best.indices + int64_t{row} * best.most;
  for (int first = (held - 1) / kTopkThreads * kTopkThreads; first >= 0; first -= kTopkThreads) {
    const int place = first + thread_index();
    Ranked item{0.0f, place};
    int64_t index = 0;
    if (place < held) {
      item = list[place];
      if (item.tag >= best.most) {
        index = start + (item.tag - best.most);
      } else if (item.tag != place) {
        index = load(indices, item.tag);
      }
    }
    sync_block();
    if (item.tag == place) continue;
    store(values, place, item.score);
    store(indices, place, index);
  }
}

CROSSRET_DEVICE float last_score(Shared<const Ranked> list, int count) {
  const Ranked last = list[count - 1];
  return last.score;
}

// A block has a row: of the groups that `groups` names or, where rows do not hold all they may, of every one it puts
// into the list what is better than the k-th. Column 0 is item `start`.
CROSSRET_KERNEL(kTopkThreads, 4)
merge_better(CROSSRET_PARAMETER ScoreRun run, CROSSRET_PARAMETER BestSoFar best, Global<const uint32_t> groups,
             int64_t start) {
  CROSSRET_SHARED(uint32_t, words, kTopkThreads);
  CROSSRET_SHARED(int, counts, 2 * kTopkWarps);  // of two steps, of which the later waits for the earlier
  const Shared<Ranked> list = shared_at<Ranked>(0), waiting = list + best.most;
  const int thread = thread_index(), lane = thread % kWarp, warp = thread / kWarp, row = block_x();
  const int n_segments = segments_of(run), most = best.most;
  const bool every = best.held < most;
  int held = best.held, n_waiting = 0, step = 0;
  float kth = 0.0f;
  bool begun = false;
  for (int window = 0; window < n_segments; window += kTopkThreads) {
    const int own = window + thread;
    uint32_t word = 0;
    if (own < n_segments) word = every ? (1u << kTopkWarps) - 1 : load(groups, int64_t{row} * n_segments + own);
    if (!any_in_block(word != 0)) continue;
    words[thread] = word;
    if (!begun) {
      for (int i = thread; i < held; i += kTopkThreads) {
        list[i] = Ranked{load(best.values, int64_t{row} * most + i), i};
      }
    }
    sync_block();
    if (!begun && held == most) kth = last_score(list, most);
    begun = true;
    const int left = n_segments - window;
    for (int segment = 0; segment < (left < kTopkThreads ? left : kTopkThreads); ++segment) {
      const uint32_t some = words[segment];
      if (some == 0) continue;
      const int column = run.first + (window + segment) * kSegment + thread;
      const bool inside = (some >> warp & 1u) != 0 && column < run.end;
      const float score = inside ? score_at(run, row, column) : 0.0f;
      const bool taken = inside && (held < most || better(score, kth));
      const uint32_t votes = ballot(taken);
      const int at_counts = step * kTopkWarps;
      if (lane == 0) counts[at_counts + warp] = count_ones(votes);
      sync_block();
      int place = n_waiting + count_ones(votes & ((1u << lane) - 1));
      for (int w = 0; w < kTopkWarps; ++w) {
        const int count = counts[at_counts + w];
        if (w < warp) place += count;
        n_waiting += count;
      }
      if (taken) waiting[place] = Ranked{score, most + column};
      step = 1 - step;
      if (n_waiting + kSegment <= kRoom) continue;
      held = put_into_list(list, held, most, waiting, n_waiting);
      n_waiting = 0;
      if (held == most) kth = last_score(list, most);
    }
  }
  if (!begun) return;
  held = put_into_list(list, held, most, waiting, n_waiting);
  store_list(best, row, list, held, start);
}

}  // namespace gpu
}  // namespace crossret
