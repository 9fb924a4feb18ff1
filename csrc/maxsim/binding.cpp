#include "binding.h"

#include "maxsim/cpu.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

struct MaxSim {
  int64_t pooling;

  static MaxSim take(Arguments& arguments) { return {arguments.take<int64_t>()}; }

  MaxSimCall call(const CheckedBatch& batch) const {
    MaxSimCall call{};
    batch.lay_out(call);
    call.pooling = pooling_of(pooling);
    return call;
  }

  static constexpr auto score = &score_maxsim;
  static constexpr auto differentiate = &differentiate_maxsim;
};

// Rows of `width` queries, or of as many as the longest item has where that is not given.
void maxsim_argmax(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  BatchArguments given = take_batch(arguments);
  const auto width = arguments.take<std::optional<int64_t>>();
  arguments.finish();
  const CheckedBatch batch(std::move(given));
  MaxSimCall call{};
  batch.lay_out(call);
  call.pooling = Pooling::sum;
  const Tensor indices = batch.new_indices(width);
  call.argmax = indices.mutable_data_ptr<int64_t>();
  call.argmax_row = indices.size(indices.dim() - 1);
  score_maxsim(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(indices);
}

// Scores as they are asked for, and with the directions exchanged.
void maxsim_both(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  BatchArguments given = take_batch(arguments);
  const MaxSim operation = MaxSim::take(arguments);
  arguments.finish();
  const CheckedBatch batch(std::move(given));
  MaxSimCall call = operation.call(batch);
  const Tensor scores = batch.new_scores(), turned = batch.new_scores();
  call.scores = scores.mutable_data_ptr<float>();
  call.turned_scores = turned.mutable_data_ptr<float>();
  score_maxsim_both(batch.kernels(), call, batch.pairs(), batch.context_stride(), batch.query_stride());
  stack[0] = torch::stable::detail::from(scores);
  stack[1] = torch::stable::detail::from(turned);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"maxsim_scores", "maxsim_scores.plain"}) library.impl(name, &scores<MaxSim, false>);
  library.impl("maxsim_scores_listed", &scores<MaxSim, true>);
  for (const char* name : {"maxsim_scores_backward", "maxsim_scores_backward.plain"}) {
    library.impl(name, &gradients<MaxSim>);
  }
  library.impl("maxsim_argmax", &maxsim_argmax);
  library.impl("maxsim_both", &maxsim_both);
}

}  // namespace crossret
