// Checks the kernels of every instruction set against the formulas in double precision, one pair at a time, without
// torch: scores, best contexts and the gradients of both sides, for features held in every way that a call takes; and
// products of matrices.
//   kernels_test [isa …]: those named, each of which must be there; else all that this processor has.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cross_attention/cpu.h"
#include "dispatch.h"
#include "heterogeneous_attention/cpu.h"
#include "maxsim/cpu.h"
#include "pairs/parallel.h"
#include "self_attention/problem.h"
#include "attention.h"
#include "batch.h"
#include "dense.h"
#include "layered.h"

namespace crossret {

// An instruction set that is not linked in leaves these behind.
#define CROSSRET_ABSENT(isa, ...)                                                   \
  namespace isa {                                                                   \
  extern const Kernels kernels __attribute__((weak));                               \
  const Kernels kernels{#isa};                                                      \
  extern const CrossAttentionKernels cross_attention_kernels __attribute__((weak)); \
  const CrossAttentionKernels cross_attention_kernels{};                            \
  extern const MaxSimKernels maxsim_kernels __attribute__((weak));                  \
  const MaxSimKernels maxsim_kernels{};                                             \
  extern const DenseKernels dense_kernels __attribute__((weak));                    \
  const DenseKernels dense_kernels{};                                               \
  extern const HeterogeneousKernels heterogeneous_kernels __attribute__((weak));    \
  const HeterogeneousKernels heterogeneous_kernels{};                               \
  extern const SelfAttentionKernels self_attention_kernels __attribute__((weak));   \
  const SelfAttentionKernels self_attention_kernels{};                              \
  }
CROSSRET_SETS(CROSSRET_ABSENT, )
#undef CROSSRET_ABSENT

// pairs/parallel.cpp without torch: as many threads as the test wants, however little there is to do.
bool in_forked_child() { return false; }
int64_t thread_count() { return crossret_test::test_threads; }
int64_t worthwhile_threads(double) { return crossret_test::test_threads; }
double pass_work(const RaggedView&) { return 0; }

void parallel(int64_t items, double, int64_t bytes, Memory& memory,
              const std::function<void(int64_t, Workspace&)>& work) {
  if (items == 0) return;
  const int64_t workers = std::min(items, crossret_test::test_threads), stride = round_up(bytes, 64);
  char* const first = static_cast<char*>(memory.bytes(workers * stride + 64));
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(first, workers * stride + 64);  // between pieces of a call before
#endif
  std::memset(first, 0xFF, workers * stride);  // NaN: nothing may count on what it finds there
  std::atomic<int64_t> next{0};
  const auto run = [&](int64_t worker) {
    for (int64_t item = next++; item < items; item = next++) {
      Workspace workspace(first + worker * stride);
      work(item, workspace);
    }
  };
  std::vector<std::thread> others;
  for (int64_t worker = 1; worker < workers; ++worker) others.emplace_back(run, worker);
  run(0);
  for (std::thread& other : others) other.join();
}

}  // namespace crossret

namespace crossret_test {
namespace {

// Every norm, clip, pooling and direction, and with each of them other sizes, dtypes and forms.
std::vector<Case> all_cases() {
  constexpr Shape shapes[] = {{5, 6, 0, 19, 33}, {3, 4, 1, 44, 130}, {17, 11, 1, 6, 16}, {4, 3, 3, 13, 300},
                              {3, 3, 12, 30, 7}, {4, 4, 0, 9, 66},   {3, 9, 36, 36, 24}};
  constexpr Pooling poolings[] = {Pooling::lse, Pooling::avg, Pooling::sum, Pooling::max};
  struct {
    Norm norm;
    double slope, threshold = -1;
  } constexpr norms[] = {{Norm::l2, 1},   {Norm::l2, 0.125}, {Norm::softmax, 1}, {Norm::l1, 1},       {Norm::l1, 0.1},
                         {Norm::none, 1}, {Norm::none, 0},   {Norm::minmax, 1},  {Norm::minmax, 1, 0}};
  std::vector<Case> cases;
  Random random(1);
  const auto add_case = [&](const Options& options, bool words_attend, const Shape& shape) {
    const auto at = static_cast<int>(cases.size());
    Case made{};
    made.options = options;
    made.options.slope = static_cast<float>(options.slope);
    made.words_attend = words_attend;
    made.shape = shape;
    made.dtype = static_cast<Dtype>(at % 3);
    made.options.normalize = random() % 2;
    made.listed_pairs = random() % 3 == 0;
    made.zero_row = options.pooling != Pooling::max && random() % 3 == 0;
    made.threads = random() % 3 == 0 ? 3 : 1;
    for (Form& form : made.forms) form = static_cast<Form>(random() % 4);
    cases.push_back(made);
  };
  for (const auto& norm : norms) {
    for (const Pooling pooling : poolings) {
      for (const bool words_attend : {true, false}) {
        const double lambda = norm.norm == Norm::none ? 2 : random() % 8 == 0 ? -3 : 9;
        add_case({true, false, norm.norm, norm.slope, lambda, random() % 2 ? 6.0 : 1.5, pooling, norm.threshold},
                 words_attend, shapes[cases.size() % 7]);
      }
    }
  }
  for (int round = 0; round < 4; ++round) {
    for (const Pooling pooling : poolings) {
      for (const bool words_attend : {true, false}) {
        add_case({false, false, Norm::none, 1, 1, 1, pooling}, words_attend, shapes[cases.size() % 7]);
      }
    }
  }
  // So deep that products of more than a few rows are cut along k; and, for Sum-Max, items so long that they are taken
  // in parts.
  add_case({true, false, Norm::l2, 0.1, 9, 6, Pooling::lse}, true, {3, 4, 19, 30, 1030});
  add_case({true, false, Norm::softmax, 1, 9, 6, Pooling::avg}, false, {4, 3, 19, 30, 1029});
  add_case({false, false, Norm::none, 1, 1, 1, Pooling::sum}, true, {2, 2, 70, 140, 1031});
  add_case({false, false, Norm::none, 1, 1, 1, Pooling::avg}, false, {1, 2, 70, 140, 1040});
  return cases;
}

}  // namespace
}  // namespace crossret_test

int main(int argc, char** argv) {
  using namespace crossret;
  using namespace crossret_test;
  const std::vector<std::string> available = available_isas(), wanted(argv + 1, argv + argc);
  std::vector<std::string> names;
  for (const std::string& name : wanted) {
    if (std::find(available.begin(), available.end(), name) == available.end()) fail("no %s here", name.c_str());
  }
  for (const std::string& name : available) {
    select_isa(name);
    const bool linked = kernels(Dtype::float32, false).layout != nullptr;
    const bool asked = std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    if (asked && !linked) fail("%s is not linked in", name.c_str());
    if (linked && (wanted.empty() || asked)) names.push_back(name);
  }
  const std::vector<Case> cases = all_cases();
  std::vector<double> worst(names.size(), 0.0);
  for (size_t k = 0; k < cases.size(); ++k) {
    check_reference(cases[k].options);
    unsigned seed = static_cast<unsigned>(k);
    auto batch = std::make_unique<Batch>(cases[k], seed);
    for (int tries = 0; !batch->well_posed() && tries < 50; ++tries) {
      batch = std::make_unique<Batch>(cases[k], seed += 1000);
    }
    if (!batch->well_posed()) fail("no well-posed batch for case %d", static_cast<int>(k));
    for (size_t i = 0; i < names.size(); ++i) {
      select_isa(names[i]);
      const Kernels& chosen = kernels(cases[k].dtype, false);
      worst[i] = std::max(worst[i], batch->check(chosen, false));
      const RaggedView any{nullptr, 0, 2, 0, 0, cases[k].dtype, false, nullptr};
      if (chosen.layout(any, true, true).kind == Elements::split_context) batch->check(chosen, true);
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    select_isa(names[i]);
    check_dense(kernels(Dtype::float32, false));
    check_layered(kernels(Dtype::float32, false));
    check_attention(kernels(Dtype::float32, false));
    std::printf("%s: %d cases, errors up to %.2f of the tolerance\n", names[i].c_str(), static_cast<int>(cases.size()),
                worst[i]);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
