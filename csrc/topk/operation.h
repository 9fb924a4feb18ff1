// The merge of the best k as torch calls it.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <cstdint>

namespace crossret {

// Merges scores (q, c) of items start to start + c into the best `held` of all earlier items: values and indices
// (q, k), best first, of which there are k then.
void merge_topk(torch::stable::Tensor values, torch::stable::Tensor indices, torch::stable::Tensor scores, int64_t held,
                int64_t start);

}  // namespace crossret
