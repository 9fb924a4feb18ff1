// The workspace of a thread: memory handed out front to back, nothing freed. Without memory it counts what is taken.
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

  template <class T>
  T** addresses(int64_t count) {
    static_assert(sizeof(T*) == 2 * sizeof(float));
    return reinterpret_cast<T**>(floats(2 * count));
  }

  int64_t bytes() const { return used_; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  // Guards between pieces, which AddressSanitizer watches as it does those between blocks of the heap.
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
