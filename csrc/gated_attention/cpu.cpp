#include "gated_attention/cpu.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "pairs/parallel.h"

namespace crossret {

CROSSRET_BY_SET(GatedAttentionKernels, gated_attention_kernels)

namespace {

// What a chunk's pairs take; a group's slopes and gates come to it.
constexpr int64_t kChunkBytes = int64_t{8} << 20;
constexpr int64_t kGroupPairs = 512;

int64_t parts(int64_t items, int64_t unit) { return (items + unit - 1) / unit; }

// The pairs of a chunk in both sides' orders, cut into tasks and blocks.
class Orders {
 public:
  // To be filled image by image before `arrange`.
  std::vector<GatedPair>& pairs() { return pairs_[0]; }

  void arrange(const GatedAttentionCall& call, GatedChunk& chunk) {
    int64_t slot = 0;
    for (GatedPair& pair : pairs_[0]) pair.slot = slot++;
    chunk.pairs = slot;
    // Sorted by captions, those of one by images.
    std::vector<int64_t> starts(call.sides[1].count + 1, 0);
    for (const GatedPair& pair : pairs_[0]) ++starts[pair.items[1] + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    pairs_[1].resize(pairs_[0].size());
    for (const GatedPair& pair : pairs_[0]) pairs_[1][starts[pair.items[1]]++] = pair;
    for (int64_t side = 0; side < 2; ++side) chunk.orders[side] = cut(side);
  }

 private:
  // Items of few pairs share a task, so that its blocks are full: nearly one, or more.
  GatedOrder cut(int64_t side) {
    constexpr int64_t enough = kGatedColumns * 3 / 4;
    const std::vector<GatedPair>& pairs = pairs_[side];
    const auto count = static_cast<int64_t>(pairs.size());
    const auto behind = [&](int64_t at) {  // the pairs of the same item
      int64_t next = at;
      while (next < count && pairs[next].items[side] == pairs[at].items[side]) ++next;
      return next;
    };
    GatedOrder order{};
    std::vector<GatedBlock>& blocks = blocks_[side];
    std::vector<GatedTask>& tasks = tasks_[side];
    std::vector<GatedGroup>& groups = groups_[side];
    blocks.clear();
    tasks.clear();
    groups.assign(1, {});
    for (int64_t at = 0; at < count;) {
      int64_t end = behind(at);
      while (end < count) {
        const int64_t next = behind(end);
        if (end - at >= enough && next - at > kGatedColumns) break;
        end = next;
      }
      const auto task = static_cast<int64_t>(tasks.size()), first = static_cast<int64_t>(blocks.size());
      if (groups.back().slopes >= kGroupPairs) groups.push_back({task, 0, 0});
      GatedGroup& group = groups.back();
      ++group.count;
      for (; at < end; at += kGatedColumns) {
        const int64_t columns = std::min(end - at, kGatedColumns);
        blocks.push_back({at, columns, order.columns, group.slopes});
        order.columns += round_up(columns, kPad);
        group.slopes += round_up(columns, 2);
      }
      at = end;
      order.most_slopes = std::max(order.most_slopes, group.slopes);
      tasks.push_back({first, static_cast<int64_t>(blocks.size()) - first});
    }
    order.pairs = pairs.data();
    order.blocks = blocks.data();
    order.tasks = tasks.data();
    order.groups = groups.data();
    order.n_blocks = static_cast<int64_t>(blocks.size());
    order.n_tasks = static_cast<int64_t>(tasks.size());
    order.n_groups = static_cast<int64_t>(groups.size());
    return order;
  }

  std::vector<GatedPair> pairs_[2];
  std::vector<GatedBlock> blocks_[2];
  std::vector<GatedTask> tasks_[2];
  std::vector<GatedGroup> groups_[2];
};

// A call's phases, chunk by chunk, whatever the threads in one order.
class Run {
 public:
  Run(const Kernels& kernels, const GatedAttentionCall& call, const GatedAttentionGradients* gradients)
      : kernels_(gated_attention_kernels_of(kernels)), call_(call), gradients_(gradients) {
    Workspace scratch;
    kernels_.scratch(call, gradients != nullptr, scratch);
    scratch_ = scratch.bytes();
  }

  // Scores where these are wanted, else gradients.
  void all(float* scores) {
    if (call_.pairs ? call_.n_pairs == 0 : call_.sides[0].count == 0 || call_.sides[1].count == 0) return;
    copy_weights();
    if (call_.pairs != nullptr) {
      listed(scores);
    } else {
      rectangles(scores);
    }
  }

 private:
  void copy_weights() {
    Workspace counted;
    kernels_.lay_out_weights(call_, gradients_ != nullptr, weights_, counted);
    Workspace laid(held_weights_.bytes(counted.bytes()));
    kernels_.lay_out_weights(call_, gradients_ != nullptr, weights_, laid);
    for (int64_t side = 0; side < 2; ++side) {
      const GatedSide& of = call_.sides[side];
      each(parts(std::max(of.hidden, call_.gate), kGatedRows), static_cast<double>(of.hidden * call_.gate),
           [&](int64_t part, Workspace&) { kernels_.copy_weights(call_, weights_, side, part); });
    }
  }

  // Pairs of a chunk.
  int64_t wanted() const {
    const GatedSide& v = call_.sides[0];
    int64_t floats = call_.dim;
    if (gradients_ != nullptr) floats += v.hidden + v.length + call_.gate;
    return std::max(kChunkBytes / (floats * static_cast<int64_t>(sizeof(float))), kGatedColumns);
  }

  // Nearly as many images as captions.
  void rectangles(float* scores) {
    const int64_t n_images = call_.sides[0].count, n_captions = call_.sides[1].count, pairs = wanted();
    const auto some = [](int64_t wanted, int64_t items) {
      return std::clamp<int64_t>(items, 1, std::max<int64_t>(wanted / kPad * kPad, kPad / 2));
    };
    int64_t images = some(static_cast<int64_t>(std::sqrt(static_cast<double>(pairs))), n_images);
    const int64_t captions = some(pairs / images, n_captions);
    images = some(pairs / captions, n_images);
    for (int64_t i = 0; i < n_images; i += images) {
      for (int64_t j = 0; j < n_captions; j += captions) {
        orders_.pairs().clear();
        for (int64_t image = i; image < std::min(i + images, n_images); ++image) {
          for (int64_t caption = j; caption < std::min(j + captions, n_captions); ++caption) {
            orders_.pairs().push_back({{image, caption}, image * n_captions + caption, 0});
          }
        }
        chunk(scores);
      }
    }
  }

  void listed(float* scores) {
    std::vector<int64_t> places(call_.n_pairs);
    std::iota(places.begin(), places.end(), 0);
    const auto image = [this](int64_t place) { return call_.pairs[2 * place]; };
    std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) { return image(a) < image(b); });
    const int64_t most = wanted();
    for (int64_t first = 0; first < call_.n_pairs; first += most) {
      orders_.pairs().clear();
      for (int64_t at = first; at < std::min(first + most, call_.n_pairs); ++at) {
        const int64_t place = places[at];
        orders_.pairs().push_back({{image(place), call_.pairs[2 * place + 1]}, place, 0});
      }
      chunk(scores);
    }
  }

  void chunk(float* scores) {
    orders_.arrange(call_, chunk_);
    Workspace counted;
    kernels_.lay_out(call_, gradients_ != nullptr, chunk_, counted);
    Workspace laid(held_.bytes(counted.bytes()));
    kernels_.lay_out(call_, gradients_ != nullptr, chunk_, laid);
    each(chunk_.orders[0].n_blocks, work(0), [&](int64_t block, Workspace& workspace) {
      kernels_.attend_regions(call_, weights_, chunk_, block, workspace);
    });
    if (gradients_ != nullptr) return differentiate();
    each(chunk_.orders[1].n_blocks, work(1), [&](int64_t block, Workspace& workspace) {
      kernels_.attend_words(call_, weights_, chunk_, scores, block, workspace);
    });
  }

  // Multiply-adds of a side's product with W.
  double work(int64_t side) const {
    return static_cast<double>(chunk_.pairs) * static_cast<double>(call_.sides[side].hidden * call_.gate);
  }

  void each(int64_t tasks, double multiply_adds, const std::function<void(int64_t, Workspace&)>& task) {
    parallel(tasks, multiply_adds, scratch_, tasks_, task);
  }

  void differentiate() {
    for (const int64_t side : {1, 0}) {
      const GatedOrder& order = chunk_.orders[side];
      for (int64_t at = 0; at < order.n_groups; ++at) {
        const GatedGroup& group = order.groups[at];
        const double products = work(side) * static_cast<double>(group.count) / static_cast<double>(order.n_tasks);
        kernels_.fill_up(call_, chunk_, side, group);
        each(group.count, 2 * products, [&](int64_t task, Workspace& workspace) {
          kernels_.differentiate(call_, *gradients_, weights_, chunk_, side, group, group.first + task, workspace);
        });
        each(parts(call_.sides[side].hidden, kGatedRows), products,
             [&](int64_t part, Workspace&) { kernels_.add_to_weights(call_, *gradients_, chunk_, side, group, part); });
      }
      kernels_.add_to_biases(call_, *gradients_, chunk_, side);
      each(parts(call_.gate, kGatedRows), static_cast<double>(chunk_.pairs * call_.gate),
           [&](int64_t part, Workspace&) { kernels_.add_to_memories(call_, *gradients_, chunk_, side, part); });
    }
  }

  const GatedAttentionKernels& kernels_;
  const GatedAttentionCall& call_;
  const GatedAttentionGradients* const gradients_;
  GatedWeights weights_{};
  GatedChunk chunk_{};
  Orders orders_;
  Memory held_weights_, held_, tasks_;
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
