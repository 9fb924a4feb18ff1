// A worker's scratch memory: handed out front to back, nothing freed. Without memory it only counts what would be
// needed.
#pragma once
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace crossret {

class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(void* memory) : memory_(static_cast<char*>(memory)) {}

  float* floats(int64_t count) {
    constexpr int64_t line = 64;
    const int64_t wanted = count * static_cast<int64_t>(sizeof(float));
    char* start = memory_ ? memory_ + used_ : nullptr;
    used_ += (wanted + kGuard + line - 1) / line * line;
    guard(start, wanted);
    return reinterpret_cast<float*>(start);
  }

  int64_t bytes() const { return used_; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  // AddressSanitizer watches what lies between the pieces, as it does of itself between blocks of the heap.
  static constexpr int64_t kGuard = 64;
  void guard(char* start, int64_t wanted) const {
    if (start == nullptr) return;
    ASAN_UNPOISON_MEMORY_REGION(start, wanted);
    ASAN_POISON_MEMORY_REGION(start + wanted, memory_ + used_ - (start + wanted));
  }
#else
  static constexpr int64_t kGuard = 0;
  void guard(char*, int64_t) const {}
#endif

  char* memory_ = nullptr;
  int64_t used_ = 0;
};

}  // namespace crossret
