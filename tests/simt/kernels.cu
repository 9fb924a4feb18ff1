// The kernels, compiled for a GPU: all kinds for float32, those with ids for other dtypes.
#include "ranking_loss/cuda.cuh"
#include "vocabulary.cuh"

namespace crossret {
namespace gpu {

#define LOSS(T, negatives, with_ids)                                 \
  template __global__ void hinge_statistics<T, negatives, with_ids>( \
      CROSSRET_PARAMETER LossProblem<T>, Global<Statistic<negatives>>, Global<Statistic<negatives>>);
#define GRADIENT(T, negatives, with_ids)                            \
  template __global__ void score_gradients<T, negatives, with_ids>( \
      CROSSRET_PARAMETER LossProblem<T>, CROSSRET_PARAMETER LossGradient, Global<T>, int64_t);
#define FINISH(negatives)                                                                                            \
  template __global__ void losses_of_statistics<negatives>(Global<const Statistic<negatives>>,                       \
                                                           Global<const Statistic<negatives>>, LossOutput, int, int, \
                                                           int, Slope, float);

#define WITH_IDS(T)                      \
  LOSS(T, Negatives::hardest, true)      \
  LOSS(T, Negatives::sum, true)          \
  LOSS(T, Negatives::softmax, true)      \
  GRADIENT(T, Negatives::hardest, false) \
  GRADIENT(T, Negatives::sum, true)      \
  GRADIENT(T, Negatives::softmax, true)

WITH_IDS(float)
WITH_IDS(BFloat16)
WITH_IDS(Float16)
// The same with less to keep.
LOSS(float, Negatives::hardest, false)
LOSS(float, Negatives::sum, false)
LOSS(float, Negatives::softmax, false)
GRADIENT(float, Negatives::sum, false)
GRADIENT(float, Negatives::softmax, false)
FINISH(Negatives::hardest)
FINISH(Negatives::sum)
FINISH(Negatives::softmax)

template __global__ void vocabulary::multiplied<BFloat16>(Global<const uint32_t>, Global<uint32_t>);
template __global__ void vocabulary::multiplied<Float16>(Global<const uint32_t>, Global<uint32_t>);
template __global__ void vocabulary::multiplied<TFloat32>(Global<const uint32_t>, Global<uint32_t>);

}  // namespace gpu
}  // namespace crossret
