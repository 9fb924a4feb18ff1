// Gated attention as torch calls it: tensors checked and turned into what kernels take.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <initializer_list>
#include <optional>
#include <vector>

#include "call.h"
#include "gated_attention/cpu.h"
#include "tensor.h"

namespace crossret {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Both operations' arguments, in the order of their schemas, checked.
class CheckedGate {
 public:
  explicit CheckedGate(Arguments& arguments) {
    for (GatedSide& side : call.sides) {
      const Tensor keys = take(arguments, 3, "keys"), values = take(arguments, 3, "values");
      const Tensor memory = take(arguments, 2, "memory"), mask = take(arguments, 2, "mask", ScalarType::Bool);
      side.count = keys.size(0);
      side.length = keys.size(1);
      side.hidden = keys.size(2);
      call.dim = values.size(2);
      call.gate = memory.size(1);
      check(values, {side.count, side.length, call.dim}, "values");
      check(memory, {side.count, call.gate}, "memory");
      check(mask, {side.count, side.length}, "mask");
      side.keys = keys.const_data_ptr<float>();
      side.values = values.const_data_ptr<float>();
      side.memory = memory.const_data_ptr<float>();
      side.mask = mask.const_data_ptr<bool>();
    }
    STD_TORCH_CHECK(held_[1].size(2) == call.dim && held_[2].size(1) == call.gate,
                    "values or memories of regions and words differ in their last size");
    for (GatedSide& side : call.sides) {
      const Tensor weight = take(arguments, 2, "query_weight"), bias = take(arguments, 1, "query_bias");
      check(weight, {side.hidden, call.gate}, "query_weight");
      check(bias, {side.hidden}, "query_bias");
      side.weight = weight.const_data_ptr<float>();
      side.bias = bias.const_data_ptr<float>();
    }
    const Tensor embedding = take(arguments, 1, "embedding_bias");
    check(embedding, {call.dim}, "embedding_bias");
    call.embedding_bias = embedding.const_data_ptr<float>();
    take_pairs(arguments.take<std::optional<Tensor>>());
    const auto alpha = arguments.take<double>();
    call.shares[0] = static_cast<float>(alpha);
    call.shares[1] = static_cast<float>(1 - alpha);
    call.bfloat16 = arguments.take<bool>();
    for (const GatedSide& side : call.sides) {
      STD_TORCH_CHECK(side.hidden > 0 && call.dim > 0 && call.gate > 0, "gated attention takes no sizes of zero");
    }
  }

  const Kernels& chosen() const { return kernels(call.bfloat16 ? Dtype::bfloat16 : Dtype::float32, false); }

  const Tensor& operand(size_t at) const { return held_[at]; }

  bool shaped_as_scores(const Tensor& tensor) const {
    if (call.pairs != nullptr) return tensor.dim() == 1 && tensor.size(0) == call.n_pairs;
    return tensor.dim() == 2 && tensor.size(0) == call.sides[0].count && tensor.size(1) == call.sides[1].count;
  }

  Tensor new_scores() const {
    const auto dtype = aoti_torch_dtype_float32();
    return call.pairs != nullptr ? empty<1>({call.n_pairs}, dtype)
                                 : empty<2>({call.sides[0].count, call.sides[1].count}, dtype);
  }

  GatedAttentionCall call{};

 private:
  Tensor take(Arguments& arguments, int64_t dims, const char* name, ScalarType type = ScalarType::Float) {
    const auto given = arguments.take<Tensor>();
    STD_TORCH_CHECK(given.is_cpu() && given.scalar_type() == type && given.dim() == dims, name,
                    type == ScalarType::Float ? " must be float32" : " must be bool", " on the CPU, of ", dims,
                    " dimensions");
    held_.push_back(given.is_contiguous() ? given : torch::stable::contiguous(given));
    return held_.back();
  }

  static void check(const Tensor& tensor, std::initializer_list<int64_t> sizes, const char* name) {
    int64_t dim = 0;
    for (const int64_t size : sizes) STD_TORCH_CHECK(tensor.size(dim++) == size, name, " is of another size");
  }

  void take_pairs(const std::optional<Tensor>& pairs) {
    if (!pairs) return;
    STD_TORCH_CHECK(
        pairs->is_cpu() && pairs->dim() == 2 && pairs->size(1) == 2 && pairs->scalar_type() == ScalarType::Long,
        "pairs must be a (P, 2) int64 tensor on the CPU");
    held_.push_back(pairs->is_contiguous() ? *pairs : torch::stable::contiguous(*pairs));
    static constexpr int64_t none = 0;  // an empty tensor may have no data
    call.n_pairs = pairs->size(0);
    call.pairs = call.n_pairs == 0 ? &none : held_.back().const_data_ptr<int64_t>();
    for (int64_t k = 0; k < call.n_pairs; ++k) {
      const int64_t image = call.pairs[2 * k], caption = call.pairs[2 * k + 1];
      STD_TORCH_CHECK(image >= 0 && image < call.sides[0].count, "pairs[", k, "] names image ", image);
      STD_TORCH_CHECK(caption >= 0 && caption < call.sides[1].count, "pairs[", k, "] names caption ", caption);
    }
  }

  std::vector<Tensor> held_;
};

void scores(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const CheckedGate gate(arguments);
  arguments.finish();
  const Tensor made = gate.new_scores();
  gated_attention(gate.chosen(), gate.call, made.mutable_data_ptr<float>());
  stack[0] = torch::stable::detail::from(made);
}

void gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto given = arguments.take<Tensor>();
  const CheckedGate gate(arguments);
  const GatedAttentionCall& call = gate.call;
  STD_TORCH_CHECK(given.is_cpu() && given.scalar_type() == ScalarType::Float && gate.shaped_as_scores(given),
                  "the gradient must be float32 of the scores' shape, on the CPU");
  const Tensor grad = given.is_contiguous() ? given : torch::stable::contiguous(given);
  constexpr size_t differentiable[] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 11, 12};
  std::vector<Tensor> made;
  std::vector<float*> to;
  for (const size_t at : differentiable) {
    const Tensor& like = gate.operand(at);
    const bool wanted = arguments.take<bool>();
    made.push_back(wanted ? torch::stable::new_empty(like, like.sizes()) : torch::stable::new_empty(like, {0}));
    to.push_back(wanted ? made.back().mutable_data_ptr<float>() : nullptr);
    if (made.back().numel() > 0) std::memset(to.back(), 0, made.back().numel() * sizeof(float));
  }
  arguments.finish();
  GatedAttentionGradients wanted{};
  wanted.scores = grad.const_data_ptr<float>();
  for (size_t side = 0; side < 2; ++side) {
    const size_t own = 3 * side, step = 6 + 2 * side;
    wanted.sides[side] = {to[own], to[own + 1], to[own + 2], to[step], to[step + 1]};
  }
  wanted.embedding_bias = to[10];
  differentiate_gated_attention(gate.chosen(), call, wanted);
  for (size_t at = 0; at < made.size(); ++at) stack[at] = torch::stable::detail::from(made[at]);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"gated_attention", "gated_attention.plain"}) library.impl(name, &scores);
  for (const char* name : {"gated_attention_backward", "gated_attention_backward.plain"}) {
    library.impl(name, &gradients);
  }
}

}  // namespace crossret
