// Attention pooling as torch calls it: tensors checked and turned into what kernels take.
#include "binding.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "attention_pool/cpu.h"

namespace crossret {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Tensor in_order(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

bool is_float32_on_cpu(const Tensor& tensor) { return tensor.is_cpu() && tensor.scalar_type() == ScalarType::Float; }

int64_t bytes_of(const Tensor& tensor) { return tensor.scalar_type() == ScalarType::Float ? 4 : 2; }

// What both operations take, in the order of their schemas, checked.
class CheckedPool {
 public:
  explicit CheckedPool(Arguments& arguments) : CheckedPool(take_side(arguments, false)) {
    logits_ = in_order(arguments.take<Tensor>());
    call.width = arguments.take<int64_t>();
    const Tensor& logits = *logits_;
    const auto dims = static_cast<int64_t>(rows_.size());
    STD_TORCH_CHECK(is_float32_on_cpu(logits) && logits.dim() == dims + 1 && logits.size(dims) > 0 &&
                        std::equal(rows_.begin(), rows_.end(), logits.sizes().begin()),
                    "logits must be float32 on the CPU, a row of heads for each of the values");
    call.logits = logits.const_data_ptr<float>();
    call.heads = logits.size(dims);
    const int64_t least = call.values.masked ? side_.width() : call.values.longest;
    STD_TORCH_CHECK(call.width == 0 || call.width >= least, "width is ", call.width, " but an item has ", least,
                    " rows");
  }

  const Kernels& chosen() const { return kernels(call.values.dtype, false); }

  Tensor new_results(int64_t width) const {
    const Tensor made = empty<3>({call.values.count, call.heads, width}, aoti_torch_dtype_float32());
    in_large_pages(made.mutable_data_ptr(), made.numel() * bytes_of(made));
    return made;
  }

  // Of the values, or of the logits: rows of `bytes` of which those of no item are zero.
  Tensor new_gradient(bool of_values, bool wanted) const {
    const Tensor& like = of_values ? values_ : *logits_;
    if (!wanted) return torch::stable::new_empty(like, {0});
    const Tensor made = torch::stable::new_empty(like, like.sizes());
    in_large_pages(made.mutable_data_ptr(), made.numel() * bytes_of(made));
    if (made.numel() > 0) clear_between(static_cast<char*>(made.mutable_data_ptr()), made);
    return made;
  }

  AttentionPoolCall call{};

 private:
  explicit CheckedPool(SideTensors tensors) : values_(tensors.values[0]), side_(std::move(tensors), false, "values") {
    call.values = side_.side();
    rows_.assign(values_.sizes().begin(), values_.sizes().end() - 1);
  }

  void clear_between(char* data, const Tensor& made) const {
    int64_t total = 1;
    for (const int64_t size : rows_) total *= size;
    const int64_t bytes = made.numel() / total * bytes_of(made);
    int64_t next = 0;  // the first row that nothing has been said of
    const auto reach = [&](int64_t row) {
      if (row > next) std::memset(data + next * bytes, 0, (row - next) * bytes);
      next = row + 1;
    };
    for (int64_t item = 0; item < call.values.count; ++item) {
      for (int64_t r = 0; r < call.values.length(item); ++r) reach(call.values.gradient_row(item, r));
    }
    reach(total);
  }

  const Tensor values_;
  CheckedSide side_;
  std::optional<Tensor> logits_;
  std::vector<int64_t> rows_;
};

void pooled(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const CheckedPool pool(arguments);
  arguments.finish();
  const Tensor averages = pool.new_results(pool.call.values.dim);
  const Tensor weights = pool.new_results(pool.call.width);
  attention_pool(pool.chosen(), pool.call,
                 {averages.mutable_data_ptr<float>(), pool.call.width ? weights.mutable_data_ptr<float>() : nullptr});
  stack[0] = torch::stable::detail::from(averages);
  stack[1] = torch::stable::detail::from(weights);
}

void pool_gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto given_pooled = arguments.take<Tensor>(), given_weights = arguments.take<Tensor>();
  const CheckedPool pool(arguments);
  const bool of_values = arguments.take<bool>(), of_logits = arguments.take<bool>();
  arguments.finish();
  const AttentionPoolCall& call = pool.call;
  const auto fits = [&](const Tensor& grad, int64_t width) {
    return is_float32_on_cpu(grad) && grad.dim() == 3 && grad.size(0) == call.values.count &&
           grad.size(1) == call.heads && grad.size(2) == width;
  };
  STD_TORCH_CHECK(fits(given_pooled, call.values.dim) && fits(given_weights, call.width),
                  "gradients must be float32 of the results' shapes, on the CPU");
  const Tensor grad_pooled = in_order(given_pooled), grad_weights = in_order(given_weights);
  const Tensor values = pool.new_gradient(true, of_values), logits = pool.new_gradient(false, of_logits);
  differentiate_attention_pool(
      pool.chosen(), call,
      {grad_pooled.const_data_ptr<float>(), call.width ? grad_weights.const_data_ptr<float>() : nullptr,
       of_values ? static_cast<char*>(values.mutable_data_ptr()) : nullptr,
       of_logits ? logits.mutable_data_ptr<float>() : nullptr});
  stack[0] = torch::stable::detail::from(values);
  stack[1] = torch::stable::detail::from(logits);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"attention_pool", "attention_pool.plain"}) library.impl(name, &pooled);
  for (const char* name : {"attention_pool_backward", "attention_pool_backward.plain"}) {
    library.impl(name, &pool_gradients);
  }
}

}  // namespace crossret
