// The names of csrc/cuda/device.cuh, which includes this, for kernels compiled as host code.
//
// machine.h runs their threads, shared.h and device.h check what they do to memory.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "arithmetic.h"
#include "copies.h"
#include "device.h"
#include "machine.h"
#include "matrices.h"
#include "shared.h"

#define CROSSRET_KERNEL(threads, blocks) inline void
#define CROSSRET_DEVICE inline
// One object for all threads and blocks of a kernel, as shared memory is; blocks find it poisoned again.
#define CROSSRET_SHARED(T, name, count)           \
  static simt::SharedArray<T, count> name(#name); \
  name.declare()
#define CROSSRET_PARAMETER const

namespace crossret {
namespace gpu {

template <class T>
using Shared = simt::Shared<T>;

template <class T>
[[gnu::always_inline]] inline Shared<T> shared_at(int byte) {
  return {&simt::dynamic_memory.memory(simt::machine.rank()), byte};
}

// A pointer that knows its buffer, which is read and written by load and store alone.
template <class T>
class Global {
 public:
  Global() = default;
  Global(T* at, int buffer) : at_(at), buffer_(buffer) {}
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  Global(const Global<U>& other) : at_(other.address()), buffer_(other.buffer()) {}  // NOLINT: as of plain pointers

  Global operator+(int64_t n) const { return {at_ + n, buffer_}; }
  T* address() const { return at_; }
  int buffer() const { return buffer_; }
  template <class U>
  explicit operator Global<U>() const {
    return {reinterpret_cast<U*>(at_), buffer_};
  }

 private:
  T* at_ = nullptr;
  int buffer_ = -1;
};

inline int thread_index() { return simt::machine.thread_in_block(); }
inline int opaque(int x) { return x; }
inline int block_threads() { return simt::machine.threads(); }
inline int blocks() { return simt::machine.grid_x(); }
inline int block_x() { return simt::machine.block_x(); }
inline int block_y() { return simt::machine.block_y(); }

inline void sync_block(int line = __builtin_LINE()) { simt::machine.sync(0, simt::machine.threads(), line); }
inline void sync_named(int number, int threads, int line = __builtin_LINE()) {
  simt::machine.sync(number, threads, line);
}
inline bool any_in_block(bool vote, int line = __builtin_LINE()) {
  return simt::machine.sync(0, simt::machine.threads(), line, vote);
}
inline void sync_warp(int line = __builtin_LINE()) {
  simt::machine.collective("sync_warp", line, nullptr, [](simt::Fiber*) { simt::machine.meet_warp(); });
}

// What source(lane) brings.
template <class T, class Source>
T exchange(const char* kind, int line, T value, const Source& source) {
  struct Lane {
    T given, taken;
    int from;
  } me{value, value, source(simt::machine.thread() % simt::kWarp) % simt::kWarp};
  simt::machine.collective(kind, line, &me, [](simt::Fiber* lanes) {
    for (int i = 0; i < simt::kWarp; ++i) {
      auto& lane = *static_cast<Lane*>(lanes[i].argument);
      lane.taken = static_cast<Lane*>(lanes[lane.from].argument)->given;
    }
  });
  return me.taken;
}
template <class T>
T shuffle(T value, int lane, int line = __builtin_LINE()) {
  return exchange("shuffle", line, value, [=](int) { return lane; });
}
template <class T>
T shuffle_xor(T value, int mask, int line = __builtin_LINE()) {
  return exchange("shuffle_xor", line, value, [=](int lane) { return lane ^ mask; });
}
inline uint32_t ballot(bool vote, int line = __builtin_LINE()) {
  struct Lane {
    bool vote;
    uint32_t votes;
  } me{vote, 0};
  simt::machine.collective("vote", line, &me, [](simt::Fiber* lanes) {
    uint32_t votes = 0;
    for (int i = 0; i < simt::kWarp; ++i) {
      votes |= static_cast<uint32_t>(static_cast<Lane*>(lanes[i].argument)->vote) << i;
    }
    for (int i = 0; i < simt::kWarp; ++i) static_cast<Lane*>(lanes[i].argument)->votes = votes;
  });
  return me.votes;
}
inline bool all(bool vote, int line = __builtin_LINE()) { return ballot(vote, line) == ~0u; }

template <class T>
[[gnu::always_inline]] inline std::remove_const_t<T> load(Global<T> from, int64_t at) {
  simt::Device::access<T>(from.buffer(), from.address() + at, false);
  return from.address()[at];
}
template <class T>
[[gnu::always_inline]] inline void store(Global<T> to, int64_t at, std::common_type_t<T> value) {
  simt::Device::access<T>(to.buffer(), to.address() + at, true);
  to.address()[at] = value;
}

[[gnu::noinline]] inline void copy_async(Shared<Chunk> to, Global<const Chunk> from) {
  constexpr int bytes = simt::Copies::kBytes;
  simt::Device::check(from.buffer(), from.address(), bytes, false, alignof(Chunk));
  if (to.memory() == nullptr) simt::machine.fail("no shared memory", "a pointer to nothing");
  simt::copies.issue(*to.memory(), to.at(), from.address());
  const void* const code = __builtin_return_address(0);
  const auto count = [&](simt::Traffic::Kind kind, int64_t at) {
    simt::traffic.access(kind, code, simt::machine.thread(), at, bytes, bytes);
  };
  count(simt::Traffic::Kind::shared, to.at());
  count(simt::Traffic::Kind::global, reinterpret_cast<intptr_t>(from.address()));
}
inline void commit_copies() { simt::copies.commit(); }
template <int n>
void wait_copies() {
  simt::copies.wait(n);
}

}  // namespace gpu
}  // namespace crossret
