// The attention of listed pairs as torch calls it: scores, attended vectors, weights and relevances.
#include <algorithm>
#include <array>
#include <cstring>

#include "binding.h"
#include "cross_attention/cpu.h"
#include "cross_attention/options.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

// Arguments of both operations, in the order of their schemas.
class Attending {
 public:
  explicit Attending(Arguments& arguments)
      : batch(arguments),
        options_(take_attention_options(arguments)),
        query_places_(arguments.take<int64_t>()),
        context_places_(arguments.take<int64_t>()),
        attended_(arguments.take<bool>()) {}

  // Behind batch.read().
  CrossAttentionCall call() const {
    STD_TORCH_CHECK(batch.pairs() != nullptr, "pairs are needed");
    CrossAttentionCall call{};
    batch.lay_out(call);
    call.options = options_;
    const auto fits = [](const Ragged& side, int64_t places) {
      return places >= (side.view().masked ? side.width() : side.view().longest);
    };
    STD_TORCH_CHECK(fits(batch.contexts(), context_places_) && fits(batch.queries(), query_places_),
                    "there are fewer places than an item has rows");
    return call;
  }

  // Shapes of attended vectors, weights and relevances.
  std::array<std::array<int64_t, 3>, 2> shapes() const {
    const int64_t count = batch.pairs()->count, dim = attended_ ? batch.regions().view().dim : 0;
    return {{{count, query_places_, dim}, {count, query_places_, context_places_}}};
  }

  template <class Float>
  AttentionOf<Float> results(Float* attended, Float* weights, Float* relevances) const {
    return {query_places_, context_places_, attended_ ? attended : nullptr, weights, relevances};
  }

  Batch batch;

 private:
  CrossAttentionOptions options_;
  int64_t query_places_, context_places_;
  bool attended_;
};

void attend(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  Attending attending(arguments);
  attending.batch.read(arguments);
  const Batch& batch = attending.batch;
  CrossAttentionCall call = attending.call();
  const int32_t dtype = aoti_torch_dtype_float32();
  const auto [of_attended, of_weights] = attending.shapes();
  const Tensor scores = batch.new_scores(), attended = empty<3>(of_attended, dtype);
  const Tensor weights = empty<3>(of_weights, dtype), relevances = empty<2>({of_weights[0], of_weights[1]}, dtype);
  for (const Tensor* made : {&attended, &weights, &relevances}) {
    const int64_t bytes = made->numel() * static_cast<int64_t>(sizeof(float));
    in_large_pages(made->mutable_data_ptr(), bytes);
    if (batch.has_empty() && bytes > 0) std::memset(made->mutable_data_ptr(), 0, bytes);
  }
  call.scores = scores.mutable_data_ptr<float>();
  call.made = attending.results(attended.mutable_data_ptr<float>(), weights.mutable_data_ptr<float>(),
                                relevances.mutable_data_ptr<float>());
  score_cross_attention(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  int made = 0;
  for (const Tensor& result : {scores, attended, weights, relevances}) {
    stack[made++] = torch::stable::detail::from(result);
  }
}

// A gradient of its results' shape, contiguous.
Tensor given(const Tensor& grad, std::initializer_list<int64_t> shape) {
  STD_TORCH_CHECK(grad.is_cpu() && grad.scalar_type() == torch::headeronly::ScalarType::Float &&
                      grad.dim() == static_cast<int64_t>(shape.size()) &&
                      std::equal(shape.begin(), shape.end(), grad.sizes().begin()),
                  "gradients must be float32 of the results' shapes, on the CPU");
  return in_order(grad);
}

void attend_gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto grad_scores = arguments.take<Tensor>(), grad_attended = arguments.take<Tensor>();
  const auto grad_weights = arguments.take<Tensor>(), grad_relevances = arguments.take<Tensor>();
  Attending attending(arguments);
  const bool regions_need_grad = arguments.take<bool>(), words_need_grad = arguments.take<bool>();
  attending.batch.read(arguments);
  const Batch& batch = attending.batch;
  CrossAttentionCall call = attending.call();
  const auto [of_attended, of_weights] = attending.shapes();
  const Tensor attended = given(grad_attended, {of_attended[0], of_attended[1], of_attended[2]});
  const Tensor weights = given(grad_weights, {of_weights[0], of_weights[1], of_weights[2]});
  const Tensor relevances = given(grad_relevances, {of_weights[0], of_weights[1]});
  call.given = attending.results(attended.const_data_ptr<float>(), weights.const_data_ptr<float>(),
                                 relevances.const_data_ptr<float>());
  differentiate(batch, regions_need_grad, words_need_grad, stack, [&](SideGradient& contexts, SideGradient& queries) {
    differentiate_cross_attention(batch.kernels(), call, batch.pairs(), batch.gradients(grad_scores), contexts,
                                  queries);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"scan_attend", "scan_attend.plain"}) library.impl(name, &attend);
  for (const char* name : {"scan_attend_backward", "scan_attend_backward.plain"}) {
    library.impl(name, &attend_gradients);
  }
}

}  // namespace crossret
