#include "arguments.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "pairs/parallel.h"

namespace crossret {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

const int64_t* integers(const Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(
      tensor.is_cpu() && tensor.dim() == 1 && tensor.scalar_type() == ScalarType::Long && tensor.is_contiguous(), name,
      " must be a contiguous 1-D int64 tensor on the CPU");
  return tensor.const_data_ptr<int64_t>();
}

namespace {

const char* data_of(const Tensor& tensor) { return static_cast<const char*>(tensor.data_ptr()); }

}  // namespace

Ragged::Ragged(Arguments& arguments, bool listed, const char* name)
    : name_(name),
      values_(listed ? arguments.take<std::vector<Tensor>>() : std::vector<Tensor>{arguments.take<Tensor>()}),
      offsets_(arguments.take<std::optional<Tensor>>()),
      lengths_(arguments.take<std::optional<Tensor>>()),
      mask_(arguments.take<std::optional<Tensor>>()) {}

void Ragged::read(bool allows_empty) {
  allows_empty_ = allows_empty;
  STD_TORCH_CHECK(!values_.empty(), name_, " are an empty list");
  const bool listed = values_.size() > 1;
  const int64_t dims = listed || offsets_ ? 2 : 3;
  view_.dtype = feature_dtype(values_[0], name_);
  for (Tensor& values : values_) {
    STD_TORCH_CHECK(values.is_cpu() && values.dim() == dims && values.size(dims - 1) > 0, name_,
                    " must be a (n, L, D) tensor on the CPU, (rows, D) with offsets, or a list of (L, D)");
    if (&values == values_.data()) view_.dim = values.size(dims - 1);
    STD_TORCH_CHECK(values.size(dims - 1) == view_.dim && feature_dtype(values, name_) == view_.dtype, name_,
                    " of a list must have one D and one dtype");
    if (view_.dim > 1 && values.stride(dims - 1) != 1) values = torch::stable::contiguous(values);
  }
  if (listed) {
    read_list();
  } else if (offsets_) {
    read_offsets();
  } else if (mask_) {
    read_mask();
  } else {
    read_lengths();
  }
  view_.items = items_.data();
  view_.count = static_cast<int64_t>(items_.size());
}

void Ragged::normalize(const Kernels& kernels) {
  norms_.resize(view_.rows);
  Memory none;
  parallel(view_.count, pass_work(view_), 0, none,
           [&](int64_t item, Workspace&) { kernels.row_norms(view_, item, norms_.data()); });
  view_.norms = norms_.data();
}

Tensor Ragged::new_gradient(bool wanted) const {
  const Tensor& values = values_[0];
  if (!wanted) return torch::stable::new_empty(values, {0});
  Tensor zeros = torch::stable::new_empty(values, values.sizes());
  const int64_t bytes = zeros.numel() * view_.element_bytes();
  if (bytes == 0) return zeros;
  in_large_pages(zeros.mutable_data_ptr(), bytes);
  if (!in_forked_child()) return torch::stable::zero_(zeros);
  std::memset(zeros.mutable_data_ptr(), 0, bytes);  // torch would set many zeros by threads that are not there
  return zeros;
}

void Ragged::read_list() {
  items_.reserve(values_.size());
  for (const Tensor& item : values_) {
    add(data_of(item), item.stride(0) * view_.element_bytes(), item.size(0), view_.rows);
  }
  width_ = view_.longest;
}

void Ragged::read_offsets() {
  const Tensor& values = values_[0];
  const Tensor offsets = in_order(*offsets_);
  const int64_t* begins = integers(offsets, name_);
  const int64_t count = offsets.size(0) - 1, rows = values.size(0);
  STD_TORCH_CHECK(count >= 0, name_, " take offsets of n + 1 items");
  const char* const data = data_of(values);
  const int64_t row_bytes = values.stride(0) * view_.element_bytes();
  items_.reserve(count);
  for (int64_t item = 0; item < count; ++item) {
    const int64_t start = begins[item], end = begins[item + 1];
    STD_TORCH_CHECK(start >= 0 && start <= end && end <= rows, name_, ": item ", item, " has rows ", start, " to ", end,
                    ", which reach past the features");
    add(data + start * row_bytes, row_bytes, end - start, start);
  }
  width_ = view_.longest;
}

void Ragged::read_mask() {
  const Tensor& values = values_[0];
  const Tensor mask = in_order(*mask_);
  const int64_t count = values.size(0);
  width_ = values.size(1);
  STD_TORCH_CHECK(mask.is_cpu() && mask.dim() == 2 && mask.scalar_type() == ScalarType::Bool && mask.size(0) == count &&
                      mask.size(1) == width_,
                  name_, ": the mask must be a (n, L) bool tensor on the CPU");
  const bool* valid = mask.const_data_ptr<bool>();
  const char* const data = data_of(values);
  const int64_t item_bytes = values.stride(0) * view_.element_bytes();
  const int64_t row_bytes = values.stride(1) * view_.element_bytes();
  places_.reserve(count * width_);  // items point into it
  items_.reserve(count);
  for (int64_t item = 0; item < count; ++item) {
    const int32_t* places = places_.data() + places_.size();
    for (int64_t row = 0; row < width_; ++row) {
      if (valid[item * width_ + row]) places_.push_back(static_cast<int32_t>(row));
    }
    const int64_t length = places_.data() + places_.size() - places;
    add(data + item * item_bytes, row_bytes, length, item * width_);
    // Without holes it is an item like any other.
    if (length > 0 && places[length - 1] != length - 1) {
      items_.back().places = places;
      view_.masked = true;
    }
  }
}

void Ragged::read_lengths() {
  const Tensor& values = values_[0];
  const int64_t count = values.size(0);
  width_ = values.size(1);
  std::optional<Tensor> lengths;
  if (lengths_) lengths = in_order(*lengths_);
  const int64_t* sizes = lengths ? integers(*lengths, name_) : nullptr;
  STD_TORCH_CHECK(!lengths || lengths->size(0) == count, name_, ": one length for each item");
  const char* const data = data_of(values);
  const int64_t item_bytes = values.stride(0) * view_.element_bytes();
  const int64_t row_bytes = values.stride(1) * view_.element_bytes();
  items_.reserve(count);
  for (int64_t item = 0; item < count; ++item) {
    const int64_t length = sizes ? sizes[item] : width_;
    STD_TORCH_CHECK(length >= 0 && length <= width_, name_, ": item ", item, " has length ", length,
                    ", which reaches past the features");
    add(data + item * item_bytes, row_bytes, length, item * width_);
  }
}

void Ragged::add(const char* rows, int64_t row_bytes, int64_t length, int64_t first) {
  STD_TORCH_CHECK(length > 0 || allows_empty_, name_, ": item ", items_.size(), " has length 0 and no empty score");
  has_empty_ = has_empty_ || length == 0;
  items_.push_back({rows, row_bytes, nullptr, length, view_.rows, first});
  view_.rows += length;
  view_.longest = std::max(view_.longest, length);
}

Batch::Batch(Arguments& arguments, bool listed)
    : regions_(arguments, listed, "regions"),
      words_(arguments, listed, "words"),
      listed_(arguments.take<std::optional<Tensor>>()),
      empty_score_(arguments.take<std::optional<double>>()),
      split_float32_(arguments.take<bool>()),
      words_attend_(chosen("direction", kWordsAttend, arguments.take<int64_t>())),
      normalize_(arguments.take<bool>()) {}

void Batch::read(const Arguments& arguments) {
  arguments.finish();
  regions_.read(empty_score_.has_value());
  words_.read(empty_score_.has_value());
  const RaggedView &images = regions_.view(), &captions = words_.view();
  STD_TORCH_CHECK(images.dim == captions.dim, "regions have D = ", images.dim, " but words have D = ", captions.dim);
  STD_TORCH_CHECK(images.dtype == captions.dtype, "regions and words must have one dtype");
  kernels_ = &crossret::kernels(images.dtype, split_float32_);
  if (listed_) {
    STD_TORCH_CHECK(
        listed_->is_cpu() && listed_->dim() == 2 && listed_->size(1) == 2 && listed_->scalar_type() == ScalarType::Long,
        "pairs must be a (P, 2) int64 tensor on the CPU");
    listed_ = in_order(*listed_);
    const int64_t* rows = listed_->const_data_ptr<int64_t>();
    pairs_ = PairList{rows, listed_->size(0), words_attend_ ? 0 : 1};
    for (int64_t k = 0; k < pairs_->count; ++k) {
      const int64_t image = rows[2 * k], caption = rows[2 * k + 1];
      STD_TORCH_CHECK(image >= 0 && image < images.count, "pairs[", k, "] names image ", image);
      STD_TORCH_CHECK(caption >= 0 && caption < captions.count, "pairs[", k, "] names caption ", caption);
    }
  }
  if (!normalize_) return;
  regions_.normalize(*kernels_);
  words_.normalize(*kernels_);
}

void Batch::lay_out(Operands& operands) const {
  operands.contexts = contexts().view();
  operands.queries = queries().view();
  operands.context_layout = kernels_->layout(operands.contexts, true, split_float32_);
  operands.query_layout = kernels_->layout(operands.queries, false, split_float32_);
}

Tensor Batch::new_scores() const {
  const int32_t dtype = aoti_torch_dtype_float32();
  const Tensor scores =
      pairs_ ? empty<1>({pairs_->count}, dtype) : empty<2>({regions_.view().count, words_.view().count}, dtype);
  if (has_empty()) {
    std::fill_n(scores.mutable_data_ptr<float>(), count(), static_cast<float>(*empty_score_));
  }
  return scores;
}

Tensor Batch::new_indices(std::optional<int64_t> wanted) const {
  const int64_t least = queries().width(), width = wanted.value_or(queries().view().longest);
  STD_TORCH_CHECK(width >= (queries().view().masked ? least : queries().view().longest), "width is ", width,
                  " but an item has ", least, " queries");
  const int32_t dtype = aoti_torch_dtype_int64();
  const Tensor indices = pairs_ ? empty<2>({pairs_->count, width}, dtype)
                                : empty<3>({regions_.view().count, words_.view().count, width}, dtype);
  if (has_empty()) {
    std::fill_n(indices.mutable_data_ptr<int64_t>(), count() * width, int64_t{-1});
  }
  return indices;
}

ScoreGradients Batch::gradients(const Tensor& grads) const {
  const bool fits =
      pairs_ ? grads.dim() == 1 && grads.size(0) == pairs_->count
             : grads.dim() == 2 && grads.size(0) == regions_.view().count && grads.size(1) == words_.view().count;
  STD_TORCH_CHECK(fits && grads.is_cpu() && grads.scalar_type() == ScalarType::Float,
                  "grad_scores must be float32 of the scores' shape, on the CPU");
  const float* data = grads.const_data_ptr<float>();
  if (pairs_) return {data, grads.stride(0), 0};
  return words_attend_ ? ScoreGradients{data, grads.stride(0), grads.stride(1)}
                       : ScoreGradients{data, grads.stride(1), grads.stride(0)};
}

}  // namespace crossret
