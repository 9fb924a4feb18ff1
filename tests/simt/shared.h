// A block's shared memory, of which every access is checked, and the copies into it that are on their way.
//
// Memory starts poisoned, in every block. A shadow of each two bytes knows their last writer and each warp's last
// reader, with the clock of the accessing warp: an access is a race where it is not ordered behind an access of another
// thread, one of the two a write, whichever schedule runs. What a copy writes is nobody's until the thread that asked
// for it has waited, and that thread's from then on.
#pragma once
#include <emmintrin.h>

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

  void resize(char* begin, int64_t bytes) { begin_ = begin, bytes_ = bytes, serial_ = 0; }

  template <int bytes, int alignment>
  [[gnu::noinline]] void read(int64_t at, void* to) {
    traffic.access(Traffic::Kind::shared, __builtin_return_address(0), machine.thread(), at, bytes, alignment);
    check_place<bytes, alignment>(at, "read");
    const Access me = machine.access();
    constexpr int n = bytes / kGranule;
    const Access* const writers = &written_[at / kGranule];
    if (!all_before<n>(writers) || machine.earlier_block(writers[0])) check_written(at, bytes);
    Access* const readers = readers_of(machine.warp()) + at / kGranule;
    if constexpr (n % 4 == 0) {
      const __m128i mine = _mm_set1_epi32(me), clock = _mm_set1_epi32(clock_of(me)), many = _mm_set1_epi32(kMany);
      for (int i = 0; i < n; i += 4) {
        const __m128i before = four(readers + i);
        const __m128i same_clock = _mm_cmpeq_epi32(_mm_srli_epi32(before, kThreadBits), clock);
        const __m128i others = _mm_andnot_si128(_mm_cmpeq_epi32(before, mine), same_clock);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(readers + i), _mm_or_si128(mine, _mm_and_si128(others, many)));
      }
    } else {
      for (int i = 0; i < n; ++i) {
        readers[i] = clock_of(readers[i]) == clock_of(me) && readers[i] != me ? me | kMany : me;
      }
    }
    std::memcpy(to, begin_ + at, bytes);
  }

  template <int bytes, int alignment>
  [[gnu::noinline]] void write(int64_t at, const void* from) {
    traffic.access(Traffic::Kind::shared, __builtin_return_address(0), machine.thread(), at, bytes, alignment);
    check_place<bytes, alignment>(at, "write");
    overwrite<bytes>(at, "write", machine.access());
    std::memcpy(begin_ + at, from, bytes);
  }

  // A copy is on its way, and has come.
  template <int bytes>
  void expect(int64_t at) {
    check_place<bytes, bytes>(at, "copy");
    overwrite<bytes>(at, "copy", access_by(machine.kNever, me()));
  }
  template <int bytes>
  void come(int64_t at) {
    std::fill_n(&written_[at / kGranule], bytes / kGranule, machine.access());
  }

  char* address(int64_t at) const { return begin_ + at; }

 private:
  static constexpr Access kNobody = 0;
  static constexpr int64_t kGranule = 2;

  template <int bytes, int alignment>
  void check_place(int64_t at, const char* access) {
    if (serial_ != machine.serial()) begin_block();
    const bool outside = at < 0 || at + bytes > bytes_, misaligned = alignment > alignment_ || at % alignment != 0;
    if (outside || misaligned) refuse(at, bytes, access, outside);
  }

  void begin_block() {
    serial_ = machine.serial();
    std::memset(begin_, 0xFF, static_cast<size_t>(bytes_));
    const int64_t granules = (bytes_ + 1) / kGranule;
    if (granules > static_cast<int64_t>(written_.size()) || generation_ != machine.generation()) {
      generation_ = machine.generation(), stride_ = granules + 16;  // no two rows in the same lines of a cache
      written_.assign(granules, kNobody);
      read_.clear();
    }
    const size_t all = static_cast<size_t>(stride_) * machine.warps();
    if (read_.size() < all) read_.resize(all, kNobody);
  }

  // By this thread; `access` is what is left of it.
  template <int bytes>
  void overwrite(int64_t at, const char* kind, Access access) {
    constexpr int n = bytes / kGranule;
    Access* const writers = &written_[at / kGranule];
    bool late = !all_before<n>(writers);
    const Access* readers = readers_of(0) + at / kGranule;
    __m128i later = _mm_setzero_si128();
    for (int warp = 0; warp < machine.warps(); ++warp, readers += stride_) {
      const Access behind = machine.behind()[warp];
      if constexpr (n % 4 == 0) {
        const __m128i known = _mm_set1_epi32(behind);
        for (int i = 0; i < n; i += 4) later = _mm_or_si128(later, _mm_cmpgt_epi32(four(readers + i), known));
      } else {
        for (int i = 0; i < n; ++i) late |= readers[i] > behind;
      }
    }
    if (late || _mm_movemask_epi8(later) != 0) check_overwritten(at, bytes, kind);
    std::fill_n(writers, n, access);
  }

  static __m128i four(const Access* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

  // Whether all of these are one access, which the running thread's are ordered behind: the usual.
  template <int n>
  static bool all_before(const Access* accesses) {
    const Access first = accesses[0];
    bool same = true;
    if constexpr (n % 4 == 0) {
      for (int i = 0; i < n; i += 4) {
        same = same && _mm_movemask_epi8(_mm_cmpeq_epi32(four(accesses + i), _mm_set1_epi32(first))) == 0xFFFF;
      }
    } else {
      for (int i = 1; i < n; ++i) same = same && accesses[i] == first;
    }
    return same && first <= machine.behind()[thread_of(first) / kWarp];
  }

  Access* readers_of(int warp) { return &read_[warp * stride_]; }

  // What follows is for accesses beside the usual: it judges or reports.

  static uint32_t me() { return static_cast<uint32_t>(machine.thread()); }

  static bool ordered(Access before) {
    return before <= machine.behind()[thread_of(before) / kWarp] || thread_of(before) == me();
  }

  void check_written(int64_t first, int64_t bytes) const {
    for (int64_t at = first; at < first + bytes; at += kGranule) {
      const Access writer = written_[at / kGranule];
      if (machine.earlier_block(writer)) machine.fail("uninitialised shared read", place(at));
      check_landed(at, writer, "read");
      if (!ordered(writer)) report("read after write", at, writer);
    }
  }

  void check_overwritten(int64_t first, int64_t bytes, const char* kind) const {
    for (int64_t at = first; at < first + bytes; at += kGranule) {
      const Access writer = written_[at / kGranule];
      if (!machine.earlier_block(writer)) check_landed(at, writer, kind);
      if (!ordered(writer)) report("write after write", at, writer);
      for (int warp = 0; warp < machine.warps(); ++warp) {
        const Access reader = read_[warp * stride_ + at / kGranule];
        const bool other = thread_of(reader) != me();
        if (other && reader > machine.behind()[warp]) report("write after read", at, reader);
      }
    }
  }

  void check_landed(int64_t at, Access writer, const char* access) const {
    if (clock_of(writer) != machine.kNever) return;
    machine.fail("unfinished copy", std::string(access) + " of " + place(at) + ", which thread " +
                                        std::to_string(thread_of(writer)) + " has not waited for");
  }

  [[noreturn, gnu::cold]] void report(const char* race, int64_t at, Access before) const {
    const std::string other =
        thread_of(before) == kMany ? "several threads" : "thread " + std::to_string(thread_of(before));
    machine.fail("race", std::string(race) + " of " + place(at) + ", no barrier after " + other);
  }

  [[noreturn, gnu::cold]] void refuse(int64_t at, int64_t bytes, const char* access, bool outside) const {
    if (outside) {
      machine.fail(std::string("out-of-bounds shared ") + access, place(at) + " of " + std::to_string(bytes_ / unit_));
    }
    machine.fail(std::string("misaligned shared ") + access, place(at) + ", " + std::to_string(bytes) + " bytes");
  }

  std::string place(int64_t at) const {
    if (unit_ == 1) return name_ + ", byte " + std::to_string(at);
    return name_ + "[" + std::to_string(at >= 0 ? at / unit_ : -((unit_ - 1 - at) / unit_)) + "]";
  }

  std::string name_;
  int64_t unit_, alignment_, bytes_ = 0;
  char* begin_ = nullptr;
  uint64_t serial_ = 0;
  uint32_t generation_ = 0;
  int64_t stride_ = 0;
  std::vector<Access> written_, read_;  // of granules; of each warp a row of them, `stride_` apart
};

// An element of shared memory: read as T, written by assignment.
template <class T>
class SharedElement {
  using Value = std::remove_const_t<T>;
  static_assert(std::is_trivially_copyable_v<T>, "shared memory has no constructors");
  static_assert(sizeof(T) % 2 == 0, "single bytes have no shadow");

 public:
  SharedElement(SharedMemory& memory, int64_t at) : memory_(memory), at_(at) {}
  [[gnu::always_inline]] operator Value() const {  // NOLINT: reads as the element itself does
    Value value;
    memory_.read<sizeof(T), alignof(T)>(at_, &value);
    return value;
  }
  [[gnu::always_inline]] SharedElement& operator=(const Value& value) {
    static_assert(!std::is_const_v<T>, "only read");
    memory_.write<sizeof(T), alignof(T)>(at_, &value);
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

// The bytes that a launch asks for, at multiples of 128, behind what its kernel declares.
class DynamicMemory {
 public:
  static constexpr int kMost = 227 << 10, kUnasked = 48 << 10;  // of any GPU

  // Together with what kernels declare.
  int64_t most = kMost;

  void resize(int bytes) { memory_.resize(bytes_, bytes), asked_ = bytes; }
  SharedMemory& memory() { return memory_; }

  // By a kernel, once a block.
  void declare(int64_t bytes) {
    if (serial_ != machine.serial()) serial_ = machine.serial(), declared_ = 0;
    declared_ += bytes;
    const int64_t all = (declared_ + 127) / 128 * 128 + asked_;
    if (asked_ > 0 && all > most) {
      machine.fail("too much shared memory", std::to_string(all) + " bytes, and it may have " + std::to_string(most));
    }
  }

 private:
  alignas(128) char bytes_[kMost];
  SharedMemory memory_{"dynamic shared memory", bytes_, 0, 1, 128};
  uint64_t serial_ = 0;
  int64_t asked_ = 0, declared_ = 0;
};

inline DynamicMemory dynamic_memory;

// An array that the kernel names.
template <class T, int count>
class SharedArray {
 public:
  explicit SharedArray(const char* name)
      : memory_(name, reinterpret_cast<char*>(values_), sizeof values_, sizeof(T), alignof(T)) {}

  void declare() {
    if (serial_ != machine.serial()) serial_ = machine.serial(), dynamic_memory.declare(sizeof values_);
  }

  SharedElement<T> operator[](int64_t at) { return Shared<T>(*this)[at]; }
  operator Shared<T>() { return {&memory_, 0}; }  // NOLINT: as arrays become pointers

 private:
  T values_[count];
  SharedMemory memory_;
  uint64_t serial_ = 0;
};

// Asynchronous copies of 16 bytes by the threads of a block.
class Copies {
 public:
  static constexpr int kBytes = 16;

  void begin(int threads) { queues_.assign(threads, Queue{}); }

  void issue(SharedMemory& memory, int64_t at, const void* from) {
    memory.expect<kBytes>(at);
    const Copy copy{&memory, at, from};
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
      copy.memory->come<kBytes>(copy.at);
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
    const void* from;
  };
  struct Queue {
    std::vector<Copy> copies;
    std::vector<size_t> groups;  // where each ends
  };

  Queue& mine() { return queues_[machine.thread()]; }

  static void perform(const Copy& copy) { std::memcpy(copy.memory->address(copy.at), copy.from, kBytes); }

  std::vector<Queue> queues_;
};

inline Copies copies;

}  // namespace simt
