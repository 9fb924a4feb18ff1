// All CPU kernels, for the vector type and in the namespace of the including file.
#include "cross_attention/feature_gradients.inl"
#include "gemm/dense.inl"
#include "heterogeneous_attention/backward.inl"
#include "maxsim/best.inl"
#include "pairs/prepare.inl"
#include "self_attention/self_attention.inl"

namespace crossret {
namespace CROSSRET_ISA {

#define CROSSRET_NAME(isa) CROSSRET_QUOTE(isa)
#define CROSSRET_QUOTE(isa) #isa
extern const Kernels kernels;
const Kernels kernels = {CROSSRET_NAME(CROSSRET_ISA),
                         Set::CROSSRET_ISA,
                         layout_of,
                         row_norms,
                         pack_queries,
                         copy_contexts,
                         prepare_contexts,
                         prepare_memory,
                         finish_gradient};

}  // namespace CROSSRET_ISA
}  // namespace crossret
