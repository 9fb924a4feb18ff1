/* A CUDA driver that does nothing and counts launches: what Triton's launcher needs of libcuda to run without a GPU. */

#include <stddef.h>
#include <stdint.h>

enum { COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76, MULTIPROCESSORS = 16, MAX_THREADS_PER_BLOCK = 0 };

static void* const SOMETHING = (void*)1;
static long launches;

long idle_launches(void) { return launches; }

#define DOES_NOTHING(name) \
  int name(void) { return 0; }
DOES_NOTHING(cuInit)
DOES_NOTHING(cuCtxSetCurrent)
DOES_NOTHING(cuCtxSetLimit)
DOES_NOTHING(cuDevicePrimaryCtxRelease)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuFuncSetCacheConfig)
DOES_NOTHING(cuPointerGetAttributes)
DOES_NOTHING(cuOccupancyMaxActiveClusters)
DOES_NOTHING(cuTensorMapEncodeTiled)
DOES_NOTHING(cuTensorMapEncodeIm2col)

#define SETS(name, type, value, ...)                  \
  int name(type* result __VA_OPT__(, ) __VA_ARGS__) { \
    *result = (value);                                \
    return 0;                                         \
  }
SETS(cuDeviceGet, int, 0, int device)
SETS(cuDeviceGetCount, int, 1)
SETS(cuDriverGetVersion, int, 13000)
SETS(cuCtxGetDevice, int, 0)
SETS(cuCtxGetCurrent, void*, SOMETHING)
SETS(cuCtxGetLimit, size_t, 1 << 20, int limit)
SETS(cuDevicePrimaryCtxRetain, void*, SOMETHING, int device)
SETS(cuModuleLoadData, void*, SOMETHING, const void* image)
SETS(cuModuleGetFunction, void*, SOMETHING, void* module, const char* name)
SETS(cuFuncGetAttribute, int, attribute == MAX_THREADS_PER_BLOCK ? 1024 : 0, int attribute, void* function)

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      break;
    case MULTIPROCESSORS:
      *value = 132;
      break;
    default:
      *value = 232448; /* bytes of shared memory, which nothing else asked for exceeds */
  }
  return 0;
}

int cuPointerGetAttribute(void* result, int attribute, uint64_t pointer) {
  (void)attribute;
  *(uint64_t*)result = pointer; /* the device's address of memory on the host */
  return 0;
}

int cuStreamIsCapturing(void* stream, int* capturing) {
  (void)stream;
  *capturing = 0;
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  (void)error;
  *text = "nothing is wrong";
  return 0;
}

int cuLaunchKernelEx(const void* configuration, void* function, void** arguments, void** extra) {
  (void)configuration, (void)function, (void)arguments, (void)extra;
  launches++;
  return 0;
}
