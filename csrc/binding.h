// Operations over two sides as torch calls them: scores and gradients of any operation.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "arguments.h"
#include "call.h"

namespace crossret {

// Scores. An Operation takes its options, turns a batch into a call, and scores and differentiates it.
template <class Operation, bool listed>
void scores(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  Batch batch(arguments, listed);
  const Operation operation = Operation::take(arguments);
  constexpr bool saves = Operation::saves && !listed;
  const bool save = saves && arguments.take<bool>();
  batch.read(arguments);
  auto call = operation.call(batch);
  const torch::stable::Tensor scores = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  if constexpr (saves) {
    const auto kept = save ? Operation::keep(batch, call) : empty<1>({0}, aoti_torch_dtype_float32());
    stack[1] = torch::stable::detail::from(kept);
  }
  Operation::score(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(scores);
}

// Returns the wanted gradients of regions and words, to which run(contexts, queries) adds.
template <class Run>
void differentiate(const Batch& batch, bool regions_need_grad, bool words_need_grad, StableIValue* stack,
                   const Run& run) {
  const torch::stable::Tensor of_regions = batch.regions().new_gradient(regions_need_grad);
  const torch::stable::Tensor of_words = batch.words().new_gradient(words_need_grad);
  SideGradient regions(batch.regions().view(), regions_need_grad ? of_regions.mutable_data_ptr() : nullptr,
                       batch.kernels().finish_gradient);
  SideGradient words(batch.words().view(), words_need_grad ? of_words.mutable_data_ptr() : nullptr,
                     batch.kernels().finish_gradient);
  SideGradient &contexts = batch.words_attend() ? regions : words, &queries = batch.words_attend() ? words : regions;
  run(contexts, queries);
  stack[0] = torch::stable::detail::from(of_regions);
  stack[1] = torch::stable::detail::from(of_words);
}

// Gradients of regions and words.
template <class Operation>
void gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const torch::stable::Tensor grad_scores = arguments.take<torch::stable::Tensor>();
  std::optional<torch::stable::Tensor> kept;
  if constexpr (Operation::saves) kept = arguments.take<torch::stable::Tensor>();
  Batch batch(arguments);
  const Operation operation = Operation::take(arguments);
  if constexpr (Operation::saves) arguments.take<bool>();  // whether it was to be kept
  const bool regions_need_grad = arguments.take<bool>(), words_need_grad = arguments.take<bool>();
  batch.read(arguments);
  auto call = operation.call(batch);
  if constexpr (Operation::saves) Operation::read(*kept, batch, call);
  const ScoreGradients grads = batch.gradients(grad_scores);
  differentiate(batch, regions_need_grad, words_need_grad, stack, [&](SideGradient& contexts, SideGradient& queries) {
    Operation::differentiate(batch.kernels(), call, batch.pairs(), grads, contexts, queries);
  });
}

}  // namespace crossret
