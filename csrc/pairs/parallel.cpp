#include "pairs/parallel.h"

#include <pthread.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cfenv>

namespace crossret {

namespace {

// A thread's rounding mode and treatment of subnormal numbers.
struct FloatMode {
  std::fenv_t mode;
  FloatMode() { std::fegetenv(&mode); }
  void set() const { std::fesetenv(&mode); }
};

std::atomic<bool> forked{false};
[[maybe_unused]] const int watching_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

bool in_forked_child() { return forked; }

int64_t thread_count() { return forked ? 1 : static_cast<int64_t>(torch::stable::get_num_threads()); }

int64_t worthwhile_threads(double multiply_adds) {
  // About 30 µs of one thread, several times what waking an idle core takes.
  constexpr double grain = 1 << 20;
  const double worth = multiply_adds / grain;
  if (worth < 2) return 1;  // before torch is asked
  return static_cast<int64_t>(std::min(worth, static_cast<double>(thread_count())));
}

double pass_work(const RaggedView& side) {
  constexpr double per_element = 4;
  return per_element * static_cast<double>(side.dim) * static_cast<double>(side.rows);
}

void parallel(int64_t items, double multiply_adds, int64_t bytes, Memory& memory,
              const std::function<void(int64_t, Workspace&)>& work) {
  if (items == 0) return;
  const int64_t workers = std::min(items, worthwhile_threads(multiply_adds));
  const int64_t stride = (bytes + 63) / 64 * 64;
  // Allocated here, not by the workers, so that running out of memory raises where it can be caught.
  char* const first_workspace = static_cast<char*>(memory.bytes(workers * stride + 64));
  std::atomic<int64_t> next{0};
  // Items are handed out a few at a time: neighbours stay on one core, and a slow core does not delay the rest.
  const int64_t few = std::clamp<int64_t>(items / (32 * workers), 1, 8);
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      for (int64_t begin = next.fetch_add(few); begin < items; begin = next.fetch_add(few)) {
        for (int64_t item = begin; item < std::min(begin + few, items); ++item) {
          Workspace workspace(first_workspace + worker * stride);
          work(item, workspace);
        }
      }
    }
  };
  if (workers == 1) return run(0, 1);
  // Workers take the caller's floating-point mode: torch.set_flush_denormal sets it for the calling thread alone.
  torch::stable::parallel_for(0, workers, 1, [&run, caller = FloatMode()](int64_t first, int64_t last) {
    const FloatMode own;
    caller.set();
    run(first, last);
    own.set();
  });
}

}  // namespace crossret
