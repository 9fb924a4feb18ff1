// The tensors of a ranking loss as its kernels take them: every argument that they rely on is checked here.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <utility>

#include "ranking_loss/problem.h"

namespace crossret {

enum class Reduction : int { sum, mean, none };

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

}  // namespace crossret
