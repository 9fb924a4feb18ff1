// Registers the CPU kernels with torch's stable ABI. Every argument that the kernels rely on is checked here.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstring>
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

// One side of the batch as the operations take it: `values` padded (n, L, D), `lengths` (n) or none where all L rows
// are valid; or packed (rows, D), item k in rows offsets[k] … offsets[k + 1] − 1, and no lengths.
struct Tensors {
  Tensor values;
  std::optional<Tensor> offsets, lengths;
};

// One side of the batch, its bounds checked, the norms of its rows computed where it is to be normalised.
class CheckedSide {
 public:
  CheckedSide(const Kernels& kernels, const Tensors& tensors, bool normalize, const char* name) : tensors_(tensors) {
    const Tensor& values = tensors_.values;
    const int64_t dims = values.dim();
    STD_TORCH_CHECK(values.is_cpu() && dims == (tensors.offsets ? 2 : 3) && values.size(dims - 1) > 0, name,
                    " must be a (n, L, D) tensor on the CPU, or (rows, D) with offsets");
    side_.dtype = feature_dtype(values, name);
    side_.dim = values.size(dims - 1);
    if (!rows_lie_evenly()) tensors_.values = torch::stable::contiguous(values);
    // Of one row an item, the items' stride is the rows'.
    side_.row_stride = tensors_.values.stride(dims == 3 && values.size(1) == 1 ? 0 : dims - 2);
    side_.values = tensors_.values.data_ptr();
    if (tensors.offsets) {
      read_offsets(name);
    } else {
      read_lengths(name);
    }
    side_.starts = starts_.data();
    side_.lengths = lengths_.data();
    side_.count = static_cast<int64_t>(starts_.size());
    if (!normalize) return;
    norms_.resize(rows_);
    // Item by item: rows between items are padding, which is never read.
    Memory none;
    parallel(side_.count, pass_work(side_), 0, none, [&](int64_t item, Workspace&) {
      kernels.row_norms(side_, side_.starts[item], side_.starts[item] + side_.lengths[item], norms_.data());
    });
    side_.norms = norms_.data();
  }
  CheckedSide(const CheckedSide&) = delete;
  CheckedSide& operator=(const CheckedSide&) = delete;

  const Side& side() const { return side_; }

  // A zero gradient of all rows; empty where it is not wanted.
  Tensor new_gradient(bool wanted) const {
    const Tensor& values = tensors_.values;
    if (!wanted) return torch::stable::new_empty(values, {0});
    if (!in_forked_child()) return torch::stable::new_zeros(values, values.sizes());
    // torch would set many zeros by threads that are not there.
    const Tensor zeros = torch::stable::new_empty(values, values.sizes());
    if (zeros.numel() > 0) std::memset(zeros.mutable_data_ptr(), 0, zeros.numel() * side_.element_bytes());
    return zeros;
  }

 private:
  void read_offsets(const char* name) {
    const Tensor offsets = torch::stable::contiguous(*tensors_.offsets);
    const int64_t* begins = integers(offsets, name);
    STD_TORCH_CHECK(offsets.size(0) > 0 && !tensors_.lengths, name, " take offsets of n + 1 items and no lengths");
    rows_ = tensors_.values.size(0);
    reserve(offsets.size(0) - 1);
    for (int64_t item = 0; item + 1 < offsets.size(0); ++item) {
      const int64_t start = begins[item], end = begins[item + 1];
      STD_TORCH_CHECK(start >= 0 && start < end && end <= rows_, name, ": item ", item, " has rows ", start, " to ",
                      end, ", which are none or reach past the features");
      add_item(start, end - start);
    }
  }

  void read_lengths(const char* name) {
    const int64_t count = tensors_.values.size(0), most = tensors_.values.size(1);
    std::optional<Tensor> lengths;
    if (tensors_.lengths) lengths = torch::stable::contiguous(*tensors_.lengths);
    const int64_t* sizes = lengths ? integers(*lengths, name) : nullptr;
    STD_TORCH_CHECK(!lengths || lengths->size(0) == count, name, ": one length for each item");
    // A slice of longer items, x[:, :most], leaves rows between its items.
    const int64_t step = count > 1 && most > 1 ? tensors_.values.stride(0) / side_.row_stride : most;
    side_.padded_rows = most;
    rows_ = count * step;
    reserve(count);
    for (int64_t item = 0; item < count; ++item) {
      const int64_t length = sizes ? sizes[item] : most;
      STD_TORCH_CHECK(length >= 1 && length <= most, name, ": item ", item, " has length ", length,
                      ", which is empty or reaches past the features");
      add_item(item * step, length);
    }
  }

  void reserve(int64_t count) {
    starts_.reserve(count);
    lengths_.reserve(count);
  }

  void add_item(int64_t start, int64_t length) {
    starts_.push_back(start);
    lengths_.push_back(length);
    side_.longest = std::max(side_.longest, length);
  }

  // Whether D is contiguous and items begin whole rows apart, none in the midst of another.
  bool rows_lie_evenly() const {
    const Tensor& values = tensors_.values;
    const int64_t dims = values.dim();
    if (values.stride(dims - 1) != 1 && side_.dim > 1) return false;
    if (dims == 2 || values.size(0) <= 1 || values.size(1) == 1) return true;
    const int64_t item = values.stride(0), row = values.stride(1);
    return row > 0 && item % row == 0 && item / row >= values.size(1);
  }

  Tensors tensors_;
  std::vector<int64_t> starts_, lengths_;
  int64_t rows_ = 0;  // those between items included
  Side side_{};
  std::vector<float> norms_;
};

// What every pairwise operation is given: the two sides and the pairs.
class CheckedBatch {
 public:
  CheckedBatch(const Tensors& regions, const Tensors& words, const std::optional<Tensor>& pairs, bool normalize)
      : kernels(crossret::kernels()),
        images(kernels, regions, normalize, "regions"),
        captions(kernels, words, normalize, "words") {
    STD_TORCH_CHECK(images.side().dim == captions.side().dim, "regions have D = ", images.side().dim,
                    " but words have D = ", captions.side().dim);
    STD_TORCH_CHECK(images.side().dtype == captions.side().dtype, "regions and words must have one dtype");
    if (!pairs) return;
    STD_TORCH_CHECK(
        pairs->is_cpu() && pairs->dim() == 2 && pairs->size(1) == 2 && pairs->scalar_type() == ScalarType::Long,
        "pairs must be a (P, 2) int64 tensor on the CPU");
    rows_ = torch::stable::contiguous(*pairs);
    pairs_ = PairList{rows_->const_data_ptr<int64_t>(), rows_->size(0)};
    for (int64_t k = 0; k < pairs_->count; ++k) {
      const int64_t image = pairs_->image(k), caption = pairs_->caption(k);
      STD_TORCH_CHECK(image >= 0 && image < images.side().count, "pairs[", k, "] names image ", image);
      STD_TORCH_CHECK(caption >= 0 && caption < captions.side().count, "pairs[", k, "] names caption ", caption);
    }
  }

  const PairList* pairs() const { return pairs_ ? &*pairs_ : nullptr; }

  // Completes a call, of whatever operation, and runs it into new scores.
  template <class Call, class Run>
  Tensor score(const Tensor& like, Call call, const Run& run) const {
    const Tensor scores =
        pairs_ ? torch::stable::new_empty(like, {pairs_->count}, ScalarType::Float)
               : torch::stable::new_empty(like, {images.side().count, captions.side().count}, ScalarType::Float);
    call.images = images.side();
    call.captions = captions.side();
    call.scores = scores.mutable_data_ptr<float>();
    if (scores.numel() > 0) run(call);
    return scores;
  }

  // Completes a call and runs its backward pass: run(call, gradients of the scores, of the regions, of the words).
  template <class Call, class Run>
  std::tuple<Tensor, Tensor> differentiate(const Tensor& grad_scores, bool regions_need_grad, bool words_need_grad,
                                           Call call, const Run& run) const {
    check_gradient(grad_scores);
    const Tensor of_regions = images.new_gradient(regions_need_grad);
    const Tensor of_words = captions.new_gradient(words_need_grad);
    call.images = images.side();
    call.captions = captions.side();
    if (grad_scores.numel() > 0) {
      SideGradient regions(images.side(), regions_need_grad ? of_regions.mutable_data_ptr() : nullptr,
                           kernels.finish_gradient);
      SideGradient words(captions.side(), words_need_grad ? of_words.mutable_data_ptr() : nullptr,
                         kernels.finish_gradient);
      const ScoreGradients grads{grad_scores.const_data_ptr<float>(), grad_scores.stride(0),
                                 pairs_ ? 0 : grad_scores.stride(1)};
      run(call, grads, regions, words);
    }
    return {of_regions, of_words};
  }

  const Kernels& kernels;  // one choice for the whole call, whatever the environment does meanwhile
  CheckedSide images, captions;

 private:
  void check_gradient(const Tensor& grad_scores) const {
    const bool fits = pairs_ ? grad_scores.dim() == 1 && grad_scores.size(0) == pairs_->count
                             : grad_scores.dim() == 2 && grad_scores.size(0) == images.side().count &&
                                   grad_scores.size(1) == captions.side().count;
    STD_TORCH_CHECK(fits && grad_scores.is_cpu() && grad_scores.scalar_type() == ScalarType::Float,
                    "grad_scores must be float32 of the scores' shape, on the CPU");
  }

  std::optional<Tensor> rows_;
  std::optional<PairList> pairs_;
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

CrossAttentionCall cross_attention_call(const std::string& direction, const std::string& raw_feature_norm,
                                        double clip_slope, double lambda_softmax, const std::string& pooling,
                                        double lambda_lse) {
  CrossAttentionCall call{};
  CrossAttentionOptions& options = call.options;
  options.direction = parse_direction(direction);
  const bool clips = parse_norm(raw_feature_norm, options.norm);
  options.clip_slope = clips ? static_cast<float>(clip_slope) : 1.0f;
  options.lambda_softmax = static_cast<float>(lambda_softmax);
  options.pooling = parse_pooling(pooling);
  options.lambda_lse = static_cast<float>(lambda_lse);
  return call;
}

MaxSimCall maxsim_call(const std::string& direction, const std::string& pooling) {
  MaxSimCall call{};
  call.direction = parse_direction(direction);
  call.pooling = parse_pooling(pooling);
  return call;
}

Tensor scan_scores(Tensor regions, std::optional<Tensor> region_offsets, std::optional<Tensor> region_lengths,
                   Tensor words, std::optional<Tensor> word_offsets, std::optional<Tensor> word_lengths,
                   std::optional<Tensor> pairs, std::string direction, std::string raw_feature_norm, double clip_slope,
                   double lambda_softmax, std::string pooling, double lambda_lse, bool normalize) {
  const CheckedBatch batch({regions, region_offsets, region_lengths}, {words, word_offsets, word_lengths}, pairs,
                           normalize);
  return batch.score(regions,
                     cross_attention_call(direction, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse),
                     [&](const CrossAttentionCall& call) {
                       score_cross_attention(*batch.kernels.cross_attention, call, batch.pairs());
                     });
}

std::tuple<Tensor, Tensor> scan_scores_backward(
    Tensor grad_scores, Tensor regions, std::optional<Tensor> region_offsets, std::optional<Tensor> region_lengths,
    Tensor words, std::optional<Tensor> word_offsets, std::optional<Tensor> word_lengths, std::optional<Tensor> pairs,
    std::string direction, std::string raw_feature_norm, double clip_slope, double lambda_softmax, std::string pooling,
    double lambda_lse, bool normalize, bool regions_need_grad, bool words_need_grad) {
  const CheckedBatch batch({regions, region_offsets, region_lengths}, {words, word_offsets, word_lengths}, pairs,
                           normalize);
  return batch.differentiate(
      grad_scores, regions_need_grad, words_need_grad,
      cross_attention_call(direction, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse),
      [&](const CrossAttentionCall& call, const ScoreGradients& grads, SideGradient& of_regions,
          SideGradient& of_words) {
        differentiate_cross_attention(*batch.kernels.cross_attention, call, batch.pairs(), grads, of_regions, of_words);
      });
}

Tensor maxsim_scores(Tensor regions, std::optional<Tensor> region_offsets, std::optional<Tensor> region_lengths,
                     Tensor words, std::optional<Tensor> word_offsets, std::optional<Tensor> word_lengths,
                     std::optional<Tensor> pairs, std::string direction, std::string pooling, bool normalize) {
  const CheckedBatch batch({regions, region_offsets, region_lengths}, {words, word_offsets, word_lengths}, pairs,
                           normalize);
  return batch.score(regions, maxsim_call(direction, pooling),
                     [&](const MaxSimCall& call) { score_maxsim(*batch.kernels.maxsim, call, batch.pairs()); });
}

// Rows of `width` queries, or of as many as the longest item has where that is not given.
Tensor maxsim_argmax(Tensor regions, std::optional<Tensor> region_offsets, std::optional<Tensor> region_lengths,
                     Tensor words, std::optional<Tensor> word_offsets, std::optional<Tensor> word_lengths,
                     std::optional<Tensor> pairs, std::string direction, bool normalize, std::optional<int64_t> width) {
  const CheckedBatch batch({regions, region_offsets, region_lengths}, {words, word_offsets, word_lengths}, pairs,
                           normalize);
  MaxSimCall call = maxsim_call(direction, "sum");
  call.images = batch.images.side();
  call.captions = batch.captions.side();
  const int64_t queries = (call.direction == Direction::t2i ? call.captions : call.images).longest;
  call.argmax_row = width.value_or(queries);
  STD_TORCH_CHECK(call.argmax_row >= queries, "width is ", call.argmax_row, " but an item has ", queries, " queries");
  const Tensor argmax =
      batch.pairs() ? torch::stable::new_empty(regions, {batch.pairs()->count, call.argmax_row}, ScalarType::Long)
                    : torch::stable::new_empty(regions, {call.images.count, call.captions.count, call.argmax_row},
                                               ScalarType::Long);
  call.argmax = argmax.mutable_data_ptr<int64_t>();
  if (argmax.numel() > 0) argmax_maxsim(*batch.kernels.maxsim, call, batch.pairs());
  return argmax;
}

std::tuple<Tensor, Tensor> maxsim_scores_backward(
    Tensor grad_scores, Tensor regions, std::optional<Tensor> region_offsets, std::optional<Tensor> region_lengths,
    Tensor words, std::optional<Tensor> word_offsets, std::optional<Tensor> word_lengths, std::optional<Tensor> pairs,
    std::string direction, std::string pooling, bool normalize, bool regions_need_grad, bool words_need_grad) {
  const CheckedBatch batch({regions, region_offsets, region_lengths}, {words, word_offsets, word_lengths}, pairs,
                           normalize);
  return batch.differentiate(
      grad_scores, regions_need_grad, words_need_grad, maxsim_call(direction, pooling),
      [&](const MaxSimCall& call, const ScoreGradients& grads, SideGradient& of_regions, SideGradient& of_words) {
        differentiate_maxsim(*batch.kernels.maxsim, call, batch.pairs(), grads, of_regions, of_words);
      });
}

std::string cpu_isas() {
  std::string names;
  for (const std::string& name : available_isas()) names += (names.empty() ? "" : " ") + name;
  return names;
}

std::string selected_cpu_isa() { return kernels().isa; }

void select_cpu_isa(std::string name) { select_isa(name); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  library.impl("scan_scores", TORCH_BOX(&scan_scores));
  library.impl("scan_scores_backward", TORCH_BOX(&scan_scores_backward));
  library.impl("maxsim_scores", TORCH_BOX(&maxsim_scores));
  library.impl("maxsim_argmax", TORCH_BOX(&maxsim_argmax));
  library.impl("maxsim_scores_backward", TORCH_BOX(&maxsim_scores_backward));
}

STABLE_TORCH_LIBRARY_IMPL(crossret, CompositeExplicitAutograd, library) {
  library.impl("cpu_isas", TORCH_BOX(&cpu_isas));
  library.impl("selected_cpu_isa", TORCH_BOX(&selected_cpu_isa));
  library.impl("select_cpu_isa", TORCH_BOX(&select_cpu_isa));
}

}  // namespace crossret
