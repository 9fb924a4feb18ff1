// Heterogeneous attention as torch calls it: tensors are checked and turned into calls.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "heterogeneous_attention/cpu.h"
#include "tensor.h"

namespace crossret {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr size_t kParts = 5;  // tensors of a side that have gradients

// Arguments of both operations, in the order of their schemas, checked.
class CheckedLayer {
 public:
  explicit CheckedLayer(Arguments& arguments) {
    call.images = take_side(arguments, "region");
    call.captions = take_side(arguments, "word");
    call.norm_weight = take_floats(arguments, {call.dim}, "norm_weight");
    call.norm_bias = take_floats(arguments, {call.dim}, "norm_bias");
    call.lambda_attention = static_cast<float>(arguments.take<double>());
    call.local = arguments.take<bool>();
    call.words_attend = chosen("direction", kWordsAttend, arguments.take<int64_t>());
    const auto lambda_softmax = arguments.take<double>();
    const auto pooling = arguments.take<int64_t>();
    call.matching = {Norm::none, 1.0f, static_cast<float>(lambda_softmax), pooling_of(pooling),
                     static_cast<float>(arguments.take<double>())};
    call.bfloat16 = arguments.take<bool>();
  }

  const Kernels& chosen_kernels() const { return kernels(call.bfloat16 ? Dtype::bfloat16 : Dtype::float32, false); }
  const std::vector<Tensor>& given() const { return given_; }

  HeterogeneousCall call{};

 private:
  const float* take_floats(Arguments& arguments, const std::vector<int64_t>& sizes, const std::string& name) {
    given_.push_back(arguments.take<Tensor>());
    Tensor& tensor = given_.back();
    STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == ScalarType::Float &&
                        tensor.dim() == static_cast<int64_t>(sizes.size()) &&
                        std::equal(sizes.begin(), sizes.end(), tensor.sizes().begin()),
                    name, " must be float32 on the CPU, of the shape that the first queries tell");
    tensor = in_order(tensor);
    return tensor.const_data_ptr<float>();
  }

  FirstLayer take_side(Arguments& arguments, const std::string& name) {
    FirstLayer side{};
    const auto queries = arguments.take<Tensor>();
    STD_TORCH_CHECK(queries.is_cpu() && queries.scalar_type() == ScalarType::Float && queries.dim() == 4 &&
                        queries.size(2) > 0 && queries.size(3) > 0,
                    name, "_queries must be float32 on the CPU, (items, rows, heads, size of a head)");
    given_.push_back(in_order(queries));
    side.queries = given_.back().const_data_ptr<float>();
    const int64_t n = side.count = queries.size(0), width = side.width = queries.size(1);
    const int64_t heads = queries.size(2), dim = heads * queries.size(3);
    STD_TORCH_CHECK(call.dim == 0 || (call.heads == heads && call.dim == dim), name,
                    "_queries must have as many heads as region_queries, and of their size");
    call.heads = heads;
    call.dim = dim;
    side.keys = take_floats(arguments, {n, width, heads, dim / heads}, name + "_keys");
    side.values = take_floats(arguments, {n, width, heads, dim}, name + "_values");
    side.own_logits = take_floats(arguments, {n, width, heads}, name + "_own_logits");
    side.own_values = take_floats(arguments, {n, width, heads + 1, dim}, name + "_own_values");
    const std::string lengths_name = name + "_lengths";
    lengths_.push_back(arguments.take<Tensor>());
    side.lengths = integers(lengths_.back(), lengths_name.c_str());
    STD_TORCH_CHECK(lengths_.back().size(0) == n, lengths_name, " must have one number for each of ", n, " items");
    for (int64_t item = 0; item < n; ++item) {
      STD_TORCH_CHECK(side.lengths[item] >= 1 && side.lengths[item] <= width, lengths_name, ": item ", item,
                      " has length ", side.lengths[item], " of ", width, " rows");
      side.longest = std::max(side.longest, side.lengths[item]);
    }
    return side;
  }

  std::vector<Tensor> given_;  // those that have gradients
  std::vector<Tensor> lengths_;
};

void scores(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  CheckedLayer layer(arguments);
  arguments.finish();
  const Tensor made = empty<2>({layer.call.images.count, layer.call.captions.count}, aoti_torch_dtype_float32());
  layer.call.scores = made.mutable_data_ptr<float>();
  heterogeneous_attention(layer.chosen_kernels(), layer.call);
  stack[0] = torch::stable::detail::from(made);
}

void gradients(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto given_grad = arguments.take<Tensor>();
  const CheckedLayer layer(arguments);
  const HeterogeneousCall& call = layer.call;
  std::vector<bool> wanted;
  for (size_t i = 0; i < layer.given().size(); ++i) wanted.push_back(arguments.take<bool>());
  arguments.finish();
  STD_TORCH_CHECK(given_grad.is_cpu() && given_grad.scalar_type() == ScalarType::Float && given_grad.dim() == 2 &&
                      given_grad.size(0) == call.images.count && given_grad.size(1) == call.captions.count,
                  "the gradient must be float32 of the scores' shape, on the CPU");
  const Tensor grad = in_order(given_grad);
  std::vector<Tensor> made;
  std::vector<float*> data;
  for (const Tensor& like : layer.given()) {
    made.push_back(torch::stable::new_empty(like, like.sizes()));
    data.push_back(made.back().mutable_data_ptr<float>());
    if (like.numel() > 0) std::memset(data.back(), 0, like.numel() * sizeof(float));
  }
  const auto side = [&](size_t first) {
    return FirstLayerGradients{data[first], data[first + 1], data[first + 2], data[first + 3], data[first + 4]};
  };
  std::vector<float> norms(2 * call.dim);
  differentiate_heterogeneous_attention(layer.chosen_kernels(), call,
                                        {grad.const_data_ptr<float>(), side(0), side(kParts)}, norms.data());
  std::copy_n(norms.data(), call.dim, data[2 * kParts]);
  std::copy_n(norms.data() + call.dim, call.dim, data[2 * kParts + 1]);
  for (size_t i = 0; i < made.size(); ++i) {
    stack[i] = torch::stable::detail::from(wanted[i] ? made[i] : torch::stable::new_empty(made[i], {0}));
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"heterogeneous_attention", "heterogeneous_attention.plain"}) library.impl(name, &scores);
  for (const char* name : {"heterogeneous_attention_backward", "heterogeneous_attention_backward.plain"}) {
    library.impl(name, &gradients);
  }
}

}  // namespace crossret
