// One tile by warpgroups, over tensors.
#include "cuda/one_tile.h"

#include <vector>

#include "call.h"
#include "cuda/torch_stream.h"
#include "tensor.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

std::vector<int64_t> one_tile_sizes() {
  const gpu::OneTileSizes sizes = gpu::one_tile_sizes();
  return {sizes.queries, sizes.contexts, sizes.copied_bytes};
}

void one_tile(Tensor copies, Tensor sums, Tensor queries, Tensor contexts) {
  const gpu::OneTileSizes sizes = gpu::one_tile_sizes();
  const Place place = Place::of(queries);
  const auto rows = [&](const Tensor& side, int count) {
    return gpu::on_device(side) && place.holds(side) && side.dim() == 2 && side.is_contiguous() &&
           side.size(0) == count && side.size(1) == queries.size(1);
  };
  const Dtype dtype = feature_dtype(queries, "queries");
  const int64_t row_bytes = queries.size(1) * element_bytes(dtype);
  STD_TORCH_CHECK(rows(queries, sizes.queries) && rows(contexts, sizes.contexts) &&
                      contexts.scalar_type() == queries.scalar_type() && row_bytes > 0 && row_bytes % 16 == 0,
                  "a tile has rows of 16 bytes or a multiple of them");
  STD_TORCH_CHECK(copies.is_contiguous() && copies.scalar_type() == torch::headeronly::ScalarType::Byte &&
                      copies.numel() == sizes.copied_bytes && sums.is_contiguous() &&
                      sums.numel() == int64_t{sizes.queries} * sizes.contexts &&
                      sums.scalar_type() == torch::headeronly::ScalarType::Float && place.holds(copies) &&
                      place.holds(sums),
                  "what is copied and multiplied needs room beside the rows");
  const gpu::CurrentStream stream(queries);
  gpu::copy_and_multiply(queries.const_data_ptr(), contexts.const_data_ptr(), row_bytes, dtype,
                         copies.mutable_data_ptr(), static_cast<float*>(sums.mutable_data_ptr()), stream);
}

}  // namespace

CROSSRET_ON_DEVICE(library) { library.impl("one_tile_cuda", TORCH_BOX(&one_tile)); }

CROSSRET_ANYWHERE(library) { library.impl("one_tile_sizes", TORCH_BOX(&one_tile_sizes)); }

}  // namespace crossret
