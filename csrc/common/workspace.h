// A worker's scratch memory: handed out front to back, nothing freed. Without memory it only counts what would be
// needed.
#pragma once
#include <cstdint>

namespace crossret {

class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(void* memory) : memory_(static_cast<char*>(memory)) {}

  float* floats(int64_t count) {
    constexpr int64_t line = 64;
    char* start = memory_ ? memory_ + used_ : nullptr;
    used_ += (count * static_cast<int64_t>(sizeof(float)) + line - 1) / line * line;
    return reinterpret_cast<float*>(start);
  }

  int64_t bytes() const { return used_; }

 private:
  char* memory_ = nullptr;
  int64_t used_ = 0;
};

}  // namespace crossret
