// A block's shared memory, of which every access is checked.
//
// Memory starts poisoned, in every block. A shadow of each two bytes knows their last writer and each warp's last
// reader, with the clock of the accessing warp: an access is a race where it is not ordered behind an access of another
// thread, one of the two a write, whichever schedule runs.
#pragma once
#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "machine.h"
#include "product_clocks.h"

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
    get<bytes, alignment>(at, to);
  }

  template <int bytes, int alignment>
  [[gnu::noinline]] void write(int64_t at, const void* from) {
    traffic.access(Traffic::Kind::shared, __builtin_return_address(0), machine.thread(), at, bytes, alignment);
    put<bytes, alignment>(at, from);
  }

  // The same, uncounted.
  template <int bytes, int alignment>
  [[gnu::always_inline]] void get(int64_t at, void* to) {
    check_place<bytes, alignment>(at, "read");
    const Access me = machine.access(), known = machine.behind()[machine.warp()];
    constexpr int n = bytes / kGranule;
    const Access* const writers = &written_[at / kGranule];
    if (!all_before<n>(writers) || machine.earlier_block(writers[0])) check_written(at, bytes);
    Access* const readers = readers_of(machine.warp()) + at / kGranule;
    if constexpr (n % 4 == 0) {
      // A thread that has not met this one since is another reader.
      const __m128i mine = _mm_set1_epi32(me), met = _mm_set1_epi32(known), many = _mm_set1_epi32(kMany);
      for (int i = 0; i < n; i += 4) {
        const __m128i before = four(readers + i);
        const __m128i own = _mm_cmpeq_epi32(_mm_and_si128(_mm_xor_si128(before, mine), many), _mm_setzero_si128());
        const __m128i others = _mm_andnot_si128(own, _mm_cmpgt_epi32(before, met));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(readers + i), _mm_or_si128(mine, _mm_and_si128(others, many)));
      }
    } else {
      for (int i = 0; i < n; ++i) {
        readers[i] = readers[i] > known && thread_of(readers[i]) != thread_of(me) ? me | kMany : me;
      }
    }
    std::memcpy(to, begin_ + at, bytes);
  }

  template <int bytes, int alignment>
  [[gnu::always_inline]] void put(int64_t at, const void* from) {
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

  // 16 bytes of a box that comes, written as `access` tells.
  void write_by_copy(int64_t at, Access access) {
    check_place<kChunk, kChunk>(at, "copy");
    check_fenced(at, "copy", machine.knowledge(), machine.thread());
    overwrite<kChunk>(at, "copy", access);
  }
  // 16 bytes that products of a warpgroup read, all of whose threads have this knowledge.
  void read_by_products(int64_t at, int group, Access access, const Knowledge& known) {
    check_place<kChunk, kChunk>(at, "product");
    check_written(at, kChunk, "product", known);
    check_fenced(at, "product", known, -1);
    std::fill_n(readers_of(machine.warps() + group) + at / kGranule, kChunk / kGranule, access);
  }
  // Whether all these bytes lie in it.
  void check_box(int64_t at, int64_t bytes, int64_t alignment) {
    if (serial_ != machine.serial()) begin_block();
    const bool outside = at < 0 || at + bytes > bytes_;
    if (outside || at % alignment != 0 || alignment > alignment_)
      refuse(outside ? std::max(at, bytes_) : at, bytes, "copy", outside);
  }
  Access writer(int64_t at) const { return written_[at / kGranule]; }

  char* address(int64_t at) const { return begin_ + at; }
  std::string place(int64_t at) const {
    if (unit_ == 1) return name_ + ", byte " + std::to_string(at);
    return name_ + "[" + std::to_string(at >= 0 ? at / unit_ : -((unit_ - 1 - at) / unit_)) + "]";
  }

 private:
  static constexpr Access kNobody = 0;
  static constexpr int64_t kGranule = 2;
  static constexpr int kChunk = 16;

  template <int bytes, int alignment>
  [[gnu::always_inline]] void check_place(int64_t at, const char* access) {
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
    const size_t all = static_cast<size_t>(stride_) * (machine.warps() + machine.groups());
    if (read_.size() < all) read_.resize(all, kNobody);
  }

  // By this thread; `access` is what is left of it.
  template <int bytes>
  [[gnu::always_inline]] void overwrite(int64_t at, const char* kind, Access access) {
    constexpr int n = bytes / kGranule;
    Access* const writers = &written_[at / kGranule];
    bool late = !all_before<n>(writers);
    const Access* readers = readers_of(0) + at / kGranule;
    __m128i later = _mm_setzero_si128();
    const auto compare = [&](Access behind) {
      if constexpr (n % 4 == 0) {
        const __m128i known = _mm_set1_epi32(behind);
        for (int i = 0; i < n; i += 4) later = _mm_or_si128(later, _mm_cmpgt_epi32(four(readers + i), known));
      } else {
        for (int i = 0; i < n; ++i) late |= readers[i] > behind;
      }
      readers += stride_;
    };
    const Access* const behind = machine.behind();
    for (int warp = 0; warp < machine.warps(); ++warp) compare(behind[warp]);
    for (int group = 0; group < product_clocks.groups(); ++group) {
      compare(product_clocks.behind(group, machine.knowledge()));
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

  static bool ordered(Access before, const Knowledge& known) {
    return known.of(static_cast<int>(thread_of(before)) / kWarp, before);
  }
  static bool ordered(Access before) { return thread_of(before) == me() || ordered(before, machine.knowledge()); }

  void check_written(int64_t first, int64_t bytes) const {
    for (int64_t at = first; at < first + bytes; at += kGranule) {
      const Access writer = written_[at / kGranule];
      if (machine.earlier_block(writer)) machine.fail("uninitialised shared read", place(at));
      check_landed(at, writer, "read");
      if (!ordered(writer)) report("read after write", at, writer);
    }
  }

  void check_written(int64_t first, int64_t bytes, const char* kind, const Knowledge& known) const {
    Access last = kNobody;
    for (int64_t at = first; at < first + bytes; at += kGranule) {
      const Access writer = written_[at / kGranule];
      if (writer == last) continue;
      last = writer;
      if (machine.earlier_block(writer)) machine.fail(std::string("uninitialised shared read by a ") + kind, place(at));
      check_landed(at, writer, kind, known);
      if (!ordered(writer, known)) report("read after write", at, writer);
    }
  }

  // Accesses of copies and products need a fence behind writes of threads, not barriers alone.
  void check_fenced(int64_t first, const char* kind, const Knowledge& known, int thread) const {
    Access last = kNobody;
    for (int64_t at = first; at < first + kChunk; at += kGranule) {
      const Access writer = written_[at / kGranule];
      if (writer == last || machine.earlier_block(writer) || !by_thread(writer) || clock_of(writer) == machine.kNever)
        continue;
      last = writer;
      if (machine.clocks.fenced(Fence::copies, writer, known, thread)) continue;
      machine.fail("missing fence", std::string(kind) + " of " + place(at) + ", behind which " + name_of(writer) +
                                        " has no fence_copies");
    }
  }

  void check_overwritten(int64_t first, int64_t bytes, const char* kind) const {
    for (int64_t at = first; at < first + bytes; at += kGranule) {
      const Access writer = written_[at / kGranule];
      if (!machine.earlier_block(writer)) check_landed(at, writer, kind);
      if (!ordered(writer)) report("write after write", at, writer);
      for (int warp = 0; warp < machine.warps(); ++warp) {
        const Access reader = read_[warp * stride_ + at / kGranule];
        if (thread_of(reader) != me() && !machine.knowledge().of(warp, reader)) report("write after read", at, reader);
      }
      for (int group = 0; group < product_clocks.groups(); ++group) {
        const Access reader = read_[(machine.warps() + group) * stride_ + at / kGranule];
        if (reader > product_clocks.behind(group, machine.knowledge())) {
          machine.fail("race", "write after read of " + place(at) + ", by a product that has not been waited for");
        }
      }
    }
  }

  void check_landed(int64_t at, Access writer, const char* access, const Knowledge& known = machine.knowledge()) const {
    const bool box = !by_thread(writer) && !ordered(writer, known);
    if (clock_of(writer) != machine.kNever && !box) return;
    machine.fail("unfinished copy", std::string(access) + " of " + place(at) +
                                        (box ? ", for whose bytes the thread has not waited"
                                             : ", which " + name_of(writer) + " has not waited for"));
  }

  static bool by_thread(Access access) { return static_cast<int>(thread_of(access)) < machine.all_threads(); }
  static std::string name_of(Access access) { return machine.name_of(static_cast<int>(thread_of(access))); }

  [[noreturn, gnu::cold]] void report(const char* race, int64_t at, Access before) const {
    const std::string other = thread_of(before) == kMany ? "several threads" : name_of(before);
    machine.fail("race", std::string(race) + " of " + place(at) + ", no barrier after " + other);
  }

  [[noreturn, gnu::cold]] void refuse(int64_t at, int64_t bytes, const char* access, bool outside) const {
    if (outside) {
      machine.fail(std::string("out-of-bounds shared ") + access, place(at) + " of " + std::to_string(bytes_ / unit_));
    }
    machine.fail(std::string("misaligned shared ") + access, place(at) + ", " + std::to_string(bytes) + " bytes");
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

// The bytes that a launch asks for, of every block of a cluster, behind what its kernel declares.
class DynamicMemory {
 public:
  static constexpr int kMost = 227 << 10, kUnasked = 48 << 10;  // of any GPU
  static constexpr int kAlignment = 1024;

  // Together with what kernels declare.
  int64_t most = kMost;

  void resize(int bytes, int blocks) {
    while (static_cast<int>(blocks_.size()) < blocks) {
      blocks_.push_back(std::make_unique<Block>());
      memories_[blocks_.size() - 1] = &blocks_.back()->memory;
    }
    for (const auto& block : blocks_) block->memory.resize(block->bytes, bytes);
    asked_ = bytes;
  }
  SharedMemory& memory(int rank) { return *memories_[rank]; }

  // By a kernel, once a block.
  void declare(int64_t bytes) {
    if (serial_ != machine.serial()) serial_ = machine.serial(), declared_ = 0;
    declared_ += bytes;
    const int64_t all = (declared_ + kAlignment - 1) / kAlignment * kAlignment + asked_;
    if (asked_ > 0 && all > most) {
      machine.fail("too much shared memory", std::to_string(all) + " bytes, and it may have " + std::to_string(most));
    }
    if (machine.blocks() > 1) machine.fail("declared shared memory", "in a cluster, whose blocks have dynamic alone");
  }

 private:
  struct Block {
    alignas(kAlignment) char bytes[kMost];
    SharedMemory memory{"dynamic shared memory", bytes, 0, 1, kAlignment};
  };

  std::vector<std::unique_ptr<Block>> blocks_;
  SharedMemory* memories_[kMostWarps] = {};
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

}  // namespace simt
