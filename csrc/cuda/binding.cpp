// Registers the architectures of the CUDA library with torch's stable ABI; operations register themselves.
#include <torch/csrc/stable/library.h>

#include <string>

#include "cuda/torch_stream.h"

#ifndef CROSSRET_SIMT
namespace crossret {

static std::string cuda_architectures() { return CROSSRET_CUDA_ARCHITECTURES; }

CROSSRET_ANYWHERE(library) { library.impl("cuda_architectures", TORCH_BOX(&cuda_architectures)); }

}  // namespace crossret
#endif
