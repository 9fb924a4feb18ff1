// Stacked cross attention on a GPU over tensors. Of what kernels rely on, shapes, dtypes and places are checked here;
// numbers in tables are the plan's, which Python makes of checked lengths.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "call.h"
#include "cross_attention/gpu.h"
#include "cross_attention/operations.h"
#include "cross_attention/options.h"
#include "cuda/torch_stream.h"
#include "tensor.h"

namespace crossret {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
T* table(const Tensor& tensor, const Place& place, ScalarType type, int64_t size, const char* name) {
  STD_TORCH_CHECK(
      place.holds(tensor) && tensor.scalar_type() == type && tensor.is_contiguous() && tensor.numel() == size, name,
      " must be a contiguous table of ", size, " numbers beside the features");
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// A side's part as operations have it: features, or their gradients, starts and, of a mask, places; the first item, how
// many, their rows and the longest.
struct GivenSide {
  std::vector<Tensor> tensors;
  gpu::SidePart part{};

  const Tensor& features() const { return tensors[0]; }
};

GivenSide take_side(Arguments& arguments) {
  GivenSide side{arguments.take<std::vector<Tensor>>()};
  const auto numbers = arguments.take<std::vector<int64_t>>();
  STD_TORCH_CHECK((side.tensors.size() == 2 || side.tensors.size() == 3) && numbers.size() == 4,
                  "sides come as plans have them");
  const Tensor &features = side.features(), &starts = side.tensors[1];
  const int64_t dims = features.dim();
  STD_TORCH_CHECK(gpu::on_device(features) && (dims == 2 || dims == 3), "features must be 2-D or 3-D, on ",
                  gpu::kDevices);
  STD_TORCH_CHECK(features.stride(dims - 1) == 1 || features.size(dims - 1) <= 1,
                  "rows of features must be contiguous");
  const Place place = Place::of(features);
  gpu::SidePart& part = side.part;
  part.dtype = feature_dtype(features, "features");
  part.dim = static_cast<int>(features.size(dims - 1));
  part.packed = dims == 2;
  part.row_stride = features.stride(dims - 2), part.item_stride = part.packed ? 0 : features.stride(0);
  const int64_t rows = features.size(dims - 2), items = dims == 3 ? features.size(0) : 1;
  part.elements = rows > 0 && items > 0 ? part.dim + (rows - 1) * part.row_stride + (items - 1) * part.item_stride : 0;
  part.all_items = starts.numel() - 1;
  part.starts = table<int32_t>(starts, place, ScalarType::Int, starts.numel(), "starts");
  if (side.tensors.size() == 3) {
    part.all_rows = side.tensors[2].numel();
    part.places = table<int32_t>(side.tensors[2], place, ScalarType::Int, part.all_rows, "places");
  }
  part.first = static_cast<int>(numbers[0]), part.n_items = static_cast<int>(numbers[1]);
  part.n_rows = static_cast<int>(numbers[2]), part.longest = static_cast<int>(numbers[3]);
  STD_TORCH_CHECK(part.first >= 0 && part.n_items > 0 && part.first + part.n_items <= part.all_items,
                  "a part has items of its side");
  return side;
}

int32_t code_of(Dtype dtype) {
  return dtype == Dtype::float32    ? aoti_torch_dtype_float32()
         : dtype == Dtype::bfloat16 ? aoti_torch_dtype_bfloat16()
                                    : aoti_torch_dtype_float16();
}

// Packed rows, their norms, the powers of two that rows were multiplied by, and items as int32 pairs.
std::vector<Tensor> new_packed(const gpu::SidePart& side, bool normalize, Dtype dtype, const Place& place) {
  const int32_t float32 = aoti_torch_dtype_float32();
  return {empty<2>({side.n_rows, gpu::packed_dim(side.dim, dtype)}, code_of(dtype), place),
          empty<1>({side.n_rows}, float32, place), empty<1>({normalize ? side.n_rows : 0}, float32, place),
          empty<2>({side.n_items, 2}, aoti_torch_dtype_int32(), place)};
}

gpu::PackedPart packed_part(const std::vector<Tensor>& packed, int64_t longest) {
  STD_TORCH_CHECK(packed.size() == 4 && packed[0].dim() == 2 && packed[3].dim() == 2, "packed rows come with tables");
  const Place place = Place::of(packed[0]);
  gpu::PackedPart part{};
  part.rows = packed[0].mutable_data_ptr(), part.dtype = feature_dtype(packed[0], "packed rows");
  part.n_rows = static_cast<int>(packed[0].size(0)), part.dim = static_cast<int>(packed[0].size(1));
  part.n_items = static_cast<int>(packed[3].size(0)), part.longest = static_cast<int>(longest);
  STD_TORCH_CHECK(packed[0].numel() < int64_t{1} << 32,
                  "a part has too many packed rows");  // chunks are counted in int
  part.norms = table<float>(packed[1], place, ScalarType::Float, part.n_rows, "norms");
  part.powers = table<float>(packed[2], place, ScalarType::Float, packed[2].numel(), "powers");
  part.items = table<int32_t>(packed[3], place, ScalarType::Int, 2 * int64_t{part.n_items}, "items");
  return part;
}

std::vector<Tensor> pack(const GivenSide& side, bool normalize, bool wide, const gpu::Stream& stream) {
  const Dtype dtype = wide ? Dtype::float32 : side.part.dtype;
  std::vector<Tensor> packed = new_packed(side.part, normalize, dtype, Place::of(side.features()));
  gpu::pack(side.part, side.features().const_data_ptr(), normalize, packed_part(packed, side.part.longest), stream);
  return packed;
}

// Parts of one tensor, each from a multiple of 128 bytes on; without any it counts what they take.
class Room {
 public:
  explicit Room(void* memory = nullptr) : memory_(static_cast<char*>(memory)) {}

  void* bytes(int64_t count) {
    void* const at = memory_ != nullptr ? memory_ + used_ : nullptr;
    used_ += (count + 127) / 128 * 128;
    return at;
  }
  float* floats(int64_t count) { return static_cast<float*>(bytes(4 * count)); }
  int64_t used() const { return used_; }

 private:
  char* memory_;
  int64_t used_ = 0;
};

gpu::PackedPart packed_in(Room& room, const gpu::SidePart& side, bool normalize) {
  gpu::PackedPart part{};
  part.dtype = side.dtype, part.dim = gpu::packed_dim(side.dim, side.dtype);
  part.n_items = side.n_items, part.n_rows = side.n_rows, part.longest = side.longest;
  part.rows = room.bytes(int64_t{side.n_rows} * part.dim * (side.dtype == Dtype::float32 ? 4 : 2));
  part.norms = room.floats(side.n_rows), part.powers = room.floats(normalize ? side.n_rows : 0);
  part.items = room.bytes(side.n_items * gpu::packed_item_bytes());
  return part;
}

// Jobs, Gram matrices and options, which the passes take alike.
struct Shared {
  Tensor context_jobs, query_jobs, gram_starts;
  gpu::AttentionCall call{};

  explicit Shared(Arguments& arguments)
      : context_jobs(arguments.take<Tensor>()),
        query_jobs(arguments.take<Tensor>()),
        gram_starts(arguments.take<Tensor>()) {
    call.n_fragments = arguments.take<int64_t>();
    call.jobs.most_columns = static_cast<int>(arguments.take<int64_t>());
    call.jobs.most_queries = static_cast<int>(arguments.take<int64_t>());
    call.context_stride = arguments.take<int64_t>(), call.query_stride = arguments.take<int64_t>();
    call.tfloat32 = arguments.take<bool>();
    call.empty_score = static_cast<float>(arguments.take<double>());
    call.normalize = arguments.take<bool>();
    call.options = take_attention_options(arguments);
  }

  void connect(const gpu::PackedPart& contexts, const gpu::PackedPart& queries, const Place& place) {
    STD_TORCH_CHECK(contexts.dim == queries.dim && contexts.dtype == queries.dtype,
                    "both sides must have rows of one length and dtype");
    call.contexts = contexts, call.queries = queries;
    const auto jobs_of = [&](const Tensor& jobs, int& count) {
      count = static_cast<int>(jobs.numel() - 1);
      return table<int32_t>(jobs, place, ScalarType::Int, jobs.numel(), "jobs");
    };
    call.jobs.contexts = jobs_of(context_jobs, call.jobs.n_contexts);
    call.jobs.queries = jobs_of(query_jobs, call.jobs.n_queries);
    call.gram_starts = table<int32_t>(gram_starts, place, ScalarType::Int, contexts.n_items, "gram_starts");
  }
};

Tensor scratch_for(const gpu::AttentionCall& call, const Place& place) {
  return empty<1>({(gpu::attention_scratch(call) + 3) / 4}, aoti_torch_dtype_float32(), place);
}

}  // namespace

std::string attention_told() { return gpu::attention_constants(); }

// (of queries, of contexts); asked ahead of any tensor of a call.
void attention_job_rows(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  constexpr Dtype dtypes[] = {Dtype::float32, Dtype::bfloat16, Dtype::float16};
  const Dtype packed = chosen("packed", dtypes, arguments.take<int64_t>());
  const auto tfloat32 = arguments.take<bool>(), softmax = arguments.take<bool>();
  const auto longest = static_cast<int>(arguments.take<int64_t>());
  const auto most_queries = static_cast<int>(arguments.take<int64_t>());
  const auto gradients = arguments.take<bool>();
  const auto most_shared = static_cast<int>(arguments.take<int64_t>());
  arguments.finish();
  const gpu::JobRows rows = gpu::job_rows(packed, tfloat32, softmax, longest, most_queries, gradients, most_shared);
  stack[0] = torch::stable::detail::from(std::vector<int64_t>{rows.queries, rows.contexts});
}

void attend(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto scores = arguments.take<Tensor>();
  const GivenSide contexts = take_side(arguments), queries = take_side(arguments);
  Shared shared(arguments);
  const auto listed = arguments.take<std::vector<Tensor>>();
  gpu::PairList pairs{};
  arguments.finish();
  const Place place = Place::of(scores);
  STD_TORCH_CHECK(
      place.holds(contexts.features()) && place.holds(queries.features()) && scores.scalar_type() == ScalarType::Float,
      "scores must be float32 beside the features");
  if (!listed.empty()) {
    pairs.count = listed[0].size(0);
    pairs.items = table<int64_t>(listed[0], place, ScalarType::Long, 2 * pairs.count, "pairs");
    pairs.order = table<int64_t>(listed[1], place, ScalarType::Long, pairs.count, "their order");
  }
  const gpu::CurrentStream stream(scores);
  const bool normalize = shared.call.normalize;
  // All that the call needs besides its result, at once: allocating takes the host as long as a launch.
  void* scratch = nullptr;
  const auto lay_out = [&](Room& room) {
    const gpu::PackedPart of_contexts = packed_in(room, contexts.part, normalize);
    shared.connect(of_contexts, packed_in(room, queries.part, normalize), place);
    scratch = room.bytes(gpu::attention_scratch(shared.call));
  };
  Room counted;
  lay_out(counted);
  const Tensor memory = empty<1>({counted.used() / 4}, aoti_torch_dtype_float32(), place);
  Room room(memory.mutable_data_ptr());
  lay_out(room);
  gpu::pack(contexts.part, contexts.features().const_data_ptr(), normalize, shared.call.contexts, stream);
  gpu::pack(queries.part, queries.features().const_data_ptr(), normalize, shared.call.queries, stream);
  const int64_t n_scores = listed.empty() ? 1 + (contexts.part.n_items - 1) * shared.call.context_stride +
                                                (queries.part.n_items - 1) * shared.call.query_stride
                                          : pairs.count;
  gpu::score_attention(shared.call, pairs, scores.mutable_data_ptr<float>(), n_scores, stream, scratch);
}

void pack_rows(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const GivenSide side = take_side(arguments);
  const auto normalize = arguments.take<bool>(), wide = arguments.take<bool>();
  arguments.finish();
  const gpu::CurrentStream stream(side.features());
  stack[0] = torch::stable::detail::from(pack(side, normalize, wide, stream));
}

void attention_gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto grad_scores = arguments.take<Tensor>();
  const auto contexts = arguments.take<std::vector<Tensor>>();
  const auto longest_context = arguments.take<int64_t>();
  const auto queries = arguments.take<std::vector<Tensor>>();
  const auto longest_query = arguments.take<int64_t>();
  Shared shared(arguments);
  const auto gram_numbers = arguments.take<Tensor>();
  gpu::GradientsOfAttention made{};
  made.numbers = arguments.take<int64_t>();
  arguments.finish();
  const Place place = Place::of(grad_scores);
  STD_TORCH_CHECK(gpu::on_device(grad_scores) && grad_scores.scalar_type() == ScalarType::Float,
                  "gradients of scores must be float32 on ", gpu::kDevices);
  STD_TORCH_CHECK(!contexts.empty() && place.holds(contexts[0]), "packed rows must be beside the scores' gradients");
  const gpu::CurrentStream stream(grad_scores);
  shared.connect(packed_part(contexts, longest_context), packed_part(queries, longest_query), place);
  const gpu::AttentionCall& call = shared.call;
  made.grad_scores = grad_scores.const_data_ptr<float>();
  made.n_scores =
      1 + (call.contexts.n_items - 1) * call.context_stride + (call.queries.n_items - 1) * call.query_stride;
  made.gram_numbers = table<int32_t>(gram_numbers, place, ScalarType::Int, call.contexts.n_items, "gram_numbers");
  made.shares = gpu::shares_of(call.jobs, stream);
  made.pitch = (call.contexts.n_rows + 7) / 8 * 8;
  const int32_t float32 = aoti_torch_dtype_float32();
  const Tensor of_similarities = empty<2>({call.queries.n_rows, made.pitch}, code_of(call.queries.dtype), place);
  const Tensor own = empty<2>({call.jobs.n_contexts, call.queries.n_rows}, float32, place);
  const Tensor of_grams = empty<2>({made.shares, made.numbers}, float32, place);
  made.of_similarities = of_similarities.mutable_data_ptr();
  made.own = own.mutable_data_ptr<float>(), made.of_grams = of_grams.mutable_data_ptr<float>();
  const Tensor scratch = scratch_for(call, place);
  gpu::differentiate_attention(call, made, stream, scratch.mutable_data_ptr());
  stack[0] = torch::stable::detail::from(std::vector<Tensor>{of_similarities, own, of_grams});
}

void finish_gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto sums = arguments.take<Tensor>();
  const GivenSide out = take_side(arguments);
  const auto packed = arguments.take<std::vector<Tensor>>();
  const auto normalize = arguments.take<bool>();
  const auto own = arguments.take<std::optional<Tensor>>();
  const auto of_grams = arguments.take<std::optional<Tensor>>();
  const auto gram_numbers = arguments.take<std::optional<Tensor>>();
  arguments.finish();
  const Place place = Place::of(sums);
  const gpu::PackedPart part = packed_part(packed, out.part.longest);
  STD_TORCH_CHECK(place.holds(out.features()) && place.holds(packed[0]), "all tensors must be on one device");
  float* const summed = table<float>(sums, place, ScalarType::Float, int64_t{part.n_rows} * part.dim, "sums");
  gpu::GradientsOfAttention grams{};
  if (of_grams) {
    grams.shares = static_cast<int>(of_grams->size(0)), grams.numbers = of_grams->size(1);
    grams.of_grams = table<float>(*of_grams, place, ScalarType::Float, grams.shares * grams.numbers, "of_grams");
    grams.gram_numbers = table<int32_t>(*gram_numbers, place, ScalarType::Int, part.n_items, "gram_numbers");
  }
  const int parts = own ? static_cast<int>(own->size(0)) : 0;
  const float* const of_rows =
      own ? table<float>(*own, place, ScalarType::Float, int64_t{parts} * part.n_rows, "own") : nullptr;
  const gpu::CurrentStream stream(sums);
  gpu::finish_gradients(out.part, part, normalize, summed, of_rows, parts, of_grams ? &grams : nullptr,
                        out.features().mutable_data_ptr(), stream);
}

}  // namespace crossret
