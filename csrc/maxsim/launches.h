// What Sum-Max's host code in Python launches on a GPU: memory is given, checked for its size and kind, and filled.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

namespace crossret {

using OptionalTensor = std::optional<torch::stable::Tensor>;

void maxsim_norms(torch::stable::Tensor features, torch::stable::Tensor scales, torch::stable::Tensor sizes);

void maxsim_search(torch::stable::Tensor queries, torch::stable::Tensor contexts, OptionalTensor query_scales,
                   OptionalTensor context_scales, torch::stable::Tensor query_firsts,
                   torch::stable::Tensor query_lengths, torch::stable::Tensor groups, OptionalTensor rows,
                   OptionalTensor owners, OptionalTensor items, OptionalTensor starts, OptionalTensor scores,
                   OptionalTensor maxima, OptionalTensor indices, std::vector<torch::stable::Tensor> listed,
                   torch::stable::Tensor sizes);

void maxsim_gradients(torch::stable::Tensor own, torch::stable::Tensor others, OptionalTensor own_scales,
                      OptionalTensor other_scales, torch::stable::Tensor own_lengths,
                      torch::stable::Tensor other_firsts, torch::stable::Tensor other_lengths,
                      torch::stable::Tensor blocks, torch::stable::Tensor grads, torch::stable::Tensor indices,
                      torch::stable::Tensor maxima, std::vector<torch::stable::Tensor> valid,
                      std::vector<torch::stable::Tensor> listed, torch::stable::Tensor out,
                      torch::stable::Tensor sizes);

}  // namespace crossret
