// Memory that is used many times over: taken anew only where more is wanted than before.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

namespace crossret {

class Memory {
 public:
  // At least so many bytes, on a cache line; what they held before is lost.
  void* bytes(int64_t count) {
    if (count > size_) {
      data_.reset();  // first: never both at once
      size_ = 0;
      data_.reset(static_cast<char*>(::operator new(count, kAlignment)));
      size_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::unique_ptr<char, Free> data_;
  int64_t size_ = 0;
};

}  // namespace crossret
