// Linear layers as torch calls them: tensors are checked and turned into products of matrices.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <vector>

#include "call.h"
#include "dense/cpu.h"
#include "tensor.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

Tensor checked(const Tensor& tensor, const char* name, bool right_shape) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == torch::headeronly::ScalarType::Float && right_shape, name,
                  " must be float32 on the CPU, of rows (…, in), a weight (out, in) and a bias (out,) or (0,)");
  return in_order(tensor);
}

// Arguments of all operations, in the order of their schemas: rows (…, in), weight (out, in), bias (out,) or (0,).
struct Layer {
  explicit Layer(Arguments& arguments)
      : rows(take_rows(arguments.take<Tensor>())),
        weight(take_weight(arguments.take<Tensor>())),
        bias(take_bias(arguments.take<Tensor>())),
        bfloat16(arguments.take<bool>()) {
    for (int64_t dim = 0; dim + 1 < rows.dim(); ++dim) count *= rows.size(dim);
  }

  const Kernels& kernels() const { return crossret::kernels(bfloat16 ? Dtype::bfloat16 : Dtype::float32, false); }

  std::vector<int64_t> out_sizes() const {
    std::vector<int64_t> sizes(rows.sizes().begin(), rows.sizes().end());
    sizes.back() = weight.size(0);
    return sizes;
  }

  const Tensor rows, weight, bias;
  const bool bfloat16;
  int64_t count = 1;

 private:
  Tensor take_rows(const Tensor& given) { return checked(given, "rows", given.dim() > 0 && given.size(-1) > 0); }
  Tensor take_weight(const Tensor& given) {
    return checked(given, "weight", given.dim() == 2 && given.size(0) > 0 && given.size(1) == rows.size(-1));
  }
  Tensor take_bias(const Tensor& given) {
    return checked(given, "bias", given.dim() == 1 && (given.size(0) == 0 || given.size(0) == weight.size(0)));
  }
};

void linear(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const Layer layer(arguments);
  arguments.finish();
  const Tensor out = torch::stable::new_empty(layer.rows, layer.out_sizes());
  const int64_t in = layer.weight.size(1);
  DenseCall call{};
  call.left = {layer.rows.const_data_ptr<float>(), in, 1};
  call.right = {layer.weight.const_data_ptr<float>(), in, 1};
  call.rows = layer.count;
  call.columns = layer.weight.size(0);
  call.depth = in;
  call.bias = layer.bias.numel() ? layer.bias.const_data_ptr<float>() : nullptr;
  call.out = out.mutable_data_ptr<float>();
  call.bfloat16 = layer.bfloat16;
  multiply_dense(layer.kernels(), call);
  stack[0] = torch::stable::detail::from(out);
}

// Gradients: of rows dy · W, of the weight dyᵀ · rows, of the bias the sums of dy.
void gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto given = arguments.take<Tensor>();
  const Layer layer(arguments);
  const bool of_rows = arguments.take<bool>(), of_weight = arguments.take<bool>(), of_bias = arguments.take<bool>();
  arguments.finish();
  const int64_t in = layer.weight.size(1), out = layer.weight.size(0);
  const Tensor grad = checked(given, "grad", given.numel() == layer.count * out);
  const auto empty_like = [](const Tensor& like, bool wanted) {
    const std::vector<int64_t> sizes(like.sizes().begin(), like.sizes().end());
    return torch::stable::new_empty(like, wanted ? sizes : std::vector<int64_t>{0});
  };
  const Tensor rows = empty_like(layer.rows, of_rows), weight = empty_like(layer.weight, of_weight);
  const Tensor bias = empty_like(layer.bias, of_bias);
  const DenseFactor dy{grad.const_data_ptr<float>(), out, 1};
  DenseCall call{};
  call.bfloat16 = layer.bfloat16;
  if (of_rows) {
    call.left = dy;
    call.right = {layer.weight.const_data_ptr<float>(), 1, in};
    call.rows = layer.count;
    call.columns = in;
    call.depth = out;
    call.out = rows.mutable_data_ptr<float>();
    multiply_dense(layer.kernels(), call);
  }
  if (of_weight) {
    call.left = {dy.data, 1, out};
    call.right = {layer.rows.const_data_ptr<float>(), 1, in};
    call.rows = out;
    call.columns = in;
    call.depth = layer.count;
    call.out = weight.mutable_data_ptr<float>();
    multiply_dense(layer.kernels(), call);
  }
  if (of_bias && bias.numel()) sum_dense_rows(layer.kernels(), dy, layer.count, out, bias.mutable_data_ptr<float>());
  stack[0] = torch::stable::detail::from(rows);
  stack[1] = torch::stable::detail::from(weight);
  stack[2] = torch::stable::detail::from(bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"linear", "linear.plain"}) library.impl(name, &linear);
  for (const char* name : {"linear_backward", "linear_backward.plain"}) library.impl(name, &gradients);
}

}  // namespace crossret
