// Registers the CPU kernels with torch's stable ABI.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "cross_attention/cpu.h"
#include "cross_attention/options.h"
#include "maxsim/cpu.h"
#include "ranking_loss/operation.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

SideTensors take_side(Arguments& arguments, bool listed) {
  SideTensors side;
  if (listed) {
    side.values = arguments.take<std::vector<Tensor>>();
  } else {
    side.values.push_back(arguments.take<Tensor>());
  }
  for (std::optional<Tensor>* part : {&side.offsets, &side.lengths, &side.mask}) {
    *part = arguments.take<std::optional<Tensor>>();
  }
  return side;
}

// What every operation begins with.
BatchArguments take_batch(Arguments& arguments, bool listed = false) {
  BatchArguments batch;
  batch.regions = take_side(arguments, listed);
  batch.words = take_side(arguments, listed);
  batch.pairs = arguments.take<std::optional<Tensor>>();
  batch.empty_score = arguments.take<std::optional<double>>();
  batch.split_float32 = arguments.take<bool>();
  batch.direction = arguments.take<int64_t>();
  batch.normalize = arguments.take<bool>();
  return batch;
}

// What the operations of one kind go on with, and the kernels behind them.
struct CrossAttention {
  CrossAttentionOptions options;

  static CrossAttention take(Arguments& arguments) { return {take_attention_options(arguments)}; }

  CrossAttentionCall call(const CheckedBatch& batch) const {
    CrossAttentionCall call{};
    batch.lay_out(call);
    call.options = options;
    return call;
  }

  static constexpr auto score = &score_cross_attention;
  static constexpr auto differentiate = &differentiate_cross_attention;
};

struct MaxSim {
  int64_t pooling;

  static MaxSim take(Arguments& arguments) { return {arguments.take<int64_t>()}; }

  MaxSimCall call(const CheckedBatch& batch) const {
    MaxSimCall call{};
    batch.lay_out(call);
    call.pooling = pooling_of(pooling);
    return call;
  }

  static constexpr auto score = &score_maxsim;
  static constexpr auto differentiate = &differentiate_maxsim;
};

template <class Operation, bool listed>
void scores(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  BatchArguments given = take_batch(arguments, listed);
  const Operation operation = Operation::take(arguments);
  arguments.finish();
  const CheckedBatch batch(std::move(given));
  auto call = operation.call(batch);
  const Tensor scores = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  Operation::score(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(scores);
}

// The gradients of regions and words.
template <class Operation>
void gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const Tensor grad_scores = arguments.take<Tensor>();
  BatchArguments given = take_batch(arguments);
  const Operation operation = Operation::take(arguments);
  const bool regions_need_grad = arguments.take<bool>(), words_need_grad = arguments.take<bool>();
  arguments.finish();
  const CheckedBatch batch(std::move(given));
  const auto call = operation.call(batch);
  const ScoreGradients grads = batch.gradients(grad_scores);
  const Tensor of_regions = batch.regions().new_gradient(regions_need_grad);
  const Tensor of_words = batch.words().new_gradient(words_need_grad);
  SideGradient regions(batch.regions().side(), regions_need_grad ? of_regions.mutable_data_ptr() : nullptr,
                       batch.kernels().finish_gradient);
  SideGradient words(batch.words().side(), words_need_grad ? of_words.mutable_data_ptr() : nullptr,
                     batch.kernels().finish_gradient);
  SideGradient &contexts = batch.words_attend() ? regions : words, &queries = batch.words_attend() ? words : regions;
  Operation::differentiate(batch.kernels(), call, batch.pairs(), grads, contexts, queries);
  stack[0] = torch::stable::detail::from(of_regions);
  stack[1] = torch::stable::detail::from(of_words);
}

// Rows of `width` queries, or of as many as the longest item has where that is not given.
void maxsim_argmax(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  BatchArguments given = take_batch(arguments);
  const auto width = arguments.take<std::optional<int64_t>>();
  arguments.finish();
  const CheckedBatch batch(std::move(given));
  MaxSimCall call{};
  batch.lay_out(call);
  call.pooling = Pooling::sum;
  const Tensor indices = batch.new_indices(width);
  call.argmax = indices.mutable_data_ptr<int64_t>();
  call.argmax_row = indices.size(indices.dim() - 1);
  score_maxsim(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(indices);
}

// Scores as they are asked for, and with the directions exchanged.
void maxsim_both(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  BatchArguments given = take_batch(arguments);
  const MaxSim operation = MaxSim::take(arguments);
  arguments.finish();
  const CheckedBatch batch(std::move(given));
  MaxSimCall call = operation.call(batch);
  const Tensor scores = batch.new_scores(), turned = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  call.turned_scores = turned.mutable_data_ptr<float>();
  score_maxsim_both(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(scores);
  stack[1] = torch::stable::detail::from(turned);
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
  for (const char* name : {"scan_scores", "scan_scores.plain"}) library.impl(name, &scores<CrossAttention, false>);
  library.impl("scan_scores_listed", &scores<CrossAttention, true>);
  for (const char* name : {"scan_scores_backward", "scan_scores_backward.plain"}) {
    library.impl(name, &gradients<CrossAttention>);
  }
  for (const char* name : {"maxsim_scores", "maxsim_scores.plain"}) library.impl(name, &scores<MaxSim, false>);
  library.impl("maxsim_scores_listed", &scores<MaxSim, true>);
  for (const char* name : {"maxsim_scores_backward", "maxsim_scores_backward.plain"}) {
    library.impl(name, &gradients<MaxSim>);
  }
  library.impl("maxsim_argmax", &maxsim_argmax);
  library.impl("maxsim_both", &maxsim_both);
  for (const char* name : {"triplet_loss", "triplet_loss.plain"}) library.impl(name, &triplet_loss);
  for (const char* name : {"triplet_loss_backward", "triplet_loss_backward.plain"}) {
    library.impl(name, &triplet_loss_gradient);
  }
}

STABLE_TORCH_LIBRARY_IMPL(crossret, CompositeExplicitAutograd, library) {
  library.impl("cpu_isas", TORCH_BOX(&cpu_isas));
  library.impl("selected_cpu_isa", TORCH_BOX(&selected_cpu_isa));
  library.impl("select_cpu_isa", TORCH_BOX(&select_cpu_isa));
}

}  // namespace crossret
