// The stream that kernels are launched on and its device's properties. Needs no CUDA headers.
#pragma once

namespace crossret {
namespace gpu {

struct Stream {
  void* handle;         // cudaStream_t; for the tests, the device that runs kernels on the CPU
  int device;           // its index
  int multiprocessors;  // of the device
  int most_shared;      // bytes of shared memory that a block may ask for
  int capability;       // compute capability, 90 for 9.0
};

// A stream of a device, which becomes the current one.
Stream stream_of(int device, void* handle);

}  // namespace gpu
}  // namespace crossret
