// Registers the CUDA kernels with torch's stable ABI.
#include <torch/csrc/stable/library.h>

#include <string>

#include "cross_attention/operations.h"
#include "cuda/torch_stream.h"
#include "maxsim/launches.h"
#include "ranking_loss/operation.h"
#include "topk/operation.h"

namespace crossret {

namespace {

#ifndef CROSSRET_SIMT
std::string cuda_architectures() { return CROSSRET_CUDA_ARCHITECTURES; }
#endif

// What host code has to know of the kernels.
std::string cuda_told() { return attention_told() + maxsim_told(); }

}  // namespace

// Once more, so that the key is spelt out first.
#define CROSSRET_IMPL(key, library) STABLE_TORCH_LIBRARY_IMPL(crossret, key, library)

CROSSRET_IMPL(CROSSRET_KEY, library) {
  for (const char* name : {"triplet_loss_cuda", "triplet_loss_cuda.plain"}) library.impl(name, &triplet_loss);
  for (const char* name : {"triplet_loss_cuda_backward", "triplet_loss_cuda_backward.plain"}) {
    library.impl(name, &triplet_loss_gradient);
  }
  library.impl("merge_topk_cuda", TORCH_BOX(&merge_topk));
  library.impl("pack_side_cuda", TORCH_BOX(&pack_side));
  library.impl("attend_cuda", TORCH_BOX(&attend));
  library.impl("attention_gradients_cuda", TORCH_BOX(&attention_gradients));
  library.impl("finish_gradients_cuda", TORCH_BOX(&finish_gradients));
  library.impl("maxsim_norms_cuda", TORCH_BOX(&maxsim_norms));
  library.impl("maxsim_search_cuda", TORCH_BOX(&maxsim_search));
  library.impl("maxsim_gradients_cuda", TORCH_BOX(&maxsim_gradients));
}

// What is asked of no device.
STABLE_TORCH_LIBRARY_IMPL(crossret, CompositeExplicitAutograd, library) {
  library.impl("attention_job_sizes", TORCH_BOX(&attention_job_sizes));
  library.impl("most_attended_rows", TORCH_BOX(&most_attended_rows));
  library.impl("cuda_told", TORCH_BOX(&cuda_told));
#ifndef CROSSRET_SIMT
  library.impl("cuda_architectures", TORCH_BOX(&cuda_architectures));
#endif
}

}  // namespace crossret
