// The options of stacked cross attention, as operations take them.
#pragma once
#include "call.h"
#include "cross_attention/problem.h"

namespace crossret {

inline Pooling pooling_of(int64_t code) {
  constexpr Pooling options[] = {Pooling::lse, Pooling::avg, Pooling::sum, Pooling::max};
  return chosen("pooling", options, code);
}

// raw_feature_norm, clip_slope, lambda_softmax, pooling and lambda_lse.
inline CrossAttentionOptions take_attention_options(Arguments& arguments) {
  constexpr struct {
    Norm norm;
    bool clips;
  } modes[] = {{Norm::softmax, false}, {Norm::l2, false},  {Norm::l2, true},   {Norm::l1, false},
               {Norm::l1, true},       {Norm::none, true}, {Norm::none, false}};
  const auto mode = chosen("raw_feature_norm", modes, arguments.take<int64_t>());
  const auto slope = static_cast<float>(arguments.take<double>());
  const auto lambda_softmax = static_cast<float>(arguments.take<double>());
  const Pooling pooling = pooling_of(arguments.take<int64_t>());
  return {mode.norm, mode.clips ? slope : 1.0f, lambda_softmax, pooling, static_cast<float>(arguments.take<double>())};
}

}  // namespace crossret
