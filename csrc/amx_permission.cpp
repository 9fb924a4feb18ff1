#include "amx_permission.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace crossret {

bool amx_permitted() {
  static const bool permitted = [] {
    constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & bf16) == 0 || (edx & tile) == 0) return false;
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
  }();
  return permitted;
}

}  // namespace crossret
#else
namespace crossret {

bool amx_permitted() { return false; }

}  // namespace crossret
#endif
