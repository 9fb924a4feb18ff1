// Registers the CPU kernels with torch's stable ABI. Every argument that the kernels rely on is checked here.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/dispatch.h"
#include "common/parallel.h"
#include "cross_attention/cpu.h"
#include "maxsim/cpu.h"

namespace crossret {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Dtype feature_dtype(const Tensor& values, const char* name) {
  switch (values.scalar_type()) {
    case ScalarType::Float:
      return Dtype::float32;
    case ScalarType::BFloat16:
      return Dtype::bfloat16;
    case ScalarType::Half:
      return Dtype::float16;
    default:
      STD_TORCH_CHECK(false, name, " must be float32, bfloat16 or float16");
  }
}

// The integers of a 1-D int64 tensor.
const int64_t* integers(const Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(
      tensor.is_cpu() && tensor.dim() == 1 && tensor.scalar_type() == ScalarType::Long && tensor.is_contiguous(), name,
      " must be a contiguous 1-D int64 tensor on the CPU");
  return tensor.const_data_ptr<int64_t>();
}

struct Tensors {
  Tensor values, starts, lengths;
};

// One side of the batch, its bounds checked, the scales of its rows computed where it is to be normalised.
class CheckedSide {
 public:
  CheckedSide(const Tensors& tensors, bool normalize, const char* name) : tensors_(tensors) {
    const Tensor& values = tensors_.values;
    STD_TORCH_CHECK(values.is_cpu() && values.dim() == 2 && values.size(1) > 0, name,
                    " must be a (rows, D) tensor on the CPU");
    if (values.stride(1) != 1 && values.size(1) > 1) tensors_.values = torch::stable::contiguous(values);
    tensors_.starts = torch::stable::contiguous(tensors_.starts);
    tensors_.lengths = torch::stable::contiguous(tensors_.lengths);
    side_.dtype = feature_dtype(values, name);
    side_.values = tensors_.values.data_ptr();
    side_.row_stride = tensors_.values.stride(0);
    side_.dim = values.size(1);
    side_.starts = integers(tensors_.starts, name);
    side_.lengths = integers(tensors_.lengths, name);
    side_.count = tensors_.starts.size(0);
    STD_TORCH_CHECK(tensors_.lengths.size(0) == side_.count, name, ": one length for each item");
    for (int64_t item = 0; item < side_.count; ++item) {
      const int64_t start = side_.starts[item], length = side_.lengths[item];
      STD_TORCH_CHECK(start >= 0 && length >= 1 && length <= values.size(0) - start, name, ": item ", item,
                      " has length ", length, ", which is empty or reaches past the features");
      side_.longest = std::max(side_.longest, length);
    }
    if (!normalize) return;
    scales_.resize(values.size(0));
    const auto row_scales = kernels().row_scales;
    for_each_item([&](int64_t first, int64_t last) { row_scales(side_, first, last, scales_.data()); });
    side_.scales = scales_.data();
  }
  CheckedSide(const CheckedSide&) = delete;
  CheckedSide& operator=(const CheckedSide&) = delete;

  const Side& side() const { return side_; }

  // A float32 gradient of all rows, zero; null data where it is not wanted.
  Tensor new_gradient(bool wanted) const {
    const Tensor& values = tensors_.values;
    if (!wanted) return torch::stable::new_empty(values, {0});
    return torch::stable::new_zeros(values, {values.size(0), values.size(1)}, ScalarType::Float);
  }

  // The gradient in the features' dtype, taken through the normalisation.
  Tensor finish_gradient(const Tensor& gradient, bool wanted) const {
    if (!wanted) return gradient;
    if (side_.scales != nullptr) {
      const auto unnormalize = kernels().unnormalize_gradients;
      float* data = gradient.mutable_data_ptr<float>();
      for_each_item([&](int64_t first, int64_t last) { unnormalize(side_, first, last, data); });
    }
    return side_.dtype == Dtype::float32 ? gradient : torch::stable::to(gradient, tensors_.values.scalar_type());
  }

 private:
  // Calls work(first row, last row) for every item: rows between items are padding, which is never read.
  template <class Work>
  void for_each_item(const Work& work) const {
    parallel(side_.count, 0,
             [&](int64_t item, Workspace&) { work(side_.starts[item], side_.starts[item] + side_.lengths[item]); });
  }

  Tensors tensors_;
  Side side_{};
  std::vector<float> scales_;
};

// What every pairwise operation is given: the two sides and the pairs.
class CheckedBatch {
 public:
  CheckedBatch(const Tensors& regions, const Tensors& words, const std::optional<Tensor>& pairs, bool normalize)
      : images(regions, normalize, "regions"), captions(words, normalize, "words") {
    STD_TORCH_CHECK(images.side().dim == captions.side().dim, "regions have D = ", images.side().dim,
                    " but words have D = ", captions.side().dim);
    STD_TORCH_CHECK(images.side().dtype == captions.side().dtype, "regions and words must have one dtype");
    if (!pairs) return;
    STD_TORCH_CHECK(
        pairs->is_cpu() && pairs->dim() == 2 && pairs->size(1) == 2 && pairs->scalar_type() == ScalarType::Long,
        "pairs must be a (P, 2) int64 tensor on the CPU");
    const Tensor rows = torch::stable::contiguous(*pairs);
    const int64_t* data = rows.const_data_ptr<int64_t>();
    pairs_.emplace();
    for (int64_t k = 0; k < rows.size(0); ++k) {
      const int64_t image = data[2 * k], caption = data[2 * k + 1];
      STD_TORCH_CHECK(image >= 0 && image < images.side().count, "pairs[", k, "] names image ", image);
      STD_TORCH_CHECK(caption >= 0 && caption < captions.side().count, "pairs[", k, "] names caption ", caption);
      pairs_->images.push_back(image);
      pairs_->captions.push_back(caption);
    }
  }

  const Pairs* pairs() const { return pairs_ ? &*pairs_ : nullptr; }

  Tensor new_scores(const Tensor& like) const {
    if (pairs_) return torch::stable::new_empty(like, {pairs_->size()}, ScalarType::Float);
    return torch::stable::new_empty(like, {images.side().count, captions.side().count}, ScalarType::Float);
  }

  // The scores' gradient as contiguous float32 of the scores' shape.
  Tensor checked_gradient(const Tensor& grad_scores) const {
    const bool fits = pairs_ ? grad_scores.dim() == 1 && grad_scores.size(0) == pairs_->size()
                             : grad_scores.dim() == 2 && grad_scores.size(0) == images.side().count &&
                                   grad_scores.size(1) == captions.side().count;
    STD_TORCH_CHECK(fits && grad_scores.is_cpu() && grad_scores.scalar_type() == ScalarType::Float,
                    "grad_scores must be float32 of the scores' shape, on the CPU");
    return torch::stable::contiguous(grad_scores);
  }

  CheckedSide images, captions;

 private:
  std::optional<Pairs> pairs_;
};

Direction parse_direction(const std::string& name) {
  STD_TORCH_CHECK(name == "t2i" || name == "i2t", "unknown direction ", name);
  return name == "t2i" ? Direction::t2i : Direction::i2t;
}

Pooling parse_pooling(const std::string& name) {
  if (name == "lse") return Pooling::lse;
  if (name == "avg") return Pooling::avg;
  if (name == "sum") return Pooling::sum;
  STD_TORCH_CHECK(name == "max", "unknown pooling ", name);
  return Pooling::max;
}

// raw_feature_norm as a clip and what remains of it.
bool parse_norm(const std::string& name, Norm& norm) {
  if (name == "softmax") {
    norm = Norm::softmax;
  } else if (name == "l2norm" || name == "clipped_l2norm") {
    norm = Norm::l2;
  } else if (name == "l1norm" || name == "clipped_l1norm") {
    norm = Norm::l1;
  } else {
    STD_TORCH_CHECK(name == "clipped" || name == "no_norm", "unknown raw_feature_norm ", name);
    norm = Norm::none;
  }
  return name.compare(0, 7, "clipped") == 0;
}

CrossAttentionOptions parse_options(const std::string& direction, const std::string& raw_feature_norm,
                                    double clip_slope, double lambda_softmax, const std::string& pooling,
                                    double lambda_lse) {
  CrossAttentionOptions options{};
  options.direction = parse_direction(direction);
  const bool clips = parse_norm(raw_feature_norm, options.norm);
  options.clip_slope = clips ? static_cast<float>(clip_slope) : 1.0f;
  options.lambda_softmax = static_cast<float>(lambda_softmax);
  options.pooling = parse_pooling(pooling);
  options.lambda_lse = static_cast<float>(lambda_lse);
  return options;
}

Tensor scan_scores(Tensor regions, Tensor region_starts, Tensor region_lengths, Tensor words, Tensor word_starts,
                   Tensor word_lengths, std::optional<Tensor> pairs, std::string direction,
                   std::string raw_feature_norm, double clip_slope, double lambda_softmax, std::string pooling,
                   double lambda_lse, bool normalize) {
  const CheckedBatch batch({regions, region_starts, region_lengths}, {words, word_starts, word_lengths}, pairs,
                           normalize);
  Tensor scores = batch.new_scores(regions);
  CrossAttentionCall call{};
  call.images = batch.images.side();
  call.captions = batch.captions.side();
  call.options = parse_options(direction, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse);
  call.scores = scores.mutable_data_ptr<float>();
  if (scores.numel() > 0) cross_attention_scores(call, batch.pairs());
  return scores;
}

std::tuple<Tensor, Tensor> scan_scores_backward(Tensor grad_scores, Tensor regions, Tensor region_starts,
                                                Tensor region_lengths, Tensor words, Tensor word_starts,
                                                Tensor word_lengths, std::optional<Tensor> pairs, std::string direction,
                                                std::string raw_feature_norm, double clip_slope, double lambda_softmax,
                                                std::string pooling, double lambda_lse, bool normalize,
                                                bool regions_need_grad, bool words_need_grad) {
  const CheckedBatch batch({regions, region_starts, region_lengths}, {words, word_starts, word_lengths}, pairs,
                           normalize);
  const Tensor grads = batch.checked_gradient(grad_scores);
  CrossAttentionCall call{};
  call.images = batch.images.side();
  call.captions = batch.captions.side();
  call.options = parse_options(direction, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse);
  const Tensor of_regions = batch.images.new_gradient(regions_need_grad);
  const Tensor of_words = batch.captions.new_gradient(words_need_grad);
  if (grads.numel() > 0) {
    cross_attention_gradients(call, batch.pairs(), grads.const_data_ptr<float>(),
                              regions_need_grad ? of_regions.mutable_data_ptr<float>() : nullptr,
                              words_need_grad ? of_words.mutable_data_ptr<float>() : nullptr);
  }
  return {batch.images.finish_gradient(of_regions, regions_need_grad),
          batch.captions.finish_gradient(of_words, words_need_grad)};
}

Tensor maxsim_scores_cpu(Tensor regions, Tensor region_starts, Tensor region_lengths, Tensor words, Tensor word_starts,
                         Tensor word_lengths, std::optional<Tensor> pairs, std::string direction, std::string pooling,
                         bool normalize) {
  const CheckedBatch batch({regions, region_starts, region_lengths}, {words, word_starts, word_lengths}, pairs,
                           normalize);
  Tensor scores = batch.new_scores(regions);
  MaxSimCall call{};
  call.images = batch.images.side();
  call.captions = batch.captions.side();
  call.direction = parse_direction(direction);
  call.pooling = parse_pooling(pooling);
  call.scores = scores.mutable_data_ptr<float>();
  if (scores.numel() > 0) maxsim_scores(call, batch.pairs());
  return scores;
}

std::tuple<Tensor, Tensor> maxsim_scores_backward(Tensor grad_scores, Tensor regions, Tensor region_starts,
                                                  Tensor region_lengths, Tensor words, Tensor word_starts,
                                                  Tensor word_lengths, std::optional<Tensor> pairs,
                                                  std::string direction, std::string pooling, bool normalize,
                                                  bool regions_need_grad, bool words_need_grad) {
  const CheckedBatch batch({regions, region_starts, region_lengths}, {words, word_starts, word_lengths}, pairs,
                           normalize);
  const Tensor grads = batch.checked_gradient(grad_scores);
  MaxSimCall call{};
  call.images = batch.images.side();
  call.captions = batch.captions.side();
  call.direction = parse_direction(direction);
  call.pooling = parse_pooling(pooling);
  const Tensor of_regions = batch.images.new_gradient(regions_need_grad);
  const Tensor of_words = batch.captions.new_gradient(words_need_grad);
  if (grads.numel() > 0) {
    maxsim_gradients(call, batch.pairs(), grads.const_data_ptr<float>(),
                     regions_need_grad ? of_regions.mutable_data_ptr<float>() : nullptr,
                     words_need_grad ? of_words.mutable_data_ptr<float>() : nullptr);
  }
  return {batch.images.finish_gradient(of_regions, regions_need_grad),
          batch.captions.finish_gradient(of_words, words_need_grad)};
}

std::string cpu_isas() {
  std::string names;
  for (const std::string& name : available_isas()) names += (names.empty() ? "" : " ") + name;
  return names;
}

std::string selected_cpu_isa() { return kernels().isa; }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  library.impl("scan_scores", TORCH_BOX(&scan_scores));
  library.impl("scan_scores_backward", TORCH_BOX(&scan_scores_backward));
  library.impl("maxsim_scores", TORCH_BOX(&maxsim_scores_cpu));
  library.impl("maxsim_scores_backward", TORCH_BOX(&maxsim_scores_backward));
}

STABLE_TORCH_LIBRARY_IMPL(crossret, CompositeExplicitAutograd, library) {
  library.impl("cpu_isas", TORCH_BOX(&cpu_isas));
  library.impl("selected_cpu_isa", TORCH_BOX(&selected_cpu_isa));
}

}  // namespace crossret
