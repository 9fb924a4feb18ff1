// Every CPU kernel, under the vector type and the namespace that the including file has chosen.
#include "common/vector_math.inl"
#include "common/features.inl"
#include "common/block_product.inl"
#include "common/gram_matrix.inl"
#include "common/blocks.inl"
#include "common/feature_gradients.inl"
#include "common/pooling.inl"
#include "cross_attention/attention.inl"
#include "cross_attention/cpu.inl"
#include "cross_attention/cpu_backward.inl"
#include "cross_attention/cpu_feature_gradients.inl"
#include "maxsim/tile.inl"
#include "maxsim/best.inl"
#include "maxsim/cpu.inl"

namespace crossret {
namespace CROSSRET_ISA {

#define CROSSRET_NAME(isa) CROSSRET_QUOTE(isa)
#define CROSSRET_QUOTE(isa) #isa
extern const Kernels kernels;
const Kernels kernels = {CROSSRET_NAME(CROSSRET_ISA), &cross_attention_kernels, &maxsim_kernels, row_norms,
                         finish_gradient};

}  // namespace CROSSRET_ISA
}  // namespace crossret
