#include "ranking_loss/tensors.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "ranking_loss/cpu.h"
#include "ranking_loss/operation.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

float score_at(const RankingLossCall& call, int64_t row, int64_t column) {
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
  explicit Problem(const RankingLossArguments& given) {
    check_ranking_loss(given);
    STD_TORCH_CHECK(given.scores.is_cpu(), "scores must be on the CPU");
    scores_ = in_rows(given.scores);
    call.dtype = feature_dtype(scores_, "scores");
    call.n_rows = scores_.size(0), call.n_columns = scores_.size(1), call.offset = given.offset;
    call.scores = static_cast<const char*>(scores_.data_ptr());
    call.row_bytes = scores_.stride(0) * (call.dtype == Dtype::float32 ? 4 : 2);
    call.negatives = given.negatives;
    call.slope = exponent_of(given.order - 1);
    label(given.image_ids);
    label(given.caption_ids);
    if (labels_.empty()) {
      std::vector<float>& places = labels_.emplace_back(call.n_columns);
      for (int64_t column = 0; column < call.n_columns; ++column) places[column] = static_cast<float>(column);
    }
    call.labels[0] = labels_.front().data(), call.labels[1] = labels_.back().data();
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
  // Equal ids by equal numbers, which floats can hold.
  void label(const std::optional<Tensor>& ids) {
    if (!ids) return;
    const int64_t* const values = ids->const_data_ptr<int64_t>();
    std::unordered_map<int64_t, float> known;
    std::vector<float>& labels = labels_.emplace_back();
    for (int64_t column = 0; column < call.n_columns; ++column) {
      labels.push_back(known.emplace(values[column], static_cast<float>(known.size())).first->second);
    }
  }

  Tensor scores_;
  std::vector<std::vector<float>> labels_;
  std::vector<float> thresholds_;
};

}  // namespace

std::pair<Tensor, Tensor> ranking_loss(const RankingLossArguments& given) {
  const Problem problem(given);
  const int64_t n = problem.call.n_rows;
  const Tensor statistics = empty<2>({4, n}, aoti_torch_dtype_float32());
  const Tensor loss = given.reduction != Reduction::none ? empty<0>({}, aoti_torch_dtype_float32())
                                                         : empty<1>({n}, aoti_torch_dtype_float32());
  std::vector<float> losses(given.reduction != Reduction::none ? n : 0);
  float* const each = given.reduction != Reduction::none ? losses.data() : loss.mutable_data_ptr<float>();
  measure_ranking_loss(kernels(problem.call.dtype, false), problem.call, given.order, each,
                       statistics.mutable_data_ptr<float>());
  if (given.reduction != Reduction::none) {
    double sum = 0;
    for (const float value : losses) sum += value;
    *loss.mutable_data_ptr<float>() =
        static_cast<float>(given.reduction == Reduction::mean ? sum / std::max<double>(n, 1) : sum);
  }
  return {loss, statistics};
}

Tensor ranking_loss_gradient(const Tensor& grad_loss, const Tensor& statistics, const RankingLossArguments& given) {
  const Problem problem(given);
  const RankingLossCall& call = problem.call;
  const int64_t n = call.n_rows;
  check_ranking_loss_gradient(grad_loss, statistics, given);
  const float* const given_grads = grad_loss.const_data_ptr<float>();
  const int64_t stride = given.reduction != Reduction::none ? 0 : grad_loss.stride(0);
  std::vector<float> grads(n);
  for (int64_t i = 0; i < n; ++i) {
    grads[i] =
        given_grads[i * stride] / static_cast<float>(given.reduction == Reduction::mean ? std::max<int64_t>(n, 1) : 1);
  }
  const Tensor out = torch::stable::new_empty(given.scores, {n, call.n_columns});
  differentiate_ranking_loss(kernels(call.dtype, false), call, grads.data(), statistics.const_data_ptr<float>(),
                             static_cast<char*>(out.mutable_data_ptr()),
                             call.n_columns * (call.dtype == Dtype::float32 ? 4 : 2));
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"triplet_loss", "triplet_loss.plain"}) library.impl(name, &triplet_loss);
  for (const char* name : {"triplet_loss_backward", "triplet_loss_backward.plain"}) {
    library.impl(name, &triplet_loss_gradient);
  }
}

}  // namespace crossret
