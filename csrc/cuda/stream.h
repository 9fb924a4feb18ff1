// The stream that kernels are launched on, and what its device can do. What includes this needs no CUDA.
#pragma once

namespace crossret {
namespace gpu {

struct Stream {
  void* handle;         // cudaStream_t; for the tests, the device that runs kernels on the CPU
  int device;           // its index
  int multiprocessors;  // of the device
  int most_shared;      // bytes of shared memory that a block may ask for
};

// A stream of a device, which becomes current. What the device can do is asked once a process.
Stream stream_of(int device, void* handle);

}  // namespace gpu
}  // namespace crossret
