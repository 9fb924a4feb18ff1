#include "ranking_loss/tensors.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ranking_loss/cpu.h"
#include "ranking_loss/operation.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

float score_at(const ScoreMatrix& call, int64_t row, int64_t column) {
  const char* const from = call.scores + row * call.row_bytes;
  if (call.dtype == Dtype::float32) return reinterpret_cast<const float*>(from)[column];
  if (call.dtype == Dtype::bfloat16) return reinterpret_cast<const torch::headeronly::BFloat16*>(from)[column];
  return reinterpret_cast<const torch::headeronly::Half*>(from)[column];
}

// Exact to 2⁻³². From 2⁴⁰ on, powers of float32 below 1 are 0 and their order does not show.
Exponent exponent_of(double value) {
  const double bounded = std::min(value, 0x1p40), whole = std::floor(bounded);
  return {static_cast<int64_t>(whole), static_cast<uint32_t>((bounded - whole) * 0x1p32)};
}

// A call over the tensors, with what it is told of rows and columns.
class Problem {
 public:
  explicit Problem(const RankingLossArguments& given)
      : scores_(given.scores, given.image_ids, given.caption_ids, given.offset) {
    check_ranking_loss(given);
    static_cast<ScoreMatrix&>(call) = scores_.matrix;
    call.negatives = given.negatives;
    call.slope = exponent_of(given.order - 1);
    const float margin = static_cast<float>(given.margin);
    for (int64_t row = 0; row < call.n_rows; ++row) {
      thresholds_.push_back(margin - score_at(call, row, row + call.offset));
    }
    call.thresholds = thresholds_.data();
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  RankingLossCall call{};

 private:
  const LabelledScores scores_;
  std::vector<float> thresholds_;
};

}  // namespace

std::pair<Tensor, Tensor> ranking_loss(const RankingLossArguments& given) {
  const Problem problem(given);
  const int64_t n = problem.call.n_rows;
  const Tensor statistics = empty<2>({4, n}, aoti_torch_dtype_float32());
  Losses losses(given.reduction, n);
  measure_ranking_loss(kernels(problem.call.dtype, false), problem.call, given.order, losses.each(),
                       statistics.mutable_data_ptr<float>());
  return {losses.reduced(), statistics};
}

Tensor ranking_loss_gradient(const Tensor& grad_loss, const Tensor& statistics, const RankingLossArguments& given) {
  const Problem problem(given);
  const RankingLossCall& call = problem.call;
  check_ranking_loss_gradient(grad_loss, statistics, given);
  const std::vector<float> grads = gradients_of_rows(grad_loss, given.reduction, call.n_rows);
  const Tensor out = torch::stable::new_empty(given.scores, {call.n_rows, call.n_columns});
  differentiate_ranking_loss(kernels(call.dtype, false), call, grads.data(), statistics.const_data_ptr<float>(),
                             static_cast<char*>(out.mutable_data_ptr()), call.n_columns * call.element_bytes());
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"triplet_loss", "triplet_loss.plain"}) library.impl(name, &triplet_loss);
  for (const char* name : {"triplet_loss_backward", "triplet_loss_backward.plain"}) {
    library.impl(name, &triplet_loss_gradient);
  }
}

}  // namespace crossret
