// The contrastive losses' operations as torch calls them.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "call.h"
#include "contrastive_loss/cpu.h"
#include "score_matrix/tensors.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

// A number that has a gradient.
float number_of(const Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.dim() == 0 && tensor.scalar_type() == torch::headeronly::ScalarType::Float,
                  name, " must be a float32 scalar on the CPU");
  return *tensor.const_data_ptr<float>();
}

// What an operation and its gradient take, in the order of their schemas, gradients, statistics and flags apart.
struct Given {
  Given(Arguments& arguments, bool infonce) : scores(arguments.take<Tensor>()), scale(arguments.take<Tensor>()) {
    if (!infonce) bias = arguments.take<Tensor>();
    image_ids = arguments.take<Ids>(), caption_ids = arguments.take<Ids>();
    if (infonce) label_smoothing = arguments.take<double>();
    reduction = reduction_of(arguments.take<int64_t>());
    offset = arguments.take<int64_t>();
  }

  Tensor scores, scale;
  std::optional<Tensor> bias;
  Ids image_ids, caption_ids;
  double label_smoothing = 0;
  Reduction reduction;
  int64_t offset;
};

// A call over the tensors.
class Problem {
 public:
  explicit Problem(const Given& given) : scores_(given.scores, given.image_ids, given.caption_ids, given.offset) {
    static_cast<ScoreMatrix&>(call) = scores_.matrix;
    call.scale = number_of(given.scale, "scale");
    call.bias = given.bias ? number_of(*given.bias, "bias") : 0.0f;
    call.smoothed = given.label_smoothing > 0;
  }

  const Kernels& kernels() const { return crossret::kernels(call.dtype, false); }

  ContrastiveCall call{};

 private:
  const LabelledScores scores_;
};

Tensor scalar(double value) {
  const Tensor made = empty<0>({}, aoti_torch_dtype_float32());
  *made.mutable_data_ptr<float>() = static_cast<float>(value);
  return made;
}

// The scores' gradient where it is wanted, with what `differentiate` makes of its place.
template <class Differentiate>
ContrastiveSums gradient(const Given& given, const Problem& problem, Arguments& arguments, StableIValue* stack,
                         const Differentiate& differentiate) {
  const bool wanted = arguments.take<bool>();
  const ScoreMatrix& matrix = problem.call;
  const std::vector<int64_t> all{matrix.n_rows, matrix.n_columns}, none{0};
  const Tensor out = torch::stable::new_empty(given.scores, wanted ? all : none);
  const ContrastiveSums sums = differentiate(wanted ? static_cast<char*>(out.mutable_data_ptr()) : nullptr,
                                             matrix.n_columns * matrix.element_bytes());
  stack[0] = torch::stable::detail::from(out);
  return sums;
}

// A number's gradient where it is wanted.
StableIValue gradient(bool wanted, double value) {
  return torch::stable::detail::from(wanted ? scalar(value) : empty<1>({0}, aoti_torch_dtype_float32()));
}

void infonce_loss(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const Given given(arguments, true);
  arguments.finish();
  const Problem problem(given);
  Losses losses(given.reduction, problem.call.n_rows);
  const Tensor statistics = empty<2>({kInfoNceKept, problem.call.n_rows}, aoti_torch_dtype_float32());
  measure_infonce(problem.kernels(), problem.call, given.label_smoothing, losses.each(),
                  statistics.mutable_data_ptr<float>());
  stack[0] = torch::stable::detail::from(losses.reduced());
  stack[1] = torch::stable::detail::from(statistics);
}

void infonce_loss_gradient(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto grad_loss = arguments.take<Tensor>(), statistics = arguments.take<Tensor>();
  const Given given(arguments, true);
  const Problem problem(given);
  check_loss_gradient(grad_loss, given.scores, given.reduction);
  check_loss_statistics(statistics, given.scores, kInfoNceKept);
  const std::vector<float> grads = gradients_of_rows(grad_loss, given.reduction, problem.call.n_rows);
  const ContrastiveSums sums = gradient(given, problem, arguments, stack, [&](char* out, int64_t out_row_bytes) {
    return differentiate_infonce(problem.kernels(), problem.call, grads.data(), statistics.const_data_ptr<float>(), out,
                                 out_row_bytes);
  });
  stack[1] = gradient(arguments.take<bool>(), sums.scores);
  arguments.finish();
}

void sigmoid_loss(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const Given given(arguments, false);
  arguments.finish();
  const Problem problem(given);
  Losses losses(given.reduction, problem.call.n_rows);
  measure_sigmoid_loss(problem.kernels(), problem.call, losses.each());
  stack[0] = torch::stable::detail::from(losses.reduced());
}

void sigmoid_loss_gradient(StableIValue* stack, uint64_t n_arguments, uint64_t) {
  Arguments arguments(stack, n_arguments);
  const auto grad_loss = arguments.take<Tensor>();
  const Given given(arguments, false);
  const Problem problem(given);
  check_loss_gradient(grad_loss, given.scores, given.reduction);
  const std::vector<float> grads = gradients_of_rows(grad_loss, given.reduction, problem.call.n_rows);
  const ContrastiveSums sums = gradient(given, problem, arguments, stack, [&](char* out, int64_t out_row_bytes) {
    return differentiate_sigmoid_loss(problem.kernels(), problem.call, grads.data(), out, out_row_bytes);
  });
  const bool of_scale = arguments.take<bool>(), of_bias = arguments.take<bool>();
  arguments.finish();
  stack[1] = gradient(of_scale, sums.scores);
  stack[2] = gradient(of_bias, sums.all);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"infonce_loss", "infonce_loss.plain"}) library.impl(name, &infonce_loss);
  for (const char* name : {"infonce_loss_backward", "infonce_loss_backward.plain"}) {
    library.impl(name, &infonce_loss_gradient);
  }
  for (const char* name : {"sigmoid_loss", "sigmoid_loss.plain"}) library.impl(name, &sigmoid_loss);
  for (const char* name : {"sigmoid_loss_backward", "sigmoid_loss_backward.plain"}) {
    library.impl(name, &sigmoid_loss_gradient);
  }
}

}  // namespace crossret
