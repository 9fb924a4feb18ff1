// What Sum-Max's host code in Python launches on a GPU: memory is given, checked for its size and kind, and filled.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "cuda/numbers.h"

namespace crossret {

using OptionalTensor = std::optional<torch::stable::Tensor>;

// clang-format off
// Of a side: rows numbered as `SideCall` has them.
#define CROSSRET_SIDE_NUMBERS(X, name) \
  X(name##_slots) X(name##_most) X(name##_rows) X(name##_item_stride) X(name##_row_stride) X(name##_items)
#define CROSSRET_NORM_NUMBERS(X) CROSSRET_SIDE_NUMBERS(X, own)
// As `SearchCall` has them.
#define CROSSRET_SEARCH_NUMBERS(X) \
  CROSSRET_SIDE_NUMBERS(X, queries) CROSSRET_SIDE_NUMBERS(X, contexts) \
  X(wide) X(places) X(tf32) X(pooling) X(resident_rows) X(bits) X(first_item) X(count) X(first_group) X(n_groups) \
  X(run_groups) X(n_tiles) X(tile_items) X(n_runs) X(score_context) X(score_query) X(index_context) X(query_stride) \
  X(tiles_of_pair) X(pitch) X(context_column)
// As `GradientCall` has them.
#define CROSSRET_GRADIENT_NUMBERS(X) \
  CROSSRET_SIDE_NUMBERS(X, own) CROSSRET_SIDE_NUMBERS(X, others) \
  X(of_contexts) X(average) X(add) X(first_own) X(item_blocks) X(n_blocks) X(block_rows) X(grad_context) X(grad_query) \
  X(index_context) X(query_slots) X(first_item) X(count) X(longest) X(n_runs) X(context_column)
// clang-format on

CROSSRET_NUMBERS(NormNumbers, CROSSRET_NORM_NUMBERS);
CROSSRET_NUMBERS(SearchNumbers, CROSSRET_SEARCH_NUMBERS);
CROSSRET_NUMBERS(GradientNumbers, CROSSRET_GRADIENT_NUMBERS);

// A line each: the name of a launch and those of its numbers in order, or of a constant and its values.
std::string maxsim_told();

void maxsim_norms(torch::stable::Tensor features, torch::stable::Tensor scales, torch::stable::Tensor sizes);

void maxsim_search(torch::stable::Tensor queries, torch::stable::Tensor contexts, OptionalTensor query_scales,
                   OptionalTensor context_scales, OptionalTensor query_extents, OptionalTensor context_extents,
                   OptionalTensor groups, OptionalTensor items, OptionalTensor starts, OptionalTensor scores,
                   OptionalTensor maxima, OptionalTensor indices, std::vector<torch::stable::Tensor> listed,
                   torch::stable::Tensor sizes);

void maxsim_gradients(torch::stable::Tensor own, torch::stable::Tensor others, OptionalTensor own_scales,
                      OptionalTensor other_scales, OptionalTensor own_extents, OptionalTensor other_extents,
                      OptionalTensor starts, OptionalTensor holders, torch::stable::Tensor grads,
                      torch::stable::Tensor indices, torch::stable::Tensor maxima,
                      std::vector<torch::stable::Tensor> listed, torch::stable::Tensor out,
                      torch::stable::Tensor sizes);

}  // namespace crossret
