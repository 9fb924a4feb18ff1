// Ranking losses over tensors, whose arguments are checked as far as kernels rely on them: the CPU's library has these
// functions and operations of tensors.cpp, CUDA's of cuda_tensors.cpp.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <utility>

#include "ranking_loss/problem.h"
#include "tensor.h"

namespace crossret {

// What both operations take, in the order of their schemas, gradients and statistics apart.
struct RankingLossArguments {
  torch::stable::Tensor scores;
  std::optional<torch::stable::Tensor> image_ids, caption_ids;
  double margin;
  Negatives negatives;
  double order;
  Reduction reduction;
  int64_t offset;
};

// (loss, statistics): float32, a scalar or (n_rows), and (4, n_rows).
std::pair<torch::stable::Tensor, torch::stable::Tensor> ranking_loss(const RankingLossArguments& arguments);

torch::stable::Tensor ranking_loss_gradient(const torch::stable::Tensor& grad_loss,
                                            const torch::stable::Tensor& statistics,
                                            const RankingLossArguments& arguments);

// What holds on every device, checked.
inline void check_ranking_loss(const RankingLossArguments& given) {
  STD_TORCH_CHECK(given.scores.dim() == 2, "scores must be a 2-D tensor");
  const int64_t n_rows = given.scores.size(0), n_columns = given.scores.size(1);
  STD_TORCH_CHECK(given.offset >= 0 && given.offset <= n_columns - n_rows, "positive_offset is ", given.offset,
                  " but scores are ", n_rows, " by ", n_columns);
  STD_TORCH_CHECK(n_columns <= int64_t{1} << 24, "scores may have up to 2^24 columns");  // numbered by floats
  STD_TORCH_CHECK(given.order >= 1, "p must be at least 1");
  const Place place = Place::of(given.scores);
  const auto check_ids = [&](const std::optional<torch::stable::Tensor>& ids, const char* name) {
    if (!ids) return;
    STD_TORCH_CHECK(place.holds(*ids) && ids->dim() == 1 && ids->is_contiguous() &&
                        ids->scalar_type() == torch::headeronly::ScalarType::Long,
                    name, " must be a contiguous 1-D int64 tensor on the scores' device");
    STD_TORCH_CHECK(ids->size(0) == n_columns, name, " must hold one id for each of ", n_columns, " columns");
  };
  check_ids(given.image_ids, "image_ids");
  check_ids(given.caption_ids, "caption_ids");
}

inline void check_ranking_loss_gradient(const torch::stable::Tensor& grad_loss, const torch::stable::Tensor& statistics,
                                        const RankingLossArguments& given) {
  constexpr auto float32 = torch::headeronly::ScalarType::Float;
  const Place place = Place::of(given.scores);
  const int64_t n = given.scores.size(0);
  const bool fits =
      given.reduction != Reduction::none ? grad_loss.dim() == 0 : grad_loss.dim() == 1 && grad_loss.size(0) == n;
  STD_TORCH_CHECK(place.holds(grad_loss) && grad_loss.scalar_type() == float32 && fits,
                  "grad_loss must be float32 of the loss's shape, on the scores' device");
  STD_TORCH_CHECK(place.holds(statistics) && statistics.scalar_type() == float32 && statistics.dim() == 2 &&
                      statistics.size(0) == 4 && statistics.size(1) == n && statistics.is_contiguous(),
                  "statistics must be those of the loss");
}

// The scores, or a copy of them, in rows without gaps between columns.
inline torch::stable::Tensor in_rows(const torch::stable::Tensor& scores) {
  return scores.stride(1) == 1 || scores.numel() == 0 ? scores : torch::stable::contiguous(scores);
}

}  // namespace crossret
