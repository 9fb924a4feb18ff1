#include "gated_attention/cpu.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "pairs/parallel.h"

namespace crossret {

CROSSRET_BY_SET(GatedAttentionKernels, gated_attention_kernels)

namespace {

// What a chunk's pairs take, less than the last cache holds.
constexpr int64_t kChunkBytes = int64_t{24} << 20;

int64_t parts(int64_t items, int64_t unit) { return (items + unit - 1) / unit; }

// A call's phases, chunk by chunk, whatever the threads in one order.
class Run {
 public:
  Run(const Kernels& kernels, const GatedAttentionCall& call, const GatedAttentionGradients* gradients)
      : kernels_(gated_attention_kernels_of(kernels)), call_(call), gradients_(gradients) {
    choose_counts();
    Workspace counted, scratch;
    kernels_.lay_out(call, gradients != nullptr, chunk_, counted);
    kernels_.scratch(call, gradients != nullptr, chunk_, scratch);
    Workspace laid(held_.bytes(counted.bytes()));
    kernels_.lay_out(call, gradients != nullptr, chunk_, laid);
    scratch_ = scratch.bytes();
  }

  // Scores where these are wanted, else gradients.
  void all(float* scores) {
    if (call_.sides[0].count == 0 || call_.sides[1].count == 0) return;
    const int64_t counts[2] = {chunk_.count[0], chunk_.count[1]};
    for (int64_t side = 0; side < 2; ++side) {
      const GatedSide& of = call_.sides[side];
      each(parts(std::max(of.hidden, call_.gate), kGatedRows), static_cast<double>(of.hidden * call_.gate),
           [&](int64_t part, Workspace&) { kernels_.copy_weights(call_, chunk_, side, part); });
    }
    for (int64_t i = 0; i < call_.sides[0].count; i += counts[0]) {
      for (int64_t j = 0; j < call_.sides[1].count; j += counts[1]) {
        chunk_.first[0] = i;
        chunk_.first[1] = j;
        for (int64_t side = 0; side < 2; ++side) {
          chunk_.count[side] = std::min(counts[side], call_.sides[side].count - chunk_.first[side]);
          kernels_.prepare(call_, chunk_, side);
        }
        by_block(0, [&](int64_t image, int64_t block, Workspace& workspace) {
          kernels_.attend_regions(call_, chunk_, image, block, workspace);
        });
        if (gradients_ != nullptr) {
          differentiate();
        } else {
          by_block(1, [&](int64_t caption, int64_t block, Workspace& workspace) {
            kernels_.attend_words(call_, chunk_, scores, caption, block, workspace);
          });
        }
      }
    }
  }

 private:
  // Nearly as many images as captions, of which the latter are the columns of more tasks.
  void choose_counts() {
    const GatedSide &v = call_.sides[0], &t = call_.sides[1];
    int64_t floats = call_.dim;
    if (gradients_ != nullptr) floats += v.hidden + v.length + std::max(v.hidden, t.hidden) + 2 * call_.gate;
    const int64_t pairs = kChunkBytes / (floats * static_cast<int64_t>(sizeof(float)));
    const auto some = [](int64_t wanted, int64_t items) {
      return std::clamp<int64_t>(items, 1, std::max<int64_t>(wanted / kPad * kPad, kPad / 2));
    };
    chunk_.count[0] = some(static_cast<int64_t>(std::sqrt(static_cast<double>(pairs))), v.count);
    chunk_.count[1] = some(pairs / chunk_.count[0], t.count);
    chunk_.count[0] = some(pairs / chunk_.count[1], v.count);
  }

  // Multiply-adds of a side's product with W.
  double work(int64_t side) const {
    return static_cast<double>(chunk_.pairs()) * static_cast<double>(call_.sides[side].hidden * call_.gate);
  }

  void each(int64_t tasks, double multiply_adds, const std::function<void(int64_t, Workspace&)>& task) {
    parallel(tasks, multiply_adds, scratch_, tasks_, task);
  }

  void by_block(int64_t side, const std::function<void(int64_t, int64_t, Workspace&)>& task) {
    const int64_t blocks = parts(chunk_.count[1 - side], kGatedColumns);
    each(chunk_.count[side] * blocks, work(side),
         [&](int64_t at, Workspace& workspace) { task(at / blocks, at % blocks, workspace); });
  }

  void differentiate() {
    for (const int64_t side : {1, 0}) {
      const auto differentiate = side == 1 ? kernels_.differentiate_words : kernels_.differentiate_regions;
      each(chunk_.count[side], 2 * work(side),
           [&](int64_t own, Workspace& workspace) { differentiate(call_, *gradients_, chunk_, own, workspace); });
      const int64_t rows = parts(call_.sides[side].hidden, kGatedRows), units = parts(call_.gate, kGatedRows);
      each(rows + units, work(side), [&](int64_t task, Workspace&) {
        if (task < rows) {
          kernels_.add_to_weights(call_, *gradients_, chunk_, side, task);
        } else {
          kernels_.add_to_memories(call_, *gradients_, chunk_, side, task - rows);
        }
      });
    }
  }

  const GatedAttentionKernels& kernels_;
  const GatedAttentionCall& call_;
  const GatedAttentionGradients* const gradients_;
  GatedChunk chunk_{};
  Memory held_, tasks_;
  int64_t scratch_ = 0;
};

}  // namespace

void gated_attention(const Kernels& kernels, const GatedAttentionCall& call, float* scores) {
  Run(kernels, call, nullptr).all(scores);
}

void differentiate_gated_attention(const Kernels& kernels, const GatedAttentionCall& call,
                                   const GatedAttentionGradients& gradients) {
  Run(kernels, call, &gradients).all(nullptr);
}

}  // namespace crossret
