#include "common/parallel.h"

#include <pthread.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>

namespace crossret {

namespace {

std::atomic<bool> forked{false};
[[maybe_unused]] const int watching_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

bool in_forked_child() { return forked; }

int64_t thread_count() { return forked ? 1 : static_cast<int64_t>(torch::stable::get_num_threads()); }

void parallel(int64_t items, int64_t bytes, Memory& memory, const std::function<void(int64_t, Workspace&)>& work) {
  if (items == 0) return;
  const int64_t workers = std::min(items, thread_count());
  const int64_t stride = (bytes + 63) / 64 * 64;
  // Taken here, not by the workers: running out of memory then raises where it can be caught.
  char* const first_workspace = static_cast<char*>(memory.bytes(workers * stride + 64));
  std::atomic<int64_t> next{0};
  // Items are handed out one by one, so that a slow core does not hold up the rest; who computes an item does not show
  // in its result.
  torch::stable::parallel_for(0, workers, 1, [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      for (int64_t item = next++; item < items; item = next++) {
        Workspace workspace(first_workspace + worker * stride);
        work(item, workspace);
      }
    }
  });
}

}  // namespace crossret
