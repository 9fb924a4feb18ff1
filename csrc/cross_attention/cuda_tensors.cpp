// Stacked cross attention on a GPU over tensors. Shapes, dtypes and devices are checked here; tables are the planner's,
// which Python makes of checked lengths.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "call.h"
#include "cross_attention/gpu.h"
#include "cross_attention/options.h"
#include "cuda/numbers.h"
#include "cuda/torch_stream.h"
#include "tensor.h"

namespace crossret {

namespace {

using OptionalTensor = std::optional<torch::stable::Tensor>;

// clang-format off
// Fields of `gpu::Part`.
#define CROSSRET_PART_NUMBERS(X) X(first) X(items) X(rows) X(longest) X(slots) X(full)
// Whether rows are packed as float32 whatever the features' dtype, and fields of `gpu::AttentionChoices`.
#define CROSSRET_CHOICE_NUMBERS(X) \
  X(wide) X(warpgroups) X(empty_score) X(normalize) X(raw_feature_norm) X(clip_slope) X(lambda_softmax) X(pooling) \
  X(lambda_lse)
// clang-format on

CROSSRET_NUMBERS(PartNumbers, CROSSRET_PART_NUMBERS);
CROSSRET_REALS(ChoiceNumbers, CROSSRET_CHOICE_NUMBERS);

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
T* table(const Tensor& tensor, const Place& place, ScalarType type, int64_t size, const char* name) {
  STD_TORCH_CHECK(
      place.holds(tensor) && tensor.scalar_type() == type && tensor.is_contiguous() && tensor.numel() == size, name,
      " must be a contiguous table of ", size, " numbers beside the features");
  return static_cast<T*>(tensor.mutable_data_ptr());
}

gpu::Part part_of(const Tensor& numbers) {
  const auto given = numbers_of<PartNumbers>(numbers);
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const gpu::Part part{narrow(given.first),   narrow(given.items), narrow(given.rows),
                       narrow(given.longest), narrow(given.slots), given.full != 0};
  STD_TORCH_CHECK(part.first >= 0 && part.n_items > 0 && part.n_rows >= 0 && part.longest >= 0, "a part has items");
  STD_TORCH_CHECK(part.slots == 0 || (part.slots == part.longest && given.rows == given.items * given.slots),
                  "items have slots for the longest");
  return part;
}

struct Choices : gpu::AttentionChoices {
  bool wide;
};

Choices choices_of(const Tensor& numbers) {
  const auto given = numbers_of<ChoiceNumbers>(numbers);
  Choices made{};
  made.options = attention_options(static_cast<int64_t>(given.raw_feature_norm), given.clip_slope, given.lambda_softmax,
                                   static_cast<int64_t>(given.pooling), given.lambda_lse);
  made.normalize = given.normalize != 0, made.wide = given.wide != 0, made.warpgroups = given.warpgroups != 0;
  made.empty_score = static_cast<float>(given.empty_score);
  return made;
}

// Features, or their gradients, of a part.
gpu::RaggedPart ragged_part(const Tensor& features, const OptionalTensor& extents, const OptionalTensor& places,
                            const OptionalTensor& starts, const gpu::Part& part) {
  const int64_t dims = features.dim();
  STD_TORCH_CHECK(gpu::on_device(features) && (dims == 2 || dims == 3), "features must be 2-D or 3-D, on ",
                  gpu::kDevices);
  STD_TORCH_CHECK(features.stride(dims - 1) == 1 || features.size(dims - 1) <= 1,
                  "rows of features must be contiguous");
  STD_TORCH_CHECK(dims == 3 || extents, "packed features come with offsets");
  const Place place = Place::of(features);
  gpu::RaggedPart side{};
  side.part = part, side.dtype = feature_dtype(features, "features");
  side.dim = static_cast<int>(features.size(dims - 1)), side.packed = dims == 2;
  side.row_stride = features.stride(dims - 2), side.item_stride = side.packed ? 0 : features.stride(0);
  const int64_t rows = features.size(dims - 2), blocks = side.packed ? 1 : features.size(0);
  side.elements =
      rows > 0 && blocks > 0 ? side.dim + (rows - 1) * side.row_stride + (blocks - 1) * side.item_stride : 0;
  side.all_items = side.packed ? extents->numel() - 1 : blocks, side.most = side.packed ? part.longest : rows;
  STD_TORCH_CHECK(part.first + int64_t{part.n_items} <= side.all_items, "a part has items of its side");
  if (extents) {
    side.extents = table<int64_t>(*extents, place, ScalarType::Long, side.all_items + (side.packed ? 1 : 0), "extents");
  }
  if (places) side.places = table<int64_t>(*places, place, ScalarType::Long, side.all_items * side.most, "places");
  STD_TORCH_CHECK(starts.has_value() == (part.slots == 0), "items have slots, or a table says where they begin");
  if (starts) side.starts = table<int32_t>(*starts, place, ScalarType::Int, side.all_items + 1, "starts");
  return side;
}

int32_t code_of(Dtype dtype) {
  return dtype == Dtype::float32    ? aoti_torch_dtype_float32()
         : dtype == Dtype::bfloat16 ? aoti_torch_dtype_bfloat16()
                                    : aoti_torch_dtype_float16();
}

// One allocation handed out in pieces aligned to 128 bytes; without memory it counts them.
class Room {
 public:
  explicit Room(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T = void>
  T* bytes(int64_t count) {
    char* const at = memory_ != nullptr ? memory_ + used_ : nullptr;
    used_ += (count + 127) / 128 * 128;
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  char* memory_;
  int64_t used_ = 0;
};

// A packed part is one tensor, rows followed by the other arrays: an allocation takes the host as long as a launch.
gpu::PackedPart packed_in(Room& room, const gpu::Part& part, Dtype dtype, int dim, const Choices& choices,
                          bool contexts) {
  gpu::PackedPart packed{};
  packed.part = part, packed.dtype = dtype, packed.dim = dim;
  packed.rows = room.bytes(gpu::in_eights(part.n_rows) * dim * element_bytes(dtype));
  packed.norms = room.bytes<float>(4 * int64_t{part.n_rows});
  packed.powers = room.bytes<float>(choices.normalize ? 4 * int64_t{part.n_rows} : 0);
  packed.items = room.bytes(part.n_items * gpu::packed_item_bytes());
  if (contexts) {
    packed.grams = room.bytes(gpu::gram_bytes(part, dtype));
    packed.flags = room.bytes<int32_t>(4 * int64_t{part.n_items});
  }
  return packed;
}

gpu::PackedPart packed_part(const Tensor& packed, const gpu::Part& part, const Choices& choices, bool contexts) {
  STD_TORCH_CHECK(gpu::on_device(packed) && packed.dim() == 2 && packed.is_contiguous(), "packed rows must be on ",
                  gpu::kDevices);
  const Dtype dtype = feature_dtype(packed, "packed rows");
  Room room(packed.mutable_data_ptr());
  const gpu::PackedPart made = packed_in(room, part, dtype, static_cast<int>(packed.size(1)), choices, contexts);
  STD_TORCH_CHECK(room.used() <= packed.numel() * element_bytes(dtype), "packed rows come with what is told of them");
  return made;
}

gpu::AttentionCall call_of(const Tensor& scores, const Tensor& contexts, const Tensor& queries,
                           const Tensor& of_contexts, const Tensor& of_queries, const OptionalTensor& context_jobs,
                           const OptionalTensor& query_jobs, const Choices& choices) {
  const Place place = Place::of(scores);
  STD_TORCH_CHECK(gpu::on_device(scores) && scores.scalar_type() == ScalarType::Float && scores.dim() <= 2,
                  "scores must be float32 on ", gpu::kDevices);
  STD_TORCH_CHECK(place.holds(contexts) && place.holds(queries) && contexts.size(1) == queries.size(1) &&
                      contexts.scalar_type() == queries.scalar_type(),
                  "both sides must have rows of one length and dtype beside the scores");
  gpu::AttentionCall call{};
  call.choices = choices;
  call.contexts = packed_part(contexts, part_of(of_contexts), choices, true);
  call.queries = packed_part(queries, part_of(of_queries), choices, false);
  const auto jobs_of = [&](const OptionalTensor& jobs, const gpu::PackedPart& side) {
    STD_TORCH_CHECK(jobs.has_value() == (side.part.slots == 0), "items have slots, or jobs have a table");
    if (!jobs) return gpu::JobTable{};
    return gpu::JobTable{table<int32_t>(*jobs, place, ScalarType::Int, jobs->numel(), "jobs"),
                         static_cast<int>(jobs->numel() - 1)};
  };
  call.context_jobs = jobs_of(context_jobs, call.contexts), call.query_jobs = jobs_of(query_jobs, call.queries);
  if (scores.dim() == 2) {
    STD_TORCH_CHECK(scores.size(0) >= call.contexts.part.n_items && scores.size(1) >= call.queries.part.n_items,
                    "all pairs have scores");
    call.context_stride = scores.stride(0), call.query_stride = scores.stride(1);
  }
  return call;
}

// Elements of the scores of all pairs, up to the last one.
int64_t extent(const gpu::AttentionCall& call) {
  return 1 + (call.contexts.part.n_items - 1) * call.context_stride +
         (call.queries.part.n_items - 1) * call.query_stride;
}

// Lines for Python: names of numbers in order, and constants with their values.
std::string attention_told() {
  return gpu::attention_constants() + "attention_part" + PartNumbers::names + "\nattention_choices" +
         ChoiceNumbers::names + "\n";
}

// `gpu::job_sizes` as a list; `packed` numbers the dtypes.
std::vector<int64_t> attention_job_sizes(int64_t packed, bool softmax, int64_t longest, bool gradients,
                                         int64_t most_shared) {
  constexpr Dtype dtypes[] = {Dtype::float32, Dtype::bfloat16, Dtype::float16};
  const gpu::JobSizes sizes = gpu::job_sizes(chosen("packed", dtypes, packed), softmax, static_cast<int>(longest),
                                             gradients, static_cast<int>(most_shared));
  return {sizes.query_rows, sizes.context_rows, sizes.most_queries, sizes.most_contexts};
}

int64_t most_attended_rows(bool gradients, int64_t most_shared) {
  return gpu::most_attended_rows(gradients, static_cast<int>(most_shared));
}

Tensor pack_side(Tensor features, OptionalTensor extents, OptionalTensor places, OptionalTensor starts, Tensor part,
                 Tensor choices, bool contexts) {
  const gpu::RaggedPart side = ragged_part(features, extents, places, starts, part_of(part));
  const Choices chosen = choices_of(choices);
  const Dtype dtype = chosen.wide ? Dtype::float32 : side.dtype;
  const int dim = gpu::packed_dim(side.dim, dtype);
  // Chunks of packed rows are counted in int.
  STD_TORCH_CHECK(gpu::in_eights(side.part.n_rows) * dim < int64_t{1} << 32, "a part has too many packed rows");
  Room counted(nullptr);
  packed_in(counted, side.part, dtype, dim, chosen, contexts);
  const int64_t row_bytes = dim * element_bytes(dtype);
  Tensor packed = empty<2>({(counted.used() + row_bytes - 1) / row_bytes, dim}, code_of(dtype), Place::of(features));
  const gpu::CurrentStream stream(features);
  gpu::pack(side, features.const_data_ptr(), chosen, packed_part(packed, side.part, chosen, contexts), stream);
  return packed;
}

void attend(Tensor scores, Tensor contexts, Tensor queries, Tensor of_contexts, Tensor of_queries,
            OptionalTensor context_jobs, OptionalTensor query_jobs, Tensor choices, OptionalTensor pairs,
            OptionalTensor order) {
  const gpu::AttentionCall call =
      call_of(scores, contexts, queries, of_contexts, of_queries, context_jobs, query_jobs, choices_of(choices));
  gpu::OrderedPairs listed{};
  if (pairs) {
    STD_TORCH_CHECK(order && scores.dim() == 1 && scores.is_contiguous(), "pairs come in an order, and have a score");
    const Place place = Place::of(scores);
    listed.count = scores.numel();
    listed.items = table<int64_t>(*pairs, place, ScalarType::Long, 2 * listed.count, "pairs");
    listed.order = table<int64_t>(*order, place, ScalarType::Long, listed.count, "their order");
  }
  const gpu::CurrentStream stream(scores);
  gpu::score_attention(call, listed, static_cast<float*>(scores.mutable_data_ptr()),
                       pairs ? listed.count : extent(call), stream);
}

std::tuple<Tensor, Tensor, Tensor> attention_gradients(Tensor grad_scores, Tensor contexts, Tensor queries,
                                                       Tensor of_contexts, Tensor of_queries,
                                                       OptionalTensor context_jobs, OptionalTensor query_jobs,
                                                       Tensor choices) {
  const gpu::AttentionCall call =
      call_of(grad_scores, contexts, queries, of_contexts, of_queries, context_jobs, query_jobs, choices_of(choices));
  STD_TORCH_CHECK(grad_scores.dim() == 2, "gradients are those of all pairs");
  const Place place = Place::of(grad_scores);
  const gpu::CurrentStream stream(grad_scores);
  const gpu::GradientParts parts = gpu::gradient_parts(call, stream);
  const gpu::Part &of_context = call.contexts.part, &of_query = call.queries.part;
  const int32_t float32 = aoti_torch_dtype_float32();
  const int64_t pitch = gpu::in_eights(of_context.n_rows);
  const int64_t of_gram = gpu::numbers_of_gram(of_context.longest);
  const Tensor of_similarities = empty<2>({of_query.n_rows, pitch}, code_of(call.queries.dtype), place);
  const Tensor own = empty<2>({parts.context_jobs, of_query.n_rows}, float32, place);
  const Tensor of_grams = empty<2>({parts.shares, of_context.n_items * of_gram}, float32, place);
  gpu::GradientsOfAttention made{};
  made.grad_scores = static_cast<const float*>(grad_scores.const_data_ptr()), made.n_scores = extent(call);
  made.of_similarities = of_similarities.mutable_data_ptr(), made.pitch = pitch;
  made.own = static_cast<float*>(own.mutable_data_ptr());
  made.of_grams = static_cast<float*>(of_grams.mutable_data_ptr()), made.shares = parts.shares;
  gpu::differentiate_attention(call, made, stream);
  return {of_similarities, own, of_grams};
}

void finish_gradients(Tensor sums, Tensor packed, Tensor out, OptionalTensor extents, OptionalTensor places,
                      OptionalTensor starts, Tensor part, Tensor choices, OptionalTensor own, OptionalTensor of_grams) {
  const gpu::RaggedPart side = ragged_part(out, extents, places, starts, part_of(part));
  const Choices chosen = choices_of(choices);
  const gpu::PackedPart rows = packed_part(packed, side.part, chosen, of_grams.has_value());
  const Place place = Place::of(sums);
  STD_TORCH_CHECK(gpu::on_device(sums) && place.holds(out) && place.holds(packed), "all tensors must be on one device");
  const int64_t n_rows = side.part.n_rows, of_gram = gpu::numbers_of_gram(side.part.longest);
  float* const summed = table<float>(sums, place, ScalarType::Float, n_rows * rows.dim, "sums");
  const auto shares = [&](const OptionalTensor& given, int64_t size, const char* name, int& count) {
    count = given ? static_cast<int>(given->size(0)) : 0;
    return given ? table<float>(*given, place, ScalarType::Float, count * size, name) : nullptr;
  };
  int own_parts = 0, n_shares = 0;
  const float* const of_rows = shares(own, n_rows, "own", own_parts);
  const float* const grams = shares(of_grams, side.part.n_items * of_gram, "of_grams", n_shares);
  STD_TORCH_CHECK(own_parts == 0 || n_shares == 0, "own is of queries, of_grams of contexts: a side has one of them");
  const gpu::CurrentStream stream(sums);
  gpu::finish_gradients(side, rows, chosen.normalize, summed, of_rows, own_parts, grams, n_shares,
                        out.mutable_data_ptr(), stream);
}

}  // namespace

CROSSRET_ON_DEVICE(library) {
  library.impl("pack_side_cuda", TORCH_BOX(&pack_side));
  library.impl("attend_cuda", TORCH_BOX(&attend));
  library.impl("attention_gradients_cuda", TORCH_BOX(&attention_gradients));
  library.impl("finish_gradients_cuda", TORCH_BOX(&finish_gradients));
}

CROSSRET_ANYWHERE(library) {
  library.impl("attention_told", TORCH_BOX(&attention_told));
  library.impl("attention_job_sizes", TORCH_BOX(&attention_job_sizes));
  library.impl("most_attended_rows", TORCH_BOX(&most_attended_rows));
}

}  // namespace crossret
