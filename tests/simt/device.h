// Memory of the device, in buffers, and launches of kernels over it.
//
// It is checked for its bounds, for alignment, for reads of what nobody wrote, and for accesses of two blocks of one
// launch of which one is a write; accesses of threads of one block to it are not ordered against each other.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "copies.h"
#include "machine.h"
#include "shared.h"

namespace simt {

class Device {
 public:
  // What is given, read only; what kernels fill before they read it; what is given, and written too.
  enum class Kind { input, output, updated };

  explicit Device(const Schedule& schedule) : schedule_(schedule) { current_ = this; }
  ~Device() { current_ = nullptr; }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int add(const char* name, const void* begin, int64_t bytes, Kind kind) {
    buffers_.push_back({name, static_cast<const char*>(begin), bytes, kind, {}});
    buffers_.back().granules.assign((bytes + 1) / 2, Granule{0, 0, kind != Kind::output});
    return static_cast<int>(buffers_.size()) - 1;
  }

  // Bytes of shared memory that a kernel may have besides its own, where it may have more than all may.
  void allow(const void* kernel, int64_t bytes) { allowed_[kernel] = std::max(allowed_[kernel], bytes); }
  int64_t allowed(const void* kernel) { return allowed_[kernel]; }

  void launch(const char* kernel, int grid_x, int grid_y, int threads, int shared_bytes,
              const std::function<void()>& body, int cluster = 1) {
    if (shared_bytes < 0 || shared_bytes > DynamicMemory::kMost) throw Mistake("more shared memory than any GPU has");
    dynamic_memory.resize(shared_bytes, cluster);
    copies.begin(threads * cluster);
    many_ = next_;
    next_ += 1 + static_cast<uint32_t>(grid_x) * grid_y;
    machine.launch(kernel, schedule_, grid_x, grid_y, threads, cluster, [&] {
      body();
      copies.end_thread();
    });
  }

  // An access by the code that calls this; of 12 bytes at a multiple of 4.
  template <class T>
  [[gnu::noinline]] static void access(int number, const void* address, bool write) {
    constexpr int64_t bytes = sizeof(T);
    check(number, address, bytes, write, bytes & -bytes);
    traffic.access(Traffic::Kind::global, __builtin_return_address(0), machine.thread(),
                   reinterpret_cast<intptr_t>(address), bytes, alignof(T));
  }
  static void check(int number, const void* address, int64_t bytes, bool write, int64_t alignment) {
    const char* const access = write ? "global write" : "global read";
    if (number < 0) machine.fail(std::string("out-of-bounds ") + access, "a pointer to nothing");
    Buffer& buffer = current_->buffers_[number];
    const int64_t at = static_cast<const char*>(address) - buffer.begin;
    const auto place = [&] { return std::string(buffer.name) + ", byte " + std::to_string(at); };
    if (at < 0 || at + bytes > buffer.bytes) {
      machine.fail(std::string("out-of-bounds ") + access, place() + " of " + std::to_string(buffer.bytes));
    }
    if (reinterpret_cast<uintptr_t>(address) % alignment != 0) {
      machine.fail(std::string("misaligned ") + access, place() + ", " + std::to_string(bytes) + " bytes");
    }
    if (write && buffer.kind == Kind::input) machine.fail("write to input", place());
    const uint32_t many = current_->many_, me = many + 1 + machine.block_number();
    for (int64_t i = at / 2; i < (at + bytes + 1) / 2; ++i) {
      Granule& granule = buffer.granules[i];
      if (!write && !granule.written) machine.fail("uninitialised global read", place());
      const bool written = granule.writer >= many && granule.writer != me;
      if (written || (write && granule.reader >= many && granule.reader != me)) {
        machine.fail(
            "race", std::string(access) + " of " + place() + " beside another block's " + (written ? "write" : "read"));
      }
      if (write) {
        granule.writer = me, granule.written = true;
      } else {
        granule.reader = granule.reader < many || granule.reader == me ? me : many;
      }
    }
  }

 private:
  struct Granule {
    uint32_t writer, reader;  // blocks, of this launch from `many_` on
    bool written;
  };
  struct Buffer {
    const char* name;
    const char* begin;
    int64_t bytes;
    Kind kind;
    std::vector<Granule> granules;  // of 2 bytes
  };

  inline static Device* current_ = nullptr;

  Schedule schedule_;
  std::vector<Buffer> buffers_;
  std::map<const void*, int64_t> allowed_;
  // Blocks are numbered from launch to launch, so that none has to forget the one before. Of several readers in this
  // one `many_`, of its blocks what follows it.
  uint32_t many_ = 1, next_ = 1;
};

}  // namespace simt
