// Self-attention as torch calls it, items over threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "call.h"
#include "dispatch.h"
#include "pairs/parallel.h"
#include "self_attention/problem.h"
#include "tensor.h"

namespace crossret {

CROSSRET_BY_SET(SelfAttentionKernels, self_attention_kernels)

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Tensor checked(const Tensor& tensor, ScalarType type, bool right_shape) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type && right_shape,
                  "self-attention takes float32 (items, rows, 3 · heads · dim) and a bool mask (items, rows), on the "
                  "CPU, and gradients of its results");
  return in_order(tensor);
}

// Arguments of both operations, in the order of their schemas.
class Attention {
 public:
  explicit Attention(Arguments& arguments)
      : projected_(take_projected(arguments.take<Tensor>())), mask_(take_mask(arguments.take<Tensor>())) {
    call.heads = arguments.take<int64_t>();
    call.lambda = static_cast<float>(arguments.take<double>());
    const int64_t width = projected_.size(2);
    STD_TORCH_CHECK(call.heads > 0 && width > 0 && width % (3 * call.heads) == 0, "heads must divide the width");
    call.projected = projected_.const_data_ptr<float>();
    call.mask = mask_.const_data_ptr<bool>();
    call.items = projected_.size(0);
    call.rows = projected_.size(1);
    call.dim = width / (3 * call.heads);
    run_.scratch(call, counted_);
  }

  Tensor grads(const Tensor& given) const {
    return checked(given, ScalarType::Float,
                   given.dim() == 3 && given.size(0) == call.items && given.size(1) == call.rows &&
                       3 * given.size(2) == projected_.size(2));
  }

  Tensor made(int64_t parts) const {
    return empty<3>({call.items, call.rows, parts * call.heads * call.dim}, aoti_torch_dtype_float32());
  }

  // Calls work(kernels, item, workspace) for every item.
  template <class Work>
  void each_item(double products, const Work& work) const {
    const double rows = static_cast<double>(call.rows), width = static_cast<double>(call.heads * call.dim);
    Memory memory;
    parallel(call.rows > 0 ? call.items : 0, products * rows * rows * width * static_cast<double>(call.items),
             counted_.bytes(), memory, [&](int64_t item, Workspace& workspace) { work(run_, item, workspace); });
  }

  SelfAttentionCall call{};

 private:
  Tensor take_projected(const Tensor& given) { return checked(given, ScalarType::Float, given.dim() == 3); }
  Tensor take_mask(const Tensor& given) {
    return checked(given, ScalarType::Bool,
                   given.dim() == 2 && given.size(0) == projected_.size(0) && given.size(1) == projected_.size(1));
  }

  const SelfAttentionKernels& run_ = self_attention_kernels_of(kernels(Dtype::float32, false));
  const Tensor projected_, mask_;
  Workspace counted_;
};

void attended(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const Attention attention(arguments);
  arguments.finish();
  const Tensor made = attention.made(1);
  float* const out = made.mutable_data_ptr<float>();
  attention.each_item(2, [&](const SelfAttentionKernels& run, int64_t item, Workspace& workspace) {
    run.attend(attention.call, item, out, workspace);
  });
  stack[0] = torch::stable::detail::from(made);
}

void gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto given = arguments.take<Tensor>();
  const Attention attention(arguments);
  arguments.finish();
  const Tensor grads = attention.grads(given), made = attention.made(3);
  const float* const from = grads.const_data_ptr<float>();
  float* const out = made.mutable_data_ptr<float>();
  attention.each_item(5, [&](const SelfAttentionKernels& run, int64_t item, Workspace& workspace) {
    run.differentiate(attention.call, from, item, out, workspace);
  });
  stack[0] = torch::stable::detail::from(made);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"self_attention", "self_attention.plain"}) library.impl(name, &attended);
  for (const char* name : {"self_attention_backward", "self_attention_backward.plain"}) library.impl(name, &gradients);
}

}  // namespace crossret
