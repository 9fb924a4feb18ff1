#include "binding.h"

#include "cross_attention/cpu.h"
#include "cross_attention/options.h"

namespace crossret {

namespace {

// In one direction, or the mean of both.
template <bool both_ways>
struct CrossAttention {
  CrossAttentionOptions options;
  float turned_lambda_softmax;

  static CrossAttention take(Arguments& arguments) {
    const CrossAttentionOptions options = take_attention_options(arguments);
    return {options, both_ways ? static_cast<float>(arguments.take<double>()) : 0.0f};
  }

  CrossAttentionCall call(const Batch& batch) const {
    CrossAttentionCall call{};
    batch.lay_out(call);
    call.options = options;
    call.both_ways = both_ways;
    call.turned_lambda_softmax = turned_lambda_softmax;
    return call;
  }

  static constexpr bool saves = false;
  static constexpr auto score = &score_cross_attention;
  static constexpr auto differentiate = &differentiate_cross_attention;
};

using torch::stable::Tensor;

// Scores from kept factors, (contexts, longest, row stride) float32.
void factored_scores(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto factors = arguments.take<Tensor>();
  Batch batch(arguments);
  const auto operation = CrossAttention<false>::take(arguments);
  batch.read(arguments);
  CrossAttentionCall call = operation.call(batch);
  STD_TORCH_CHECK(factors.is_cpu() && factors.scalar_type() == torch::headeronly::ScalarType::Float &&
                      factors.is_contiguous() && factors.dim() == 3 && factors.size(0) == call.contexts.count &&
                      factors.size(1) >= call.contexts.longest && factors.size(2) >= factors.size(1),
                  "factors must be those of scan_factors of the attended side");
  call.kept_factors = factors.const_data_ptr<float>();
  call.kept_row = factors.size(2);
  call.kept_floats = factors.size(1) * factors.size(2);
  const Tensor scores = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  score_cross_attention(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(scores);
}

void factors(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  Ragged side(arguments, false, "features");
  const bool normalize = arguments.take<bool>();
  const int64_t longest = arguments.take<int64_t>();
  arguments.finish();
  side.read(true);
  STD_TORCH_CHECK(longest >= side.view().longest, "the longest item has more than ", longest, " rows");
  const Kernels& kernels = crossret::kernels(side.view().dtype, false);
  if (normalize) side.normalize(kernels);
  const int64_t row = gram_row(longest);
  const Tensor out = empty<3>({side.view().count, longest, row}, aoti_torch_dtype_float32());
  if (out.numel() > 0) keep_factors(kernels, side.view(), longest, row, out.mutable_data_ptr<float>());
  stack[0] = torch::stable::detail::from(out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"scan_scores", "scan_scores.plain"})
    library.impl(name, &scores<CrossAttention<false>, false>);
  library.impl("scan_scores_factored", &factored_scores);
  library.impl("scan_factors", &factors);
  library.impl("scan_scores_listed", &scores<CrossAttention<false>, true>);
  for (const char* name : {"scan_scores_backward", "scan_scores_backward.plain"}) {
    library.impl(name, &gradients<CrossAttention<false>>);
  }
  for (const char* name : {"scan_both", "scan_both.plain"}) library.impl(name, &scores<CrossAttention<true>, false>);
  library.impl("scan_both_listed", &scores<CrossAttention<true>, true>);
  for (const char* name : {"scan_both_backward", "scan_both_backward.plain"}) {
    library.impl(name, &gradients<CrossAttention<true>>);
  }
}

}  // namespace crossret
