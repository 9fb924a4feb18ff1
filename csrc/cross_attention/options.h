// The options of stacked cross attention, as operations take them.
#pragma once
#include <optional>

#include "call.h"
#include "cross_attention/problem.h"

namespace crossret {

inline CrossAttentionOptions attention_options(int64_t raw_feature_norm, double clip_slope, double lambda_softmax,
                                               int64_t pooling, double lambda_lse) {
  constexpr struct {
    Norm norm;
    bool clips;
  } modes[] = {{Norm::softmax, false}, {Norm::l2, false},  {Norm::l2, true},    {Norm::l1, false},
               {Norm::l1, true},       {Norm::none, true}, {Norm::none, false}, {Norm::minmax, false}};
  const auto mode = chosen("raw_feature_norm", modes, raw_feature_norm);
  return {mode.norm, mode.clips ? static_cast<float>(clip_slope) : 1.0f, static_cast<float>(lambda_softmax),
          pooling_of(pooling), static_cast<float>(lambda_lse)};
}

inline CrossAttentionOptions take_attention_options(Arguments& arguments) {
  const auto norm = arguments.take<int64_t>();
  const auto slope = arguments.take<double>(), lambda_softmax = arguments.take<double>();
  const auto pooling = arguments.take<int64_t>();
  CrossAttentionOptions options = attention_options(norm, slope, lambda_softmax, pooling, arguments.take<double>());
  constexpr bool projects[] = {false, true};
  options.projects = chosen("relevance", projects, arguments.take<int64_t>());
  options.focal = arguments.take<bool>();
  if (const auto threshold = arguments.take<std::optional<double>>()) {
    options.threshold = static_cast<float>(*threshold);
  }
  return options;
}

}  // namespace crossret
