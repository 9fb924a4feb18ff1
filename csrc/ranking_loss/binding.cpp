#include <torch/csrc/stable/library.h>

#include "ranking_loss/operation.h"

namespace crossret {

STABLE_TORCH_LIBRARY_IMPL(crossret, CPU, library) {
  for (const char* name : {"triplet_loss", "triplet_loss.plain"}) library.impl(name, &triplet_loss);
  for (const char* name : {"triplet_loss_backward", "triplet_loss_backward.plain"}) {
    library.impl(name, &triplet_loss_gradient);
  }
}

}  // namespace crossret
