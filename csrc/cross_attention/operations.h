// The operations of stacked cross attention on a GPU, as torch calls them.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/numbers.h"

namespace crossret {

using OptionalTensor = std::optional<torch::stable::Tensor>;

// clang-format off
// As `gpu::Part` has them.
#define CROSSRET_PART_NUMBERS(X) X(first) X(items) X(rows) X(longest) X(slots)
// Of a call: whether rows are packed as float32, whatever features are, and `gpu::AttentionChoices`.
#define CROSSRET_CHOICE_NUMBERS(X) \
  X(wide) X(tfloat32) X(empty_score) X(normalize) X(raw_feature_norm) X(clip_slope) X(lambda_softmax) X(pooling) \
  X(lambda_lse)
// clang-format on

CROSSRET_NUMBERS(PartNumbers, CROSSRET_PART_NUMBERS);
CROSSRET_REALS(ChoiceNumbers, CROSSRET_CHOICE_NUMBERS);

// A line each: names of numbers in order, or the name of a constant and its values.
std::string attention_told();

// As steps.py says of them.
std::vector<int64_t> attention_job_sizes(int64_t packed, bool tfloat32, bool softmax, int64_t longest, bool gradients,
                                         int64_t most_shared);
int64_t most_attended_rows(bool gradients, int64_t most_shared);

torch::stable::Tensor pack_side(torch::stable::Tensor features, OptionalTensor extents, OptionalTensor places,
                                OptionalTensor starts, torch::stable::Tensor part, torch::stable::Tensor choices,
                                bool contexts);

void attend(torch::stable::Tensor scores, torch::stable::Tensor contexts, torch::stable::Tensor queries,
            torch::stable::Tensor of_contexts, torch::stable::Tensor of_queries, OptionalTensor context_jobs,
            OptionalTensor query_jobs, torch::stable::Tensor choices, OptionalTensor pairs, OptionalTensor order);

std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor> attention_gradients(
    torch::stable::Tensor grad_scores, torch::stable::Tensor contexts, torch::stable::Tensor queries,
    torch::stable::Tensor of_contexts, torch::stable::Tensor of_queries, OptionalTensor context_jobs,
    OptionalTensor query_jobs, torch::stable::Tensor choices);

void finish_gradients(torch::stable::Tensor sums, torch::stable::Tensor packed, torch::stable::Tensor out,
                      OptionalTensor extents, OptionalTensor places, OptionalTensor starts, torch::stable::Tensor part,
                      torch::stable::Tensor choices, OptionalTensor own, OptionalTensor of_grams);

}  // namespace crossret
