#include "arguments.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

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

// torch looks up the operation by its name, which takes as long as scoring a short item.
Tensor in_order(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

}  // namespace

CheckedSide::CheckedSide(SideTensors tensors, bool allows_empty, const char* name)
    : name_(name), allows_empty_(allows_empty), tensors_(std::move(tensors)) {
  STD_TORCH_CHECK(!tensors_.values.empty(), name, " are an empty list");
  const bool listed = tensors_.values.size() > 1;
  const int64_t dims = listed || tensors_.offsets ? 2 : 3;
  side_.dtype = feature_dtype(tensors_.values[0], name);
  for (Tensor& values : tensors_.values) {
    STD_TORCH_CHECK(values.is_cpu() && values.dim() == dims && values.size(dims - 1) > 0, name,
                    " must be a (n, L, D) tensor on the CPU, (rows, D) with offsets, or a list of (L, D)");
    const int64_t dim = values.size(dims - 1);
    if (&values == tensors_.values.data()) {
      side_.dim = dim;
    } else {
      STD_TORCH_CHECK(dim == side_.dim && feature_dtype(values, name) == side_.dtype, name,
                      " of a list must have one D and one dtype");
    }
    if (dim > 1 && values.stride(dims - 1) != 1) values = torch::stable::contiguous(values);
  }
  const int given = tensors_.offsets.has_value() + tensors_.lengths.has_value() + tensors_.mask.has_value();
  STD_TORCH_CHECK(given <= (listed ? 0 : 1), name,
                  tensors_.offsets ? " take offsets of n + 1 items and neither lengths nor a mask"
                                   : " take lengths or a mask, and a list neither");
  if (listed) {
    read_list();
  } else if (tensors_.offsets) {
    read_offsets();
  } else if (tensors_.mask) {
    read_mask();
  } else {
    read_lengths();
  }
  side_.items = items_.data();
  side_.count = static_cast<int64_t>(items_.size());
}

void CheckedSide::normalize(const Kernels& kernels) {
  norms_.resize(side_.rows);
  Memory none;
  parallel(side_.count, pass_work(side_), 0, none,
           [&](int64_t item, Workspace&) { kernels.row_norms(side_, item, norms_.data()); });
  side_.norms = norms_.data();
}

Tensor CheckedSide::new_gradient(bool wanted) const {
  const Tensor& values = tensors_.values[0];
  if (!wanted) return torch::stable::new_empty(values, {0});
  Tensor zeros = torch::stable::new_empty(values, values.sizes());
  const int64_t bytes = zeros.numel() * side_.element_bytes();
  if (bytes == 0) return zeros;
  in_large_pages(zeros.mutable_data_ptr(), bytes);
  if (!in_forked_child()) return torch::stable::zero_(zeros);
  std::memset(zeros.mutable_data_ptr(), 0, bytes);  // torch would set many zeros by threads that are not there
  return zeros;
}

void CheckedSide::read_list() {
  items_.reserve(tensors_.values.size());
  for (const Tensor& item : tensors_.values) {
    add(data_of(item), item.stride(0) * side_.element_bytes(), item.size(0), side_.rows);
  }
  width_ = side_.longest;
}

void CheckedSide::read_offsets() {
  const Tensor& values = tensors_.values[0];
  const Tensor offsets = in_order(*tensors_.offsets);
  const int64_t* begins = integers(offsets, name_);
  const int64_t count = offsets.size(0) - 1, rows = values.size(0);
  STD_TORCH_CHECK(count >= 0, name_, " take offsets of n + 1 items");
  const char* const data = data_of(values);
  const int64_t row_bytes = values.stride(0) * side_.element_bytes();
  items_.reserve(count);
  for (int64_t item = 0; item < count; ++item) {
    const int64_t start = begins[item], end = begins[item + 1];
    STD_TORCH_CHECK(start >= 0 && (start < end || (allows_empty_ && start == end)) && end <= rows, name_, ": item ",
                    item, " has rows ", start, " to ", end, ", which are none or reach past the features");
    add(data + start * row_bytes, row_bytes, end - start, start);
  }
  width_ = side_.longest;
}

void CheckedSide::read_mask() {
  const Tensor& values = tensors_.values[0];
  const Tensor mask = in_order(*tensors_.mask);
  const int64_t count = values.size(0);
  width_ = values.size(1);
  STD_TORCH_CHECK(mask.is_cpu() && mask.dim() == 2 && mask.scalar_type() == ScalarType::Bool && mask.size(0) == count &&
                      mask.size(1) == width_,
                  name_, ": the mask must be a (n, L) bool tensor on the CPU");
  const bool* valid = mask.const_data_ptr<bool>();
  const char* const data = data_of(values);
  const int64_t item_bytes = values.stride(0) * side_.element_bytes();
  const int64_t row_bytes = values.stride(1) * side_.element_bytes();
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
      side_.masked = true;
    }
  }
}

void CheckedSide::read_lengths() {
  const Tensor& values = tensors_.values[0];
  const int64_t count = values.size(0);
  width_ = values.size(1);
  std::optional<Tensor> lengths;
  if (tensors_.lengths) lengths = in_order(*tensors_.lengths);
  const int64_t* sizes = lengths ? integers(*lengths, name_) : nullptr;
  STD_TORCH_CHECK(!lengths || lengths->size(0) == count, name_, ": one length for each item");
  const char* const data = data_of(values);
  const int64_t item_bytes = values.stride(0) * side_.element_bytes();
  const int64_t row_bytes = values.stride(1) * side_.element_bytes();
  items_.reserve(count);
  for (int64_t item = 0; item < count; ++item) {
    const int64_t length = sizes ? sizes[item] : width_;
    STD_TORCH_CHECK((length > 0 || (allows_empty_ && length == 0)) && length <= width_, name_, ": item ", item,
                    " has length ", length, ", which is empty or reaches past the features");
    add(data + item * item_bytes, row_bytes, length, item * width_);
  }
}

void CheckedSide::add(const char* rows, int64_t row_bytes, int64_t length, int64_t first) {
  STD_TORCH_CHECK(length > 0 || allows_empty_, name_, ": item ", items_.size(), " has no valid rows");
  has_empty_ = has_empty_ || length == 0;
  items_.push_back({rows, row_bytes, nullptr, length, side_.rows, first});
  side_.rows += length;
  side_.longest = std::max(side_.longest, length);
}

CheckedBatch::CheckedBatch(BatchArguments arguments)
    : words_attend_(arguments.direction == 0),
      split_float32_(arguments.split_float32),
      empty_score_(arguments.empty_score),
      regions_(std::move(arguments.regions), arguments.empty_score.has_value(), "regions"),
      words_(std::move(arguments.words), arguments.empty_score.has_value(), "words") {
  STD_TORCH_CHECK(arguments.direction == 0 || arguments.direction == 1, "unknown direction ", arguments.direction);
  const Side &images = regions_.side(), &captions = words_.side();
  STD_TORCH_CHECK(images.dim == captions.dim, "regions have D = ", images.dim, " but words have D = ", captions.dim);
  STD_TORCH_CHECK(images.dtype == captions.dtype, "regions and words must have one dtype");
  kernels_ = &crossret::kernels(images.dtype, split_float32_);
  if (arguments.pairs) {
    const Tensor& pairs = *arguments.pairs;
    STD_TORCH_CHECK(pairs.is_cpu() && pairs.dim() == 2 && pairs.size(1) == 2 && pairs.scalar_type() == ScalarType::Long,
                    "pairs must be a (P, 2) int64 tensor on the CPU");
    rows_ = in_order(pairs);
    const int64_t* rows = rows_->const_data_ptr<int64_t>();
    pairs_ = PairList{rows, rows_->size(0), words_attend_ ? 0 : 1};
    for (int64_t k = 0; k < pairs_->count; ++k) {
      const int64_t image = rows[2 * k], caption = rows[2 * k + 1];
      STD_TORCH_CHECK(image >= 0 && image < images.count, "pairs[", k, "] names image ", image);
      STD_TORCH_CHECK(caption >= 0 && caption < captions.count, "pairs[", k, "] names caption ", caption);
    }
  }
  if (!arguments.normalize) return;
  regions_.normalize(*kernels_);
  words_.normalize(*kernels_);
}

void CheckedBatch::lay_out(Operands& operands) const {
  operands.contexts = words_attend_ ? regions_.side() : words_.side();
  operands.queries = words_attend_ ? words_.side() : regions_.side();
  operands.context_layout = kernels_->layout(operands.contexts, true, split_float32_);
  operands.query_layout = kernels_->layout(operands.queries, false, split_float32_);
}

Tensor CheckedBatch::new_scores() const {
  const int32_t dtype = aoti_torch_dtype_float32();
  const Tensor scores =
      pairs_ ? empty<1>({pairs_->count}, dtype) : empty<2>({regions_.side().count, words_.side().count}, dtype);
  if (regions_.has_empty() || words_.has_empty()) {
    std::fill_n(scores.mutable_data_ptr<float>(), count(), static_cast<float>(*empty_score_));
  }
  return scores;
}

Tensor CheckedBatch::new_indices(std::optional<int64_t> wanted) const {
  const int64_t least = queries().width(), width = wanted.value_or(queries().side().longest);
  STD_TORCH_CHECK(width >= (queries().side().masked ? least : queries().side().longest), "width is ", width,
                  " but an item has ", least, " queries");
  const int32_t dtype = aoti_torch_dtype_int64();
  const Tensor indices = pairs_ ? empty<2>({pairs_->count, width}, dtype)
                                : empty<3>({regions_.side().count, words_.side().count, width}, dtype);
  if (regions_.has_empty() || words_.has_empty()) {
    std::fill_n(indices.mutable_data_ptr<int64_t>(), count() * width, int64_t{-1});
  }
  return indices;
}

ScoreGradients CheckedBatch::gradients(const Tensor& grads) const {
  const bool fits =
      pairs_ ? grads.dim() == 1 && grads.size(0) == pairs_->count
             : grads.dim() == 2 && grads.size(0) == regions_.side().count && grads.size(1) == words_.side().count;
  STD_TORCH_CHECK(fits && grads.is_cpu() && grads.scalar_type() == ScalarType::Float,
                  "grad_scores must be float32 of the scores' shape, on the CPU");
  const float* data = grads.const_data_ptr<float>();
  if (pairs_) return {data, grads.stride(0), 0};
  return words_attend_ ? ScoreGradients{data, grads.stride(0), grads.stride(1)}
                       : ScoreGradients{data, grads.stride(1), grads.stride(0)};
}

}  // namespace crossret
