#include "ranking_loss/tensors.h"

#include "cuda/torch_stream.h"
#include "ranking_loss/gpu.h"
#include "ranking_loss/operation.h"

namespace crossret {

namespace {

using torch::stable::Tensor;

const int64_t* ids_of(const std::optional<Tensor>& ids) { return ids ? ids->const_data_ptr<int64_t>() : nullptr; }

// A call over the tensors.
class Problem {
 public:
  explicit Problem(const RankingLossArguments& given) {
    check_ranking_loss(given);
    STD_TORCH_CHECK(gpu::on_device(given.scores), "scores must be on ", gpu::kDevices);
    scores_ = in_rows(given.scores);
    call = {scores_.const_data_ptr(),
            scores_.stride(0),
            feature_dtype(scores_, "scores"),
            static_cast<int>(scores_.size(0)),
            static_cast<int>(scores_.size(1)),
            static_cast<int>(given.offset),
            static_cast<float>(given.margin),
            given.negatives,
            given.order,
            given.reduction,
            ids_of(given.image_ids),
            ids_of(given.caption_ids)};
  }

  gpu::LossCall call{};

 private:
  Tensor scores_;
};

}  // namespace

std::pair<Tensor, Tensor> ranking_loss(const RankingLossArguments& given) {
  const Problem problem(given);
  const gpu::CurrentStream stream(given.scores);
  const int64_t n = problem.call.n_rows;
  const Place place = Place::of(given.scores);
  const int32_t float32 = aoti_torch_dtype_float32();
  const Tensor loss = given.reduction != Reduction::none ? empty<0>({}, float32, place) : empty<1>({n}, float32, place);
  const Tensor statistics = empty<2>({4, n}, float32, place);
  const Tensor scratch = empty<1>({gpu::loss_scratch(problem.call, stream)}, float32, place);
  gpu::measure_ranking_loss(problem.call, stream, loss.mutable_data_ptr<float>(), statistics.mutable_data_ptr<float>(),
                            scratch.mutable_data_ptr());
  return {loss, statistics};
}

Tensor ranking_loss_gradient(const Tensor& grad_loss, const Tensor& statistics, const RankingLossArguments& given) {
  const Problem problem(given);
  check_ranking_loss_gradient(grad_loss, statistics, given);
  const gpu::CurrentStream stream(given.scores);
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(given.scores.get(), &dtype));
  const Tensor out = empty<2>({problem.call.n_rows, problem.call.n_columns}, dtype, Place::of(given.scores));
  gpu::differentiate_ranking_loss(problem.call, stream, grad_loss.const_data_ptr<float>(),
                                  given.reduction != Reduction::none ? 0 : grad_loss.stride(0),
                                  statistics.const_data_ptr<float>(), out.mutable_data_ptr());
  return out;
}

CROSSRET_ON_DEVICE(library) {
  for (const char* name : {"triplet_loss_cuda", "triplet_loss_cuda.plain"}) library.impl(name, &triplet_loss);
  for (const char* name : {"triplet_loss_cuda_backward", "triplet_loss_cuda_backward.plain"}) {
    library.impl(name, &triplet_loss_gradient);
  }
}

}  // namespace crossret
