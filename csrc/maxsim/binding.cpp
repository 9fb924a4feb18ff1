#include "binding.h"

#include "maxsim/cpu.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

struct MaxSim {
  MaxSimOptions options;

  static MaxSim take(Arguments& arguments) {
    const Pooling pooling = pooling_of(arguments.take<int64_t>(), true);
    const auto slope = arguments.take<double>(), lambda_lse = arguments.take<double>();
    const auto top = arguments.take<int64_t>();
    constexpr bool modes[] = {false, true};
    const bool soft = chosen("context_pooling", modes, arguments.take<int64_t>());
    const auto temperature = static_cast<float>(arguments.take<double>());
    return {{pooling, static_cast<float>(slope), static_cast<float>(lambda_lse), top, soft ? temperature : 0.0f}};
  }

  MaxSimCall call(const Batch& batch) const {
    MaxSimCall call{};
    batch.lay_out(call);
    call.options = options;
    return call;
  }

  // Best contexts that the forward pass keeps of all pairs, up to 64 MiB: int32 (context items, queries of all items).
  // Where gradients need the maxima, too, they are found again.
  static constexpr bool saves = true;
  static bool keeps(const Batch& batch, const MaxSimCall& call) {
    constexpr int64_t most = 16 << 20;
    return batch.pairs() == nullptr && call.options.even() && call.queries.rows > 0 &&
           call.contexts.count <= most / call.queries.rows;
  }
  static Tensor keep(const Batch& batch, MaxSimCall& call) {
    if (!keeps(batch, call)) return empty<1>({0}, aoti_torch_dtype_float32());
    const Tensor kept = empty<2>({call.contexts.count, call.queries.rows}, aoti_torch_dtype_int32());
    call.kept = kept.mutable_data_ptr<int32_t>();
    return kept;
  }
  static void read(const Tensor& kept, const Batch& batch, MaxSimCall& call) {
    if (kept.numel() == 0) return;
    STD_TORCH_CHECK(keeps(batch, call) && kept.dim() == 2 && kept.size(0) == call.contexts.count &&
                        kept.size(1) == call.queries.rows && kept.is_cpu() && kept.is_contiguous() &&
                        kept.scalar_type() == torch::headeronly::ScalarType::Int,
                    "best contexts are not those of this batch");
    call.kept = static_cast<int32_t*>(kept.data_ptr());
  }

  static constexpr auto score = &score_maxsim;
  static constexpr auto differentiate = &differentiate_maxsim;
};

// Scores, and the best contexts in rows of `width` query places, by default as many as the longest item has.
void maxsim_argmax(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  Batch batch(arguments);
  const MaxSim operation = MaxSim::take(arguments);
  const auto width = arguments.take<std::optional<int64_t>>();
  batch.read(arguments);
  MaxSimCall call = operation.call(batch);
  const Tensor scores = batch.new_scores(), indices = batch.new_indices(width);
  call.scores = scores.mutable_data_ptr<float>();
  call.argmax = indices.mutable_data_ptr<int64_t>();
  call.argmax_row = indices.size(indices.dim() - 1);
  score_maxsim(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(scores);
  stack[1] = torch::stable::detail::from(indices);
}

// Scores in the call's direction and in the other.
template <bool listed>
void maxsim_both(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  Batch batch(arguments, listed);
  const MaxSim operation = MaxSim::take(arguments);
  batch.read(arguments);
  MaxSimCall call = operation.call(batch);
  const Tensor scores = batch.new_scores(), turned = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  call.turned_scores = turned.mutable_data_ptr<float>();
  score_maxsim_both(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(scores);
  stack[1] = torch::stable::detail::from(turned);
}

// Gradients of regions and words from those of both scores.
void maxsim_both_gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto grad_scores = arguments.take<Tensor>(), grad_turned = arguments.take<Tensor>();
  Batch batch(arguments);
  const MaxSim operation = MaxSim::take(arguments);
  const bool regions_need_grad = arguments.take<bool>(), words_need_grad = arguments.take<bool>();
  batch.read(arguments);
  const MaxSimCall call = operation.call(batch);
  differentiate(batch, regions_need_grad, words_need_grad, stack, [&](SideGradient& contexts, SideGradient& queries) {
    differentiate_maxsim_both(batch.kernels(), call, batch.pairs(), batch.gradients(grad_scores),
                              batch.gradients(grad_turned), contexts, queries);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"maxsim_scores", "maxsim_scores.plain"}) library.impl(name, &scores<MaxSim, false>);
  library.impl("maxsim_scores_listed", &scores<MaxSim, true>);
  for (const char* name : {"maxsim_scores_backward", "maxsim_scores_backward.plain"}) {
    library.impl(name, &gradients<MaxSim>);
  }
  library.impl("maxsim_argmax", &maxsim_argmax);
  for (const char* name : {"maxsim_both", "maxsim_both.plain"}) library.impl(name, &maxsim_both<false>);
  library.impl("maxsim_both_listed", &maxsim_both<true>);
  for (const char* name : {"maxsim_both_backward", "maxsim_both_backward.plain"}) {
    library.impl(name, &maxsim_both_gradients);
  }
}

}  // namespace crossret
