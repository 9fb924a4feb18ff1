#include <torch/csrc/stable/library.h>

#include "cuda/torch_stream.h"
#include "tensor.h"
#include "topk/gpu.h"

namespace crossret {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kMostColumns = (int64_t{1} << 31) - 1 - gpu::kMostTopk;  // numbered by int32, behind the list

void check(const Tensor& values, const Tensor& indices, const Tensor& scores, int64_t held) {
  STD_TORCH_CHECK(gpu::on_device(scores), "scores must be on ", gpu::kDevices);
  STD_TORCH_CHECK(scores.dim() == 2 && scores.scalar_type() == ScalarType::Float,
                  "scores must be a 2-D float32 tensor");
  const Place place = Place::of(scores);
  const auto check_list = [&](const Tensor& list, ScalarType dtype, const char* name, const char* called) {
    STD_TORCH_CHECK(place.holds(list) && list.scalar_type() == dtype && list.dim() == 2 && list.is_contiguous() &&
                        list.size(0) == scores.size(0) && list.size(1) == values.size(1),
                    name, " must be a contiguous ", called, " tensor of the scores' rows, on their device");
  };
  check_list(values, ScalarType::Float, "values", "2-D float32");
  check_list(indices, ScalarType::Long, "indices", "2-D int64");
  const int64_t most = values.size(1), rows = scores.size(0), columns = scores.size(1);
  STD_TORCH_CHECK(most <= gpu::kMostTopk, "k is ", most, " but the kernels merge up to ", gpu::kMostTopk);
  STD_TORCH_CHECK(rows < int64_t{1} << 31 && columns <= kMostColumns, "scores may have up to ", kMostColumns,
                  " columns and 2^31 - 1 rows");
  STD_TORCH_CHECK(held >= 0 && held <= most && most <= held + columns, "of ", held, " and ", columns, " scores ", most,
                  " are not the best");
}

// Merges scores (q, c) of items start to start + c into the best `held` of all earlier items: values and indices
// (q, k), best first, of which there are k then.
void merge_topk(Tensor values, Tensor indices, Tensor scores, int64_t held, int64_t start) {
  check(values, indices, scores, held);
  const gpu::TopkCall call{scores.const_data_ptr<float>(),
                           scores.stride(0),
                           scores.stride(1),
                           static_cast<int>(scores.size(0)),
                           static_cast<int>(scores.size(1)),
                           static_cast<int>(held),
                           static_cast<int>(values.size(1)),
                           start,
                           values.mutable_data_ptr<float>(),
                           indices.mutable_data_ptr<int64_t>()};
  const gpu::CurrentStream stream(scores);
  const Tensor scratch = empty<1>({gpu::topk_scratch(call)}, aoti_torch_dtype_int32(), Place::of(scores));
  gpu::merge_topk(call, stream, scratch.mutable_data_ptr());
}

}  // namespace

CROSSRET_ON_DEVICE(library) { library.impl("merge_topk_cuda", TORCH_BOX(&merge_topk)); }

}  // namespace crossret
