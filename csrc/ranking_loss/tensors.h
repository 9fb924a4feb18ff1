// Ranking losses over tensors, whose arguments are checked as far as kernels rely on them: the CPU's library has these
// functions and operations of tensors.cpp, CUDA's of cuda_tensors.cpp.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <utility>

#include "ranking_loss/problem.h"
#include "score_matrix/tensors.h"

namespace crossret {

// What both operations take, in the order of their schemas, gradients and statistics apart.
struct RankingLossArguments {
  torch::stable::Tensor scores;
  Ids image_ids, caption_ids;
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
  check_score_matrix(given.scores, given.image_ids, given.caption_ids, given.offset);
  STD_TORCH_CHECK(given.order >= 1, "p must be at least 1");
}

inline void check_ranking_loss_gradient(const torch::stable::Tensor& grad_loss, const torch::stable::Tensor& statistics,
                                        const RankingLossArguments& given) {
  check_loss_gradient(grad_loss, given.scores, given.reduction);
  check_loss_statistics(statistics, given.scores, 4);
}

}  // namespace crossret
