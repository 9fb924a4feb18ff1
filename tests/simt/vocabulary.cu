// The words of kernels, compiled for a GPU.
#include "vocabulary.cuh"

namespace crossret {
namespace gpu {

template __global__ void vocabulary::multiplied<BFloat16>(Global<const uint32_t>, Global<uint32_t>);
template __global__ void vocabulary::multiplied<Float16>(Global<const uint32_t>, Global<uint32_t>);
template __global__ void vocabulary::multiplied<TFloat32>(Global<const uint32_t>, Global<uint32_t>);

}  // namespace gpu
}  // namespace crossret
