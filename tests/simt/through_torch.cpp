// What tests choose for calls that come through torch, and a kernel launched as the operations' are.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "cuda/launch.cuh"
#include "cuda/torch_stream.h"
#include "planted.cuh"

extern "C" __attribute__((visibility("default"))) void choose(int order, uint64_t seed, int multiprocessors,
                                                              int most_shared, int capability, int idle) {
  crossret::gpu::chosen_by_tests = {
      {static_cast<simt::Order>(order), seed}, multiprocessors, most_shared, capability, idle != 0};
}

namespace {

using torch::stable::Tensor;
using namespace crossret::gpu;

// The numbers, kThreads a block, each block's in reverse; with the mistake that is planted in it.
Tensor reversed(Tensor numbers, bool planted, int64_t blocks_x, int64_t blocks_y, int64_t shared_bytes) {
  const Tensor made = torch::stable::empty_like(numbers);
  const CurrentStream stream(numbers);
  const planted::Call call{planted, input<float>(stream, "in", numbers.const_data_ptr(), numbers.numel()),
                           output<float>(stream, "out", made.mutable_data_ptr(), numbers.numel())};
  launch("two_writers", planted::two_writers, {blocks_x, blocks_y, planted::kThreads, shared_bytes}, stream, call);
  return made;
}

}  // namespace

STABLE_TORCH_LIBRARY(crossret_simt, library) {
  library.def("reversed(Tensor numbers, bool planted, int blocks_x, int blocks_y, int shared_bytes) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(crossret_simt, CPU, library) { library.impl("reversed", TORCH_BOX(&reversed)); }
