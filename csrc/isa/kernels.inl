// Every CPU kernel, under the vector type and the namespace that the including file has chosen.
#include "cross_attention/problem.h"
#include "dense/problem.h"
#include "heterogeneous_attention/problem.h"
#include "maxsim/problem.h"
#include "self_attention/problem.h"
#include "simd/math.inl"
#include "gemm/rows.inl"
#include "gemm/tile.inl"
#include "gemm/dots.inl"
#include "gemm/factor.inl"
#include "gemm/dense.inl"
#include "pairs/prepare.inl"
#include "pairs/feature_gradients.inl"
#include "pairs/pooling.inl"
#include "cross_attention/attention.inl"
#include "cross_attention/forward.inl"
#include "cross_attention/backward.inl"
#include "cross_attention/feature_gradients.inl"
#include "heterogeneous_attention/layer.inl"
#include "heterogeneous_attention/matching.inl"
#include "heterogeneous_attention/forward.inl"
#include "heterogeneous_attention/backward.inl"
#include "maxsim/both.inl"
#include "maxsim/best.inl"
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
