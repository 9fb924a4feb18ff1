// Memory that is kept between uses and allocated again only where more is wanted.
#pragma once
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <memory>
#include <new>

namespace crossret {

// Asks for large pages of fresh memory: faults of small pages in large results take longer than computing them.
inline void in_large_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t page = 4096;
  constexpr int64_t large = int64_t{4} << 20;
  if (bytes < large) return;
  const auto first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // small pages stay where it fails
#else
  (void)data, (void)bytes;
#endif
}

class Memory {
 public:
  // At least so many bytes, aligned to a cache line; their contents are lost.
  void* bytes(int64_t count) {
    if (count > size_) {
      data_.reset();  // first: never both at once
      size_ = 0;
      data_.reset(static_cast<char*>(::operator new(count, kAlignment)));
      size_ = count;
      in_large_pages(data_.get(), count);
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
