// Registers the CPU kernels with torch's stable ABI.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "cross_attention/cpu.h"
#include "maxsim/cpu.h"

namespace crossret {

namespace {

using torch::stable::Tensor;
using Optional = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;

// Whether words attend to regions.
bool parse_direction(const std::string& name) {
  STD_TORCH_CHECK(name == "t2i" || name == "i2t", "unknown direction ", name);
  return name == "t2i";
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

CrossAttentionCall cross_attention_call(const CheckedBatch& batch, const std::string& raw_feature_norm,
                                        double clip_slope, double lambda_softmax, const std::string& pooling,
                                        double lambda_lse) {
  CrossAttentionCall call{};
  batch.lay_out(call);
  CrossAttentionOptions& options = call.options;
  const bool clips = parse_norm(raw_feature_norm, options.norm);
  options.clip_slope = clips ? static_cast<float>(clip_slope) : 1.0f;
  options.lambda_softmax = static_cast<float>(lambda_softmax);
  options.pooling = parse_pooling(pooling);
  options.lambda_lse = static_cast<float>(lambda_lse);
  return call;
}

MaxSimCall maxsim_call(const CheckedBatch& batch, const std::string& pooling) {
  MaxSimCall call{};
  batch.lay_out(call);
  call.pooling = parse_pooling(pooling);
  return call;
}

// The gradients of regions and words: run(gradient of the contexts, of the queries) adds them up.
template <class Run>
std::tuple<Tensor, Tensor> gradients_of(const CheckedBatch& batch, bool regions_need_grad, bool words_need_grad,
                                        const Run& run) {
  const Tensor of_regions = batch.regions().new_gradient(regions_need_grad);
  const Tensor of_words = batch.words().new_gradient(words_need_grad);
  SideGradient regions(batch.regions().side(), regions_need_grad ? of_regions.mutable_data_ptr() : nullptr,
                       batch.kernels().finish_gradient);
  SideGradient words(batch.words().side(), words_need_grad ? of_words.mutable_data_ptr() : nullptr,
                     batch.kernels().finish_gradient);
  if (batch.words_attend()) {
    run(regions, words);
  } else {
    run(words, regions);
  }
  return {of_regions, of_words};
}

Tensor scan_scores_listed(Tensors regions, Optional region_offsets, Optional region_lengths, Optional region_mask,
                          Tensors words, Optional word_offsets, Optional word_lengths, Optional word_mask,
                          Optional pairs, std::string direction, std::string raw_feature_norm, double clip_slope,
                          double lambda_softmax, std::string pooling, double lambda_lse, bool normalize,
                          std::optional<double> empty_score, bool split_float32) {
  const CheckedBatch batch({{regions, region_offsets, region_lengths, region_mask},
                            {words, word_offsets, word_lengths, word_mask},
                            pairs,
                            parse_direction(direction),
                            normalize,
                            empty_score,
                            split_float32});
  CrossAttentionCall call =
      cross_attention_call(batch, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse);
  const Tensor scores = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  score_cross_attention(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  return scores;
}

Tensor scan_scores(Tensor regions, Optional region_offsets, Optional region_lengths, Optional region_mask, Tensor words,
                   Optional word_offsets, Optional word_lengths, Optional word_mask, Optional pairs,
                   std::string direction, std::string raw_feature_norm, double clip_slope, double lambda_softmax,
                   std::string pooling, double lambda_lse, bool normalize, std::optional<double> empty_score,
                   bool split_float32) {
  return scan_scores_listed({regions}, region_offsets, region_lengths, region_mask, {words}, word_offsets, word_lengths,
                            word_mask, pairs, direction, raw_feature_norm, clip_slope, lambda_softmax, pooling,
                            lambda_lse, normalize, empty_score, split_float32);
}

std::tuple<Tensor, Tensor> scan_scores_backward(Tensor grad_scores, Tensor regions, Optional region_offsets,
                                                Optional region_lengths, Optional region_mask, Tensor words,
                                                Optional word_offsets, Optional word_lengths, Optional word_mask,
                                                Optional pairs, std::string direction, std::string raw_feature_norm,
                                                double clip_slope, double lambda_softmax, std::string pooling,
                                                double lambda_lse, bool normalize, std::optional<double> empty_score,
                                                bool split_float32, bool regions_need_grad, bool words_need_grad) {
  const CheckedBatch batch({{{regions}, region_offsets, region_lengths, region_mask},
                            {{words}, word_offsets, word_lengths, word_mask},
                            pairs,
                            parse_direction(direction),
                            normalize,
                            empty_score,
                            split_float32});
  const CrossAttentionCall call =
      cross_attention_call(batch, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse);
  const ScoreGradients grads = batch.gradients(grad_scores);
  return gradients_of(batch, regions_need_grad, words_need_grad, [&](SideGradient& contexts, SideGradient& queries) {
    differentiate_cross_attention(batch.kernels(), call, batch.pairs(), grads, contexts, queries);
  });
}

Tensor maxsim_scores_listed(Tensors regions, Optional region_offsets, Optional region_lengths, Optional region_mask,
                            Tensors words, Optional word_offsets, Optional word_lengths, Optional word_mask,
                            Optional pairs, std::string direction, std::string pooling, bool normalize,
                            std::optional<double> empty_score, bool split_float32) {
  const CheckedBatch batch({{regions, region_offsets, region_lengths, region_mask},
                            {words, word_offsets, word_lengths, word_mask},
                            pairs,
                            parse_direction(direction),
                            normalize,
                            empty_score,
                            split_float32});
  MaxSimCall call = maxsim_call(batch, pooling);
  const Tensor scores = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  score_maxsim(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  return scores;
}

Tensor maxsim_scores(Tensor regions, Optional region_offsets, Optional region_lengths, Optional region_mask,
                     Tensor words, Optional word_offsets, Optional word_lengths, Optional word_mask, Optional pairs,
                     std::string direction, std::string pooling, bool normalize, std::optional<double> empty_score,
                     bool split_float32) {
  return maxsim_scores_listed({regions}, region_offsets, region_lengths, region_mask, {words}, word_offsets,
                              word_lengths, word_mask, pairs, direction, pooling, normalize, empty_score,
                              split_float32);
}

// Rows of `width` queries, or of as many as the longest item has where that is not given.
Tensor maxsim_argmax(Tensor regions, Optional region_offsets, Optional region_lengths, Optional region_mask,
                     Tensor words, Optional word_offsets, Optional word_lengths, Optional word_mask, Optional pairs,
                     std::string direction, bool normalize, std::optional<double> empty_score, bool split_float32,
                     std::optional<int64_t> width) {
  const CheckedBatch batch({{{regions}, region_offsets, region_lengths, region_mask},
                            {{words}, word_offsets, word_lengths, word_mask},
                            pairs,
                            parse_direction(direction),
                            normalize,
                            empty_score,
                            split_float32});
  MaxSimCall call = maxsim_call(batch, "sum");
  const Tensor indices = batch.new_indices(width);
  call.argmax = indices.mutable_data_ptr<int64_t>();
  call.argmax_row = indices.size(indices.dim() - 1);
  score_maxsim(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  return indices;
}

std::tuple<Tensor, Tensor> maxsim_scores_backward(Tensor grad_scores, Tensor regions, Optional region_offsets,
                                                  Optional region_lengths, Optional region_mask, Tensor words,
                                                  Optional word_offsets, Optional word_lengths, Optional word_mask,
                                                  Optional pairs, std::string direction, std::string pooling,
                                                  bool normalize, std::optional<double> empty_score, bool split_float32,
                                                  bool regions_need_grad, bool words_need_grad) {
  const CheckedBatch batch({{{regions}, region_offsets, region_lengths, region_mask},
                            {{words}, word_offsets, word_lengths, word_mask},
                            pairs,
                            parse_direction(direction),
                            normalize,
                            empty_score,
                            split_float32});
  const MaxSimCall call = maxsim_call(batch, pooling);
  const ScoreGradients grads = batch.gradients(grad_scores);
  return gradients_of(batch, regions_need_grad, words_need_grad, [&](SideGradient& contexts, SideGradient& queries) {
    differentiate_maxsim(batch.kernels(), call, batch.pairs(), grads, contexts, queries);
  });
}

std::string cpu_isas() {
  std::string names;
  for (const std::string& name : available_isas()) names += (names.empty() ? "" : " ") + name;
  return names;
}

std::string selected_cpu_isa(std::string dtype) {
  STD_TORCH_CHECK(dtype == "float32" || dtype == "bfloat16" || dtype == "float16", "unknown dtype ", dtype);
  return kernels(dtype == "float32"    ? Dtype::float32
                 : dtype == "bfloat16" ? Dtype::bfloat16
                                       : Dtype::float16,
                 false)
      .isa;
}

void select_cpu_isa(std::string name) { select_isa(name); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  library.impl("scan_scores", TORCH_BOX(&scan_scores));
  library.impl("scan_scores_listed", TORCH_BOX(&scan_scores_listed));
  library.impl("scan_scores_backward", TORCH_BOX(&scan_scores_backward));
  library.impl("maxsim_scores", TORCH_BOX(&maxsim_scores));
  library.impl("maxsim_scores_listed", TORCH_BOX(&maxsim_scores_listed));
  library.impl("maxsim_argmax", TORCH_BOX(&maxsim_argmax));
  library.impl("maxsim_scores_backward", TORCH_BOX(&maxsim_scores_backward));
}

STABLE_TORCH_LIBRARY_IMPL(crossret, CompositeExplicitAutograd, library) {
  library.impl("cpu_isas", TORCH_BOX(&cpu_isas));
  library.impl("selected_cpu_isa", TORCH_BOX(&selected_cpu_isa));
  library.impl("select_cpu_isa", TORCH_BOX(&select_cpu_isa));
}

}  // namespace crossret
