// The ranking losses' operations as torch calls them.
#pragma once
#include "call.h"
#include "ranking_loss/tensors.h"

namespace crossret {

inline RankingLossArguments take_ranking_loss(Arguments& arguments) {
  constexpr Negatives negatives[] = {Negatives::hardest, Negatives::sum, Negatives::softmax};
  // In the schema's order, as those of an initialiser are.
  RankingLossArguments given{arguments.take<torch::stable::Tensor>(),
                             arguments.take<Ids>(),
                             arguments.take<Ids>(),
                             arguments.take<double>(),
                             chosen("negatives", negatives, arguments.take<int64_t>()),
                             arguments.take<double>(),
                             reduction_of(arguments.take<int64_t>()),
                             arguments.take<int64_t>()};
  arguments.finish();
  return given;
}

inline void triplet_loss(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto [loss, statistics] = ranking_loss(take_ranking_loss(arguments));
  stack[0] = torch::stable::detail::from(loss);
  stack[1] = torch::stable::detail::from(statistics);
}

inline void triplet_loss_gradient(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto grad_loss = arguments.take<torch::stable::Tensor>(), statistics = arguments.take<torch::stable::Tensor>();
  stack[0] = torch::stable::detail::from(ranking_loss_gradient(grad_loss, statistics, take_ranking_loss(arguments)));
}

}  // namespace crossret
