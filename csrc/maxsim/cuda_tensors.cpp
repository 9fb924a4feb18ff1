#include <limits>
#include <string>

#include "cuda/numbers.h"
#include "cuda/torch_stream.h"
#include "maxsim/gpu.h"
#include "tensor.h"

namespace crossret {

namespace {

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

using gpu::maxsim::SideCall;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A table's numbers: contiguous.
template <class T>
const T* table(const Tensor& tensor, ScalarType dtype, int64_t count, const char* name) {
  STD_TORCH_CHECK(gpu::on_device(tensor), name, " must be on ", gpu::kDevices);
  STD_TORCH_CHECK(tensor.scalar_type() == dtype && tensor.is_contiguous() && tensor.numel() >= count, name,
                  " must be a table of ", count, " numbers of its kind");
  return static_cast<const T*>(tensor.const_data_ptr());
}
const int* ints(const Tensor& tensor, int64_t count, const char* name) {
  return table<int>(tensor, ScalarType::Int, count, name);
}
const int64_t* longs(const Tensor& tensor, int64_t count, const char* name) {
  return table<int64_t>(tensor, ScalarType::Long, count, name);
}
const float* floats(const Tensor& tensor, int64_t count, const char* name) {
  return table<float>(tensor, ScalarType::Float, count, name);
}

// From the first element to behind the last one.
int64_t extent(const Tensor& tensor) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 0) return 0;
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return last + 1;
}

// Of a side that launches call `name`.
#define CROSSRET_SIDE_OF(name, features, extents, sizes)                                                               \
  side_of(features, extents, sizes.name##_slots, sizes.name##_most, sizes.name##_item_stride, sizes.name##_row_stride, \
          sizes.name##_rows, sizes.name##_items)

SideCall side_of(const Tensor& features, const OptionalTensor& extents, int64_t slots, int64_t most,
                 int64_t item_stride, int64_t row_stride, int64_t n_rows, int64_t n_items) {
  STD_TORCH_CHECK(gpu::on_device(features), "features must be on ", gpu::kDevices);
  SideCall side{};
  side.features = features.const_data_ptr();
  side.elements = extent(features);
  side.item_stride = item_stride, side.row_stride = row_stride;
  side.slots = slots, side.most = most, side.n_rows = n_rows, side.n_items = n_items;
  if (extents) side.extents = longs(*extents, n_items + (slots == 0 ? 1 : 0), "lengths");
  side.dim = static_cast<int>(features.size(features.dim() - 1));
  side.dtype = feature_dtype(features, "features");
  return side;
}

const float* scales_of(const OptionalTensor& scales, const SideCall& side) {
  return scales ? floats(*scales, side.n_rows, "scales") : nullptr;
}

Tensor scratch(int64_t bytes, const Tensor& like) {
  return empty<1>({bytes / 4 + 1}, aoti_torch_dtype_float32(), Place::of(like));
}

void maxsim_norms(Tensor features, Tensor scales, Tensor numbers) {
  const auto sizes = numbers_of<NormNumbers>(numbers);
  const SideCall side = CROSSRET_SIDE_OF(own, features, OptionalTensor(), sizes);
  floats(scales, side.n_rows, "scales");
  if (side.n_rows == 0) return;
  const gpu::CurrentStream stream(features);
  gpu::maxsim::invert_norms(side, stream, static_cast<float*>(scales.mutable_data_ptr()));
}

void maxsim_search(Tensor queries, Tensor contexts, OptionalTensor query_scales, OptionalTensor context_scales,
                   OptionalTensor query_extents, OptionalTensor context_extents, OptionalTensor groups,
                   OptionalTensor items, OptionalTensor starts, OptionalTensor scores, OptionalTensor maxima,
                   OptionalTensor indices, std::vector<Tensor> listed, Tensor numbers) {
  const auto sizes = numbers_of<SearchNumbers>(numbers);
  gpu::maxsim::SearchCall call{};
  call.queries = CROSSRET_SIDE_OF(queries, queries, query_extents, sizes);
  call.contexts = CROSSRET_SIDE_OF(contexts, contexts, context_extents, sizes);
  STD_TORCH_CHECK(call.queries.dtype == call.contexts.dtype && call.queries.dim == call.contexts.dim,
                  "both sides must be of one dtype and D");
  call.queries.scales = scales_of(query_scales, call.queries);
  call.contexts.scales = scales_of(context_scales, call.contexts);
  call.normalize = query_scales.has_value();
  STD_TORCH_CHECK(call.normalize == context_scales.has_value(), "both sides have scales, or none");
  call.tiles = sizes.wide != 0 ? gpu::maxsim::Tiles::wide : gpu::maxsim::Tiles::usual;
  call.index = sizes.places != 0, call.tf32 = sizes.tf32 != 0;
  call.pooling = static_cast<Pooling>(sizes.pooling);
  call.resident_rows = sizes.resident_rows, call.bits = sizes.bits;
  call.first_item = sizes.first_item, call.count = sizes.count;
  call.first_group = sizes.first_group, call.n_groups = sizes.n_groups, call.run_groups = sizes.run_groups;
  call.n_tiles = sizes.n_tiles, call.tile_items = sizes.tile_items, call.n_runs = sizes.n_runs;
  call.score_context = sizes.score_context, call.score_query = sizes.score_query;
  call.index_context = sizes.index_context, call.query_stride = sizes.query_stride;
  call.tiles_of_pair = sizes.tiles_of_pair, call.pitch = sizes.pitch;
  call.listed.context_column = static_cast<int>(sizes.context_column);
  STD_TORCH_CHECK(
      groups.has_value() == (call.tile_items == 0 && listed.empty()) && groups.has_value() == items.has_value(),
      "tables tell both groups and tiles, or neither");
  if (groups) {
    call.n_groups_in_all = groups->numel() >> call.bits;
    call.groups = ints(*groups, 1, "groups");
    call.items = ints(*items, call.n_tiles * gpu::maxsim::kTileRows[static_cast<int>(call.tiles)], "items");
    STD_TORCH_CHECK(call.first_group + call.n_groups <= call.n_groups_in_all, "groups are missing");
  }
  if (!listed.empty()) {
    call.listed.count = listed[0].size(0), call.listed.n_contexts = call.contexts.n_items;
    call.listed.pairs = longs(listed[0], 2 * call.listed.count, "pairs");
    STD_TORCH_CHECK(call.listed.count <= std::numeric_limits<int>::max(), "too many pairs");
    if (listed.size() > 1) {
      STD_TORCH_CHECK(listed.size() == 5, "of ordered pairs there are five tables");
      call.listed.order = longs(listed[1], call.listed.count, "order");
      call.listed.row_ends = longs(listed[2], call.listed.count, "ends of rows");
      call.listed.item_rows = longs(listed[3], call.contexts.n_items, "rows of items");
      call.listed.item_tiles = longs(listed[4], call.contexts.n_items, "tiles of items");
    }
  }
  if (starts) call.starts = ints(*starts, call.queries.n_items, "starts");
  if (scores) {
    call.n_scores = extent(*scores);
    call.scores = static_cast<float*>(scores->mutable_data_ptr());
  }
  if (maxima) {
    call.n_found = extent(*maxima);
    call.maxima = static_cast<float*>(maxima->mutable_data_ptr());
  }
  if (indices) {
    call.n_found = extent(*indices);
    const bool wide = indices->scalar_type() == ScalarType::Long;
    STD_TORCH_CHECK(wide || indices->scalar_type() == ScalarType::Int, "indices must be int32 or int64");
    if (wide) call.wide_indices = static_cast<int64_t*>(indices->mutable_data_ptr());
    if (!wide) call.indices = static_cast<int*>(indices->mutable_data_ptr());
  }
  const gpu::CurrentStream stream(queries);
  const int64_t bytes = gpu::maxsim::search_scratch(call);
  if (bytes == 0) return gpu::maxsim::search_best_contexts(call, stream, nullptr);
  const Tensor own = scratch(bytes, queries);
  gpu::maxsim::search_best_contexts(call, stream, own.mutable_data_ptr());
}

void maxsim_gradients(Tensor own, Tensor others, OptionalTensor own_scales, OptionalTensor other_scales,
                      OptionalTensor own_extents, OptionalTensor other_extents, OptionalTensor starts,
                      OptionalTensor holders, Tensor grads, Tensor indices, Tensor maxima, std::vector<Tensor> listed,
                      Tensor out, Tensor numbers) {
  const auto sizes = numbers_of<GradientNumbers>(numbers);
  gpu::maxsim::GradientCall call{};
  call.own = CROSSRET_SIDE_OF(own, own, own_extents, sizes);
  call.others = CROSSRET_SIDE_OF(others, others, other_extents, sizes);
  call.own.scales = scales_of(own_scales, call.own), call.others.scales = scales_of(other_scales, call.others);
  call.normalize = own_scales.has_value();
  call.of_contexts = sizes.of_contexts != 0, call.average = sizes.average != 0, call.add = sizes.add != 0;
  call.first_own = sizes.first_own, call.item_blocks = sizes.item_blocks;
  call.n_blocks = sizes.n_blocks, call.block_rows = sizes.block_rows;
  call.grad_context = sizes.grad_context, call.grad_query = sizes.grad_query;
  call.index_context = sizes.index_context;
  call.first_item = sizes.first_item, call.n_items = sizes.count;
  call.longest = sizes.longest, call.n_runs = sizes.n_runs;
  call.listed.context_column = static_cast<int>(sizes.context_column);
  STD_TORCH_CHECK(call.block_rows <= gpu::maxsim::kMostBlockRows, "a block has too many rows");
  STD_TORCH_CHECK(grads.scalar_type() == ScalarType::Float, "gradients of scores must be float32");
  call.grads = static_cast<const float*>(grads.const_data_ptr());
  call.n_grads = extent(grads);
  call.n_found = extent(indices);
  call.indices = ints(indices, 0, "indices");
  if (call.normalize) call.maxima = floats(maxima, call.n_found, "maxima");
  call.n_queries = sizes.index_context, call.query_slots = sizes.query_slots;
  STD_TORCH_CHECK((call.query_slots == 0) == (starts && holders), "tables tell where queries stand, or their number");
  if (starts) call.starts = ints(*starts, sizes.of_contexts != 0 ? sizes.others_items : sizes.own_items, "starts");
  if (holders) call.holders = ints(*holders, call.n_queries, "holders");
  if (!listed.empty()) {
    STD_TORCH_CHECK(listed.size() == 3, "listed pairs have their order and its begins");
    call.listed.count = listed[0].size(0);
    call.listed.pairs = longs(listed[0], 2 * call.listed.count, "pairs");
    call.listed.order = longs(listed[1], call.listed.count, "order");
    call.begins = longs(listed[2], call.own.n_items + 1, "begins");
  }
  STD_TORCH_CHECK(
      out.is_contiguous() && out.scalar_type() == own.scalar_type() && out.numel() == call.own.n_rows * call.own.dim,
      "gradients are laid out as rows are counted");
  call.out = out.mutable_data_ptr();
  const gpu::CurrentStream stream(own);
  const int64_t count = gpu::maxsim::gradient_scratch(call);
  if (count == 0) return gpu::maxsim::add_gradients(call, stream, nullptr);
  const Tensor runs = scratch(4 * count, own);
  gpu::maxsim::add_gradients(call, stream, static_cast<float*>(runs.mutable_data_ptr()));
}

// A line each: the name of a launch and those of its numbers in order, or of a constant and its values.
std::string maxsim_told() {
  std::string told = gpu::maxsim::constants();
  told += std::string("maxsim_norms") + NormNumbers::names + "\n";
  told += std::string("maxsim_search") + SearchNumbers::names + "\n";
  return told + "maxsim_gradients" + GradientNumbers::names + "\n";
}

}  // namespace

CROSSRET_ON_DEVICE(library) {
  library.impl("maxsim_norms_cuda", TORCH_BOX(&maxsim_norms));
  library.impl("maxsim_search_cuda", TORCH_BOX(&maxsim_search));
  library.impl("maxsim_gradients_cuda", TORCH_BOX(&maxsim_gradients));
}

CROSSRET_ANYWHERE(library) { library.impl("maxsim_told", TORCH_BOX(&maxsim_told)); }

}  // namespace crossret
