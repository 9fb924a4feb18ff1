#include "ranking_loss/cpu.h"

#include <cmath>
#include <vector>

#include "pairs/parallel.h"
#include "score_matrix/bands.h"

namespace crossret {

CROSSRET_BY_SET(RankingLossKernels, ranking_loss_kernels)

namespace {

constexpr int kKinds = 3;       // of statistics
constexpr int64_t kPart = 256;  // positives that are finished together

double work_of(const RankingLossCall& call) {
  return (call.negatives == Negatives::softmax ? 16 : 4) * call.elements();
}

// Statistics of no hinges.
void clear(const RankingLossCall& call, const HingeStatistics& all, int64_t count) {
  for (int kind = 0; kind < kKinds; ++kind) {
    const bool place = kind == 1 && call.negatives == Negatives::hardest;
    std::fill_n(all.kind(kind, 0), count, place ? -1.0f : 0.0f);
  }
}

// The loss of a row or column, with its key and total.
float finish(const RankingLossCall& call, double order, const HingeStatistics& all, int64_t at, float* key,
             float* total) {
  const float first = *all.kind(0, at), second = *all.kind(1, at);
  const bool nothing = first == 0.0f;
  *key = second;
  if (call.negatives == Negatives::hardest) {
    *total = nothing ? 0.0f : 1.0f;
    return first;
  }
  *total = second;
  if (call.negatives == Negatives::sum) return first;
  const double powers = second, root = std::pow(powers, 1 / order);
  *key = nothing ? 0.0f : static_cast<float>(first * root);
  // Σ (h / loss)ᵖ⁻¹ of Σ (h / M)ᵖ⁻¹, as loss / M is the root and its p-th power the powers.
  *total = nothing ? 0.0f : static_cast<float>(*all.kind(2, at) * root / powers);
  return *key;
}

}  // namespace

void measure_ranking_loss(const Kernels& kernels, const RankingLossCall& call, double order, float* losses,
                          float* statistics) {
  const int64_t n = call.n_rows;
  if (n == 0) return;
  const RankingLossKernels& run = ranking_loss_kernels_of(kernels);
  const Bands bands(n, kKinds);
  std::vector<float> of_rows(kKinds * n), of_columns(bands.count * kKinds * n);
  const auto columns_of = [&](int64_t band, int64_t at) {
    return HingeStatistics{of_columns.data() + band * kKinds * n + at, n};
  };
  Memory memory;
  parallel(bands.count, work_of(call), tile_bytes(), memory, [&](int64_t band, Workspace& workspace) {
    float* const scratch = workspace.floats(kTileFloats);
    const int64_t first = band * bands.rows, last = std::min(first + bands.rows, n);
    clear(call, columns_of(band, 0), n);
    clear(call, {of_rows.data() + first, n}, last - first);
    each_tile(call, first, last, [&](const Tile& tile) {
      const int64_t positive = tile.matched ? tile.column - call.offset : 0;
      run.measure(call, tile, {of_rows.data() + tile.row, n}, columns_of(band, positive), scratch);
    });
  });
  const double merging = static_cast<double>(bands.count) * static_cast<double>(n);
  parallel((n + kPart - 1) / kPart, 4 * merging, 0, memory, [&](int64_t part, Workspace&) {
    const int64_t first = part * kPart, last = std::min(first + kPart, n);
    for (int64_t band = 1; band < bands.count; ++band) {
      run.merge(call, columns_of(0, first), columns_of(band, first), last - first);
    }
    for (int64_t i = first; i < last; ++i) {
      float *const key = statistics + i, *const column_key = key + 2 * n;
      losses[i] = finish(call, order, {of_rows.data(), n}, i, key, key + n) +
                  finish(call, order, columns_of(0, 0), i, column_key, column_key + n);
    }
  });
}

void differentiate_ranking_loss(const Kernels& kernels, const RankingLossCall& call, const float* grads,
                                const float* statistics, char* out, int64_t out_row_bytes) {
  const int64_t n = call.n_rows;
  if (n == 0) return;
  const HingeGradients rows{grads, statistics, statistics + n}, columns{grads, statistics + 2 * n, statistics + 3 * n};
  const Bands bands(n, kKinds);
  Memory memory;
  parallel(bands.count, work_of(call), tile_bytes(), memory, [&](int64_t band, Workspace& workspace) {
    float* const scratch = workspace.floats(kTileFloats);
    const int64_t first = band * bands.rows, last = std::min(first + bands.rows, n);
    each_tile(call, first, last, [&](const Tile& tile) {
      char* const to = out + tile.row * out_row_bytes + tile.column * call.element_bytes();
      ranking_loss_kernels_of(kernels).differentiate(call, tile, rows, columns, to, out_row_bytes, scratch);
    });
  });
}

}  // namespace crossret
