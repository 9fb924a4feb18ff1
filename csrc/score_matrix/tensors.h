// Tensors of losses over a matrix of scores, checked as far as kernels rely on them, on every device; and of the CPU's
// what kernels take of them.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "call.h"
#include "score_matrix/matrix.h"
#include "tensor.h"

namespace crossret {

using Ids = std::optional<torch::stable::Tensor>;

inline Reduction reduction_of(int64_t code) {
  constexpr Reduction options[] = {Reduction::sum, Reduction::mean, Reduction::none};
  return chosen("reduction", options, code);
}

inline void check_score_matrix(const torch::stable::Tensor& scores, const Ids& image_ids, const Ids& caption_ids,
                               int64_t offset) {
  STD_TORCH_CHECK(scores.dim() == 2, "scores must be a 2-D tensor");
  const int64_t n_rows = scores.size(0), n_columns = scores.size(1);
  STD_TORCH_CHECK(offset >= 0 && offset <= n_columns - n_rows, "positive_offset is ", offset, " but scores are ",
                  n_rows, " by ", n_columns);
  STD_TORCH_CHECK(n_columns <= int64_t{1} << 24, "scores may have up to 2^24 columns");  // numbered by floats
  const Place place = Place::of(scores);
  const auto check_ids = [&](const Ids& ids, const char* name) {
    if (!ids) return;
    STD_TORCH_CHECK(place.holds(*ids) && ids->dim() == 1 && ids->is_contiguous() &&
                        ids->scalar_type() == torch::headeronly::ScalarType::Long,
                    name, " must be a contiguous 1-D int64 tensor on the scores' device");
    STD_TORCH_CHECK(ids->size(0) == n_columns, name, " must hold one id for each of ", n_columns, " columns");
  };
  check_ids(image_ids, "image_ids");
  check_ids(caption_ids, "caption_ids");
}

inline void check_loss_gradient(const torch::stable::Tensor& grad_loss, const torch::stable::Tensor& scores,
                                Reduction reduction) {
  const bool fits =
      reduction != Reduction::none ? grad_loss.dim() == 0 : grad_loss.dim() == 1 && grad_loss.size(0) == scores.size(0);
  STD_TORCH_CHECK(
      Place::of(scores).holds(grad_loss) && fits && grad_loss.scalar_type() == torch::headeronly::ScalarType::Float,
      "grad_loss must be float32 of the loss's shape, on the scores' device");
}

// So many numbers of every row, made for its gradient.
inline void check_loss_statistics(const torch::stable::Tensor& statistics, const torch::stable::Tensor& scores,
                                  int64_t numbers) {
  STD_TORCH_CHECK(Place::of(scores).holds(statistics) && statistics.dim() == 2 && statistics.is_contiguous() &&
                      statistics.scalar_type() == torch::headeronly::ScalarType::Float &&
                      statistics.size(0) == numbers && statistics.size(1) == scores.size(0),
                  "statistics must be those of the loss");
}

// The scores, or a copy of them, in rows without gaps between columns.
inline torch::stable::Tensor in_rows(const torch::stable::Tensor& scores) {
  return scores.stride(1) == 1 || scores.numel() == 0 ? scores : torch::stable::contiguous(scores);
}

// Scores on the CPU and labels of their pairs; kernels read a copy of what it fills.
class LabelledScores {
 public:
  LabelledScores(const torch::stable::Tensor& scores, const Ids& image_ids, const Ids& caption_ids, int64_t offset) {
    check_score_matrix(scores, image_ids, caption_ids, offset);
    STD_TORCH_CHECK(scores.is_cpu(), "scores must be on the CPU");
    scores_ = in_rows(scores);
    matrix.dtype = feature_dtype(scores_, "scores");
    matrix.n_rows = scores_.size(0), matrix.n_columns = scores_.size(1), matrix.offset = offset;
    matrix.scores = static_cast<const char*>(scores_.data_ptr());
    matrix.row_bytes = scores_.stride(0) * matrix.element_bytes();
    label(image_ids);
    label(caption_ids);
    if (labels_.empty()) {
      std::vector<float>& places = labels_.emplace_back(matrix.n_columns);
      for (int64_t column = 0; column < matrix.n_columns; ++column) places[column] = static_cast<float>(column);
    }
    matrix.labels[0] = labels_.front().data(), matrix.labels[1] = labels_.back().data();
  }
  LabelledScores(const LabelledScores&) = delete;
  LabelledScores& operator=(const LabelledScores&) = delete;

  ScoreMatrix matrix{};

 private:
  // Equal ids by equal numbers, which floats can hold.
  void label(const Ids& ids) {
    if (!ids) return;
    const int64_t* const values = ids->const_data_ptr<int64_t>();
    std::unordered_map<int64_t, float> known;
    std::vector<float>& labels = labels_.emplace_back();
    for (int64_t column = 0; column < matrix.n_columns; ++column) {
      labels.push_back(known.emplace(values[column], static_cast<float>(known.size())).first->second);
    }
  }

  torch::stable::Tensor scores_;
  std::vector<std::vector<float>> labels_;
};

// A loss on the CPU, made of those of all rows, `each`.
class Losses {
 public:
  Losses(Reduction reduction, int64_t n)
      : reduction_(reduction),
        loss_(reduction == Reduction::none ? empty<1>({n}, aoti_torch_dtype_float32())
                                           : empty<0>({}, aoti_torch_dtype_float32())),
        losses_(reduction == Reduction::none ? 0 : n) {}

  float* each() { return reduction_ == Reduction::none ? loss_.mutable_data_ptr<float>() : losses_.data(); }

  torch::stable::Tensor reduced() {
    if (reduction_ == Reduction::none) return loss_;
    double sum = 0;
    for (const float value : losses_) sum += value;
    const double n = static_cast<double>(std::max<size_t>(losses_.size(), 1));
    *loss_.mutable_data_ptr<float>() = static_cast<float>(reduction_ == Reduction::mean ? sum / n : sum);
    return loss_;
  }

 private:
  const Reduction reduction_;
  torch::stable::Tensor loss_;
  std::vector<float> losses_;
};

// ∂L/∂ the loss of every row.
inline std::vector<float> gradients_of_rows(const torch::stable::Tensor& grad_loss, Reduction reduction, int64_t n) {
  const float* const given = grad_loss.const_data_ptr<float>();
  const int64_t stride = reduction != Reduction::none ? 0 : grad_loss.stride(0);
  const float share = static_cast<float>(reduction == Reduction::mean ? std::max<int64_t>(n, 1) : 1);
  std::vector<float> grads(n);
  for (int64_t i = 0; i < n; ++i) grads[i] = given[i * stride] / share;
  return grads;
}

}  // namespace crossret
