#include "binding.h"

#include "cross_attention/cpu.h"
#include "cross_attention/options.h"

namespace crossret {

namespace {

struct CrossAttention {
  CrossAttentionOptions options;

  static CrossAttention take(Arguments& arguments) { return {take_attention_options(arguments)}; }

  CrossAttentionCall call(const CheckedBatch& batch) const {
    CrossAttentionCall call{};
    batch.lay_out(call);
    call.options = options;
    return call;
  }

  static constexpr bool saves = false;
  static constexpr auto score = &score_cross_attention;
  static constexpr auto differentiate = &differentiate_cross_attention;
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"scan_scores", "scan_scores.plain"}) library.impl(name, &scores<CrossAttention, false>);
  library.impl("scan_scores_listed", &scores<CrossAttention, true>);
  for (const char* name : {"scan_scores_backward", "scan_scores_backward.plain"}) {
    library.impl(name, &gradients<CrossAttention>);
  }
}

}  // namespace crossret
