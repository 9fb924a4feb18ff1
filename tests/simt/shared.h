// A block's shared memory, of which every access is checked, and the copies into it that are on their way.
//
// Memory starts poisoned, in every block. A shadow of each two bytes knows their last writer and each warp's last
// reader, with the clock of the accessing warp: an access is a race where it is not ordered behind an access of another
// thread, one of the two a write, whichever schedule runs. What a copy writes is nobody's until the thread that asked
// for it has waited, and that thread's from then on.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "machine.h"

namespace simt {

class SharedMemory {
 public:
  // Places are named in elements of `unit` bytes where there are more of them than one.
  SharedMemory(const char* name, char* begin, int64_t bytes, int64_t unit, int64_t alignment)
      : name_(name), unit_(unit), alignment_(alignment) {
    resize(begin, bytes);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void resize(char* begin, int64_t bytes) {
    begin_ = begin, bytes_ = bytes, serial_ = 0;
    if (granules_ >= (bytes + 1) / kGranule) return;
    granules_ = (bytes + 1) / kGranule;
    read_.clear();
    written_.assign(granules_, kNobody);
  }

  void read(int64_t at, void* to, int64_t bytes, int64_t alignment) {
    begin(at, bytes, alignment, "read");
    const uint32_t me = access();
    uint32_t* const readers = &read_[machine.warp() * granules_];
    uint32_t fine = kNobody;
    for (int64_t i = at / kGranule; i < (at + bytes) / kGranule; ++i) {
      const uint32_t writer = written_[i];
      if (writer == kNobody || writer != fine) check_written(i, writer);
      fine = writer;
      const bool same_clock = clock_of(readers[i]) == clock_of(me);
      readers[i] = same_clock && readers[i] != me ? me | kMany : me;
    }
    std::memcpy(to, begin_ + at, static_cast<size_t>(bytes));
  }

  void write(int64_t at, const void* from, int64_t bytes, int64_t alignment) {
    begin(at, bytes, alignment, "write");
    overwrite(at, bytes, "write", access());
    std::memcpy(begin_ + at, from, static_cast<size_t>(bytes));
  }

  // A copy is on its way, and has come.
  void expect(int64_t at, int64_t bytes) {
    begin(at, bytes, bytes, "copy");
    overwrite(at, bytes, "copy", machine.kNever << kThreadBits | static_cast<uint32_t>(machine.thread()));
  }
  void come(int64_t at, int64_t bytes) { std::fill_n(&written_[at / kGranule], bytes / kGranule, access()); }

  char* address(int64_t at) const { return begin_ + at; }

 private:
  // A clock, and the thread or kMany of one warp at that clock.
  static constexpr int kThreadBits = 11;
  static constexpr uint32_t kMany = (1u << kThreadBits) - 1, kNobody = 0;
  static constexpr int64_t kGranule = 2;

  static uint32_t access() { return machine.clock() << kThreadBits | static_cast<uint32_t>(machine.thread()); }
  static uint32_t clock_of(uint32_t access) { return access >> kThreadBits; }
  static uint32_t thread_of(uint32_t access) { return access & kMany; }

  std::string place(int64_t at) const {
    return unit_ == 1 ? name_ + (", byte " + std::to_string(at))
                      : name_ + ("[" + std::to_string(at >= 0 ? at / unit_ : -((unit_ - 1 - at) / unit_)) + "]");
  }

  void begin(int64_t at, int64_t bytes, int64_t alignment, const char* access) {
    if (serial_ != machine.serial()) begin_block();
    if (at < 0 || at + bytes > bytes_) {
      machine.fail(std::string("out-of-bounds shared ") + access, place(at) + " of " + std::to_string(bytes_ / unit_));
    }
    if (alignment > alignment_ || at % alignment != 0) {
      machine.fail(std::string("misaligned shared ") + access, place(at) + ", " + std::to_string(bytes) + " bytes");
    }
  }

  void begin_block() {
    serial_ = machine.serial();
    std::memset(begin_, 0xFF, static_cast<size_t>(bytes_));
    if (generation_ != machine.generation()) {
      generation_ = machine.generation();
      std::fill(written_.begin(), written_.end(), kNobody);
      std::fill(read_.begin(), read_.end(), kNobody);
    }
    const size_t all = static_cast<size_t>(granules_) * machine.warps();
    if (read_.size() < all) read_.resize(all, kNobody);
  }

  void check_written(int64_t granule, uint32_t writer) const {
    const int64_t at = granule * kGranule;
    if (clock_of(writer) <= machine.first_clock()) machine.fail("uninitialised shared read", place(at));
    check_landed(at, writer, "read");
    const int warp = static_cast<int>(thread_of(writer)) / kWarp;
    if (clock_of(writer) > seen(warp) && thread_of(writer) != me()) report("read after write", at, writer);
  }

  // By `access`, of this thread.
  void overwrite(int64_t at, int64_t bytes, const char* kind, uint32_t access) {
    const int64_t first = at / kGranule, last = (at + bytes) / kGranule;
    for (int64_t i = first; i < last; ++i) {
      const uint32_t writer = written_[i];
      const int warp = static_cast<int>(thread_of(writer)) / kWarp;
      if (clock_of(writer) > machine.first_clock() && clock_of(writer) > seen(warp)) {
        check_landed(i * kGranule, writer, kind);
        if (thread_of(writer) != me()) report("write after write", i * kGranule, writer);
      }
      written_[i] = access;
    }
    for (int warp = 0; warp < machine.warps(); ++warp) {
      const uint32_t known = seen(warp) << kThreadBits | kMany;
      const uint32_t* const readers = &read_[warp * granules_];
      for (int64_t i = first; i < last; ++i) {
        if (readers[i] > known && thread_of(readers[i]) != me()) report("write after read", i * kGranule, readers[i]);
      }
    }
  }

  // The last clock of a warp's that this thread's accesses are ordered behind.
  static uint32_t seen(int warp) { return machine.known(warp) - (warp == machine.warp() ? 1 : 0); }
  static uint32_t me() { return static_cast<uint32_t>(machine.thread()); }

  void check_landed(int64_t at, uint32_t writer, const char* access) const {
    if (clock_of(writer) != machine.kNever) return;
    machine.fail("unfinished copy", std::string(access) + " of " + place(at) + ", which thread " +
                                        std::to_string(thread_of(writer)) + " has not waited for");
  }

  void report(const char* race, int64_t at, uint32_t before) const {
    const std::string other =
        thread_of(before) == kMany ? "several threads" : "thread " + std::to_string(thread_of(before));
    machine.fail("race", std::string(race) + " of " + place(at) + ", no barrier after " + other);
  }

  std::string name_;
  int64_t unit_, alignment_, bytes_ = 0, granules_ = 0;
  char* begin_ = nullptr;
  uint64_t serial_ = 0;
  uint32_t generation_ = 0;
  std::vector<uint32_t> written_, read_;  // of granules, and of those of each warp
};

// An element of shared memory: read as T, written by assignment.
template <class T>
class SharedElement {
  using Value = std::remove_const_t<T>;
  static_assert(std::is_trivially_copyable_v<T>, "shared memory has no constructors");
  static_assert(sizeof(T) % 2 == 0, "single bytes have no shadow");

 public:
  SharedElement(SharedMemory& memory, int64_t at) : memory_(memory), at_(at) {}
  operator Value() const {  // NOLINT: reads as the element itself does
    Value value;
    memory_.read(at_, &value, sizeof value, alignof(T));
    return value;
  }
  SharedElement& operator=(const Value& value) {
    static_assert(!std::is_const_v<T>, "only read");
    memory_.write(at_, &value, sizeof value, alignof(T));
    return *this;
  }
  SharedElement& operator=(const SharedElement& other) { return *this = static_cast<Value>(other); }

 private:
  SharedMemory& memory_;
  int64_t at_;
};

// A pointer into shared memory.
template <class T>
class Shared {
 public:
  Shared() = default;
  Shared(SharedMemory* memory, int64_t at) : memory_(memory), at_(at) {}
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  Shared(const Shared<U>& other) : memory_(other.memory()), at_(other.at()) {}  // NOLINT: as of plain pointers
  template <class U>
  explicit operator Shared<U>() const {
    return {memory_, at_};
  }

  Shared operator+(int64_t n) const { return {memory_, at_ + n * static_cast<int64_t>(sizeof(T))}; }
  SharedElement<T> operator[](int64_t n) const {
    if (memory_ == nullptr) machine.fail("no shared memory", "a pointer to nothing");
    return {*memory_, (*this + n).at_};
  }

  SharedMemory* memory() const { return memory_; }
  int64_t at() const { return at_; }  // in bytes

 private:
  SharedMemory* memory_ = nullptr;
  int64_t at_ = 0;
};

// An array that the kernel names.
template <class T, int count>
class SharedArray {
 public:
  explicit SharedArray(const char* name)
      : memory_(name, reinterpret_cast<char*>(values_), sizeof values_, sizeof(T), alignof(T)) {}

  SharedElement<T> operator[](int64_t at) { return Shared<T>(*this)[at]; }
  operator Shared<T>() { return {&memory_, 0}; }  // NOLINT: as arrays become pointers

 private:
  T values_[count];
  SharedMemory memory_;
};

// The bytes that a launch asks for, at multiples of 128.
class DynamicMemory {
 public:
  static constexpr int kMost = 227 << 10;  // of any GPU

  void resize(int bytes) { memory_.resize(bytes_, bytes); }
  SharedMemory& memory() { return memory_; }

 private:
  alignas(128) char bytes_[kMost];
  SharedMemory memory_{"dynamic shared memory", bytes_, 0, 1, 128};
};

inline DynamicMemory dynamic_memory;

// Asynchronous copies of 16 bytes by the threads of a block.
class Copies {
 public:
  static constexpr int kBytes = 16;

  void begin(int threads) { queues_.assign(threads, Queue{}); }

  // The first `given` bytes are the source's, the others zero.
  void issue(SharedMemory& memory, int64_t at, const void* from, int given) {
    memory.expect(at, kBytes);
    const Copy copy{&memory, at, static_cast<const char*>(from), given};
    mine().copies.push_back(copy);
    if (!machine.schedule().late()) perform(copy);
  }
  void commit() { mine().groups.push_back(mine().copies.size()); }
  // For all groups but the latest n.
  void wait(size_t n) {
    Queue& queue = mine();
    if (queue.groups.size() <= n) return;
    const size_t done = queue.groups.size() - n, count = queue.groups[done - 1];
    for (size_t i = 0; i < count; ++i) {
      const Copy& copy = queue.copies[i];
      if (machine.schedule().late()) perform(copy);
      copy.memory->come(copy.at, kBytes);
    }
    queue.copies.erase(queue.copies.begin(), queue.copies.begin() + count);
    queue.groups.erase(queue.groups.begin(), queue.groups.begin() + done);
    for (size_t& end : queue.groups) end -= count;
  }
  void end_thread() {
    if (mine().copies.empty()) return mine().groups.clear();
    machine.fail("unfinished copy", std::to_string(mine().copies.size()) + " that the thread has not waited for");
  }

 private:
  struct Copy {
    SharedMemory* memory;
    int64_t at;
    const char* from;
    int given;
  };
  struct Queue {
    std::vector<Copy> copies;
    std::vector<size_t> groups;  // where each ends
  };

  Queue& mine() { return queues_[machine.thread()]; }

  static void perform(const Copy& copy) {
    char* const to = copy.memory->address(copy.at);
    if (copy.given > 0) std::memcpy(to, copy.from, copy.given);
    std::memset(to + copy.given, 0, kBytes - copy.given);
  }

  std::vector<Queue> queues_;
};

inline Copies copies;

}  // namespace simt
