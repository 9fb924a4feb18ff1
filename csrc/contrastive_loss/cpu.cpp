#include "contrastive_loss/cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "pairs/parallel.h"
#include "score_matrix/bands.h"

namespace crossret {

CROSSRET_BY_SET(ContrastiveLossKernels, contrastive_loss_kernels)

namespace {

constexpr int64_t kPart = 256;  // positives that are finished together

double work_of(const ContrastiveCall& call) { return 24 * call.elements(); }

// Calls run(tile, scratch, band) for every tile, bands in any order.
template <class Run>
void each_tile_of_all(const ContrastiveCall& call, const Bands& bands, const Run& run) {
  Memory memory;
  parallel(bands.count, work_of(call), tile_bytes(), memory, [&](int64_t band, Workspace& workspace) {
    float* const scratch = workspace.floats(kTileFloats);
    const int64_t first = band * bands.rows, last = std::min(first + bands.rows, call.n_rows);
    each_tile(call, first, last, [&](const Tile& tile) { run(tile, scratch, band); });
  });
}

// The same with the place of a tile's gradient, null where it is not wanted, and its band's sums, which are added up in
// one order.
template <class Run>
ContrastiveSums sums_of_all(const ContrastiveCall& call, char* out, int64_t out_row_bytes, const Run& run) {
  const Bands bands(call.n_rows, kSoftmaxKinds);
  std::vector<ContrastiveSums> sums(bands.count);
  each_tile_of_all(call, bands, [&](const Tile& tile, float* scratch, int64_t band) {
    const int64_t place = tile.row * out_row_bytes + tile.column * call.element_bytes();
    run(tile, scratch, out == nullptr ? nullptr : out + place, sums[band]);
  });
  ContrastiveSums total{};
  for (const ContrastiveSums& each : sums) total.scores += each.scores, total.all += each.all;
  return total;
}

// Statistics of no logits.
void clear(const SoftmaxStatistics& all, int64_t count) {
  for (int kind = 0; kind < kSoftmaxKinds; ++kind) {
    std::fill_n(all.kind(kind, 0), count, kind == 0 ? std::numeric_limits<float>::lowest() : 0.0f);
  }
}

// The cross entropy of a row or column, and what is kept of it, n apart.
double finish(const SoftmaxStatistics& all, int64_t at, double smoothing, float* kept, int64_t n) {
  const double powers = *all.kind(1, at), positives = *all.kind(3, at), count = *all.kind(5, at);
  const bool nothing = positives == 0;
  const double target = nothing ? 0 : (1 - smoothing) / positives;
  const double of_all = nothing || count == 0 ? 0 : smoothing / count;
  kept[0] = *all.kind(0, at);
  kept[n] = nothing ? 0.0f : static_cast<float>(1 / powers);
  kept[2 * n] = static_cast<float>(target);
  kept[3 * n] = static_cast<float>(of_all);
  return nothing ? 0 : std::log(powers) - target * *all.kind(2, at) - of_all * *all.kind(4, at);
}

// What is kept of rows or columns, by the gradients of half of their losses; 0 where there is no positive.
class Pulls {
 public:
  Pulls(const float* kept, const float* grads, int64_t n) : most_(kept), values_(3 * n), n_(n) {
    for (int64_t kind = 0; kind < 3; ++kind) {
      for (int64_t i = 0; i < n; ++i) {
        const float value = kept[(kind + 1) * n + i];
        values_[kind * n + i] = value == 0.0f ? 0.0f : 0.5f * grads[i] * value;
      }
    }
  }

  SoftmaxGradients gradients() const { return {most_, values_.data(), values_.data() + n_, values_.data() + 2 * n_}; }

 private:
  const float* most_;
  std::vector<float> values_;
  int64_t n_;
};

}  // namespace

void measure_infonce(const Kernels& kernels, const ContrastiveCall& call, double label_smoothing, float* losses,
                     float* statistics) {
  const int64_t n = call.n_rows;
  if (n == 0) return;
  const ContrastiveLossKernels& run = contrastive_loss_kernels_of(kernels);
  const Bands bands(n, kSoftmaxKinds);
  std::vector<float> of_rows(kSoftmaxKinds * n), of_columns(bands.count * kSoftmaxKinds * n);
  const auto columns_of = [&](int64_t band, int64_t at) {
    return SoftmaxStatistics{of_columns.data() + band * kSoftmaxKinds * n + at, n};
  };
  clear({of_rows.data(), n}, n);
  for (int64_t band = 0; band < bands.count; ++band) clear(columns_of(band, 0), n);
  each_tile_of_all(call, bands, [&](const Tile& tile, float* scratch, int64_t band) {
    const int64_t positive = tile.matched ? tile.column - call.offset : 0;
    run.measure_softmax(call, tile, {of_rows.data() + tile.row, n}, columns_of(band, positive), scratch);
  });
  const double merging = static_cast<double>(bands.count) * static_cast<double>(n);
  Memory memory;
  parallel((n + kPart - 1) / kPart, 48 * merging, 0, memory, [&](int64_t part, Workspace&) {
    const int64_t first = part * kPart, last = std::min(first + kPart, n);
    for (int64_t band = 1; band < bands.count; ++band) {
      run.merge_softmax(columns_of(0, first), columns_of(band, first), last - first);
    }
    for (int64_t i = first; i < last; ++i) {
      float* const kept = statistics + i;
      const double of_row = finish({of_rows.data(), n}, i, label_smoothing, kept, n);
      losses[i] = static_cast<float>(
          (of_row + finish(columns_of(0, 0), i, label_smoothing, kept + kInfoNceKept / 2 * n, n)) / 2);
    }
  });
}

ContrastiveSums differentiate_infonce(const Kernels& kernels, const ContrastiveCall& call, const float* grads,
                                      const float* statistics, char* out, int64_t out_row_bytes) {
  const int64_t n = call.n_rows;
  const Pulls rows(statistics, grads, n), columns(statistics + kInfoNceKept / 2 * n, grads, n);
  return sums_of_all(call, out, out_row_bytes, [&](const Tile& tile, float* scratch, char* to, ContrastiveSums& sums) {
    contrastive_loss_kernels_of(kernels).differentiate_softmax(call, tile, rows.gradients(), columns.gradients(), to,
                                                               out_row_bytes, scratch, sums);
  });
}

void measure_sigmoid_loss(const Kernels& kernels, const ContrastiveCall& call, float* losses) {
  std::fill_n(losses, call.n_rows, 0.0f);
  each_tile_of_all(call, Bands(call.n_rows, kSoftmaxKinds), [&](const Tile& tile, float* scratch, int64_t) {
    contrastive_loss_kernels_of(kernels).measure_sigmoid(call, tile, losses, scratch);
  });
}

ContrastiveSums differentiate_sigmoid_loss(const Kernels& kernels, const ContrastiveCall& call, const float* grads,
                                           char* out, int64_t out_row_bytes) {
  return sums_of_all(call, out, out_row_bytes, [&](const Tile& tile, float* scratch, char* to, ContrastiveSums& sums) {
    contrastive_loss_kernels_of(kernels).differentiate_sigmoid(call, tile, grads, to, out_row_bytes, scratch, sums);
  });
}

}  // namespace crossret
