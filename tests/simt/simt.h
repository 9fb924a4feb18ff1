// A GPU's blocks on the CPU: kernels compiled as host code, threads as fibers of one host thread, mistakes reported.
//
// Blocks run one after another; in a block threads run until they meet a barrier or an operation of their warp. A
// schedule says who goes on then, and results must not depend on it. Shared memory starts poisoned, in every block. A
// shadow of each of its elements knows the last writer and each warp's last reader, with the clock of the accessing
// warp, and barriers exchange clocks between warps: an access is a race where no barrier lies between it and an access
// of another thread, one of the two a write, whichever schedule runs. Memory of the device is checked for its bounds,
// for alignment, for reads of what nobody wrote, and for accesses of two blocks of one launch of which one is a write;
// accesses of threads of one block to it are not ordered against each other.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#ifndef __x86_64__
#error "threads are switched by code for x86-64"
#endif

#define CROSSRET_KERNEL(threads, blocks) inline void
#define CROSSRET_DEVICE inline
// One object for all threads and blocks of a kernel, as shared memory is; blocks find it poisoned again.
#define CROSSRET_SHARED(T, name, count) static simt::SharedArray<T, count> name(#name)
#define CROSSRET_PARAMETER const

namespace simt {

constexpr int kWarp = 32;
constexpr size_t kStack = 64 << 10, kGuard = 4096;  // bytes of a fiber's stack, and of the unmapped page below it

enum class Order : int { forward, reversed, bursts };

struct Schedule {
  Order order;
  uint64_t seed;  // of bursts
};

// What a kernel did wrong; its text names the kind, the kernel, the block and the thread.
struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

extern "C" void simt_switch(void** save, void* to);

// Keeps the registers that a called function must keep.
asm(R"(
.text
.weak simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch,.-simt_switch
)");

enum class State { ready, in_warp, in_barrier, done };

struct Fiber {
  void* stack_pointer;
  State state;
  int line;        // of what it waits at
  int barrier;     // its number
  void* argument;  // of the warp's operation
};

struct Barrier {
  int arrived, expected, line;
};

struct WarpOperation {
  uint32_t arrived;
  const char* kind;
  int line;
};

// One block of one kernel at a time.
class Machine {
 public:
  int thread() const { return current_; }
  int warp() const { return current_ / kWarp; }
  int threads() const { return threads_; }
  int warps() const { return threads_ / kWarp; }
  int block_x() const { return block_x_; }
  int block_y() const { return block_y_; }
  uint32_t block_number() const { return block_number_; }
  uint64_t serial() const { return serial_; }

  uint32_t clock() const { return known(warp()); }
  // What the running warp knows of another's clock.
  uint32_t known(int of) const { return clocks_[warp() * warps() + of]; }

  // Ends the launch; in a fiber it does not return.
  [[noreturn]] void fail(const std::string& kind, const std::string& detail) {
    mistake_ = kind + ": kernel " + kernel_ + ", block (" + std::to_string(block_x_) + ", " + std::to_string(block_y_) +
               "), thread " + std::to_string(current_) + ": " + detail;
    leave_for_good();
  }

  void launch(const char* kernel, const Schedule& schedule, int grid_x, int grid_y, int threads,
              const std::function<void()>& body) {
    if (threads <= 0 || threads % kWarp != 0 || threads > 1024) throw Mistake("a block is whole warps, 1024 threads");
    kernel_ = kernel, schedule_ = schedule, threads_ = threads, body_ = &body;
    random_ = schedule.seed * 0x9E3779B97F4A7C15ull + 1;
    grow_stacks();
    const int blocks = grid_x * grid_y;
    for (int i = 0; i < blocks; ++i) {
      const int number = schedule.order == Order::forward ? i : blocks - 1 - i;
      run_block(number, number % grid_x, number / grid_x);
    }
  }

  void sync(int number, int expected, int line) {
    if (number < 0 || number > 15 || expected <= 0 || expected % kWarp != 0 || expected > threads_) {
      fail("bad barrier", "number " + std::to_string(number) + " of " + std::to_string(expected) + " threads");
    }
    Barrier& barrier = barriers_[number];
    if (barrier.arrived == 0) barrier.expected = expected, barrier.line = line;
    if (barrier.expected != expected || (number == 0 && barrier.line != line)) {
      fail("divergent barrier", "line " + std::to_string(line) + " meets line " + std::to_string(barrier.line));
    }
    Fiber& me = fibers_[current_];
    me.state = State::in_barrier, me.line = line, me.barrier = number;
    set_ready(current_, false);
    if (++barrier.arrived == expected) release(number);
    yield();
  }

  // Every lane of the warp brings its argument; the last to come performs it for all.
  template <class Perform>
  void collective(const char* kind, int line, void* argument, const Perform& perform) {
    WarpOperation& operation = operations_[warp()];
    if (operation.arrived == 0) operation.kind = kind, operation.line = line;
    if (operation.kind != kind || operation.line != line) {
      fail("divergent warp", std::string(kind) + " of line " + std::to_string(line) + " meets " + operation.kind +
                                 " of line " + std::to_string(operation.line));
    }
    Fiber& me = fibers_[current_];
    me.argument = argument, me.state = State::in_warp, me.line = line;
    set_ready(current_, false);
    operation.arrived |= 1u << current_ % kWarp;
    if (operation.arrived == ~0u) {
      Fiber* const lanes = &fibers_[warp() * kWarp];
      perform(lanes);
      operation.arrived = 0;
      for (int lane = 0; lane < kWarp; ++lane) lanes[lane].state = State::ready;
      ready_[warp()] = ~0u;
    }
    yield();
  }

  void advance_clock() { ++clocks_[warp() * warps() + warp()]; }

 private:
  void grow_stacks() {
    while (static_cast<int>(stacks_.size()) < threads_) {
      void* const memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED || mprotect(memory, kGuard, PROT_NONE) != 0) throw Mistake("no memory for stacks");
      stacks_.push_back(static_cast<char*>(memory));
    }
  }

  void run_block(int number, int x, int y) {
    block_number_ = static_cast<uint32_t>(number), block_x_ = x, block_y_ = y;
    ++serial_;
    fibers_.assign(threads_, Fiber{});
    ready_.assign(warps(), ~0u);
    operations_.assign(warps(), WarpOperation{});
    clocks_.assign(static_cast<size_t>(warps()) * warps(), 0);
    for (int w = 0; w < warps(); ++w) clocks_[w * warps() + w] = 1;
    for (Barrier& barrier : barriers_) barrier = {};
    for (int t = 0; t < threads_; ++t) {
      // A function begins with its stack 8 bytes off a multiple of 16: what a call leaves.
      void** const top = reinterpret_cast<void**>(stacks_[t] + kStack - 8);
      for (int i = 2; i <= 7; ++i) top[-i] = nullptr;
      top[-1] = reinterpret_cast<void*>(&Machine::enter);
      fibers_[t].stack_pointer = top - 7;
    }
    mistake_.clear();
    at_warp_ = schedule_.order == Order::reversed ? warps() - 1 : 0;
    burst_ = 0;
    running_ = this;
    current_ = choose();
    simt_switch(&host_stack_pointer_, fibers_[current_].stack_pointer);
    if (!mistake_.empty()) throw Mistake(mistake_);
  }

  static void enter() {
    Machine& machine = *running_;
    (*machine.body_)();
    machine.fibers_[machine.current_].state = State::done;
    machine.set_ready(machine.current_, false);
    machine.yield();
    std::abort();  // nobody goes on with a thread that is done
  }

  void release(int number) {
    Barrier& barrier = barriers_[number];
    std::vector<int> taking_part;
    for (int w = 0; w < warps(); ++w) {
      uint32_t here = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        const Fiber& fiber = fibers_[w * kWarp + lane];
        here |= static_cast<uint32_t>(fiber.state == State::in_barrier && fiber.barrier == number) << lane;
      }
      if (here != 0 && here != ~0u) {
        fail("divergent barrier",
             "a part of warp " + std::to_string(w) + " is at line " + std::to_string(barrier.line));
      }
      if (here != 0) taking_part.push_back(w);
    }
    std::vector<uint32_t> latest(warps(), 0);
    for (const int w : taking_part) {
      for (int of = 0; of < warps(); ++of) latest[of] = std::max(latest[of], clocks_[w * warps() + of]);
    }
    for (const int w : taking_part) {
      for (int of = 0; of < warps(); ++of) clocks_[w * warps() + of] = latest[of];
      ++clocks_[w * warps() + w];
      ready_[w] = ~0u;
      for (int lane = 0; lane < kWarp; ++lane) fibers_[w * kWarp + lane].state = State::ready;
    }
    barrier = {};
  }

  void set_ready(int thread, bool ready) {
    const uint32_t bit = 1u << thread % kWarp;
    uint32_t& lanes = ready_[thread / kWarp];
    lanes = ready ? lanes | bit : lanes & ~bit;
  }

  uint32_t random() {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return static_cast<uint32_t>(random_ >> 16);
  }

  // The thread that goes on, or -1: a warp as long as it can, from the first on or from the last, or for a while.
  int choose() {
    const bool stays = ready_[at_warp_] != 0 && (schedule_.order != Order::bursts || burst_-- > 0);
    if (!stays) {
      std::vector<int> able;
      for (int w = 0; w < warps(); ++w) {
        if (ready_[w] != 0) able.push_back(w);
      }
      if (able.empty()) return -1;
      at_warp_ = schedule_.order == Order::forward    ? able.front()
                 : schedule_.order == Order::reversed ? able.back()
                                                      : able[random() % able.size()];
      burst_ = 1 << random() % 12;
    }
    uint32_t lanes = ready_[at_warp_];
    if (schedule_.order == Order::reversed) return at_warp_ * kWarp + 31 - __builtin_clz(lanes);
    if (schedule_.order == Order::bursts) {
      for (uint32_t skip = random() % static_cast<uint32_t>(__builtin_popcount(lanes)); skip > 0; --skip) {
        lanes &= lanes - 1;
      }
    }
    return at_warp_ * kWarp + __builtin_ctz(lanes);
  }

  void yield() {
    const int before = current_, next = choose();
    if (next == before) return;
    if (next < 0) finish();
    current_ = next;
    simt_switch(&fibers_[before].stack_pointer, fibers_[next].stack_pointer);
  }

  // Nobody can go on: all threads are done, or some wait for others in vain.
  [[noreturn]] void finish() {
    for (int t = 0; t < threads_; ++t) {
      const Fiber& waiting = fibers_[t];
      if (waiting.state == State::done) continue;
      current_ = t;
      const bool in_warp = waiting.state == State::in_warp;
      const int first = in_warp ? t / kWarp * kWarp : 0, last = in_warp ? first + kWarp : threads_;
      std::string absent;
      for (int other = first; other < last && absent.empty(); ++other) {
        const Fiber& fiber = fibers_[other];
        const bool with = fiber.state == waiting.state && (in_warp || fiber.barrier == waiting.barrier);
        if (with) continue;
        absent = ", which thread " + std::to_string(other) +
                 (fiber.state == State::done ? " never reached" : " waits for at line " + std::to_string(fiber.line));
      }
      fail(in_warp ? "missed warp operation" : "missed barrier",
           "waits at line " + std::to_string(waiting.line) + absent);
    }
    leave_for_good();
  }

  [[noreturn]] void leave_for_good() {
    void* abandoned;
    simt_switch(&abandoned, host_stack_pointer_);
    std::abort();
  }

  inline static Machine* running_ = nullptr;

  const char* kernel_ = "";
  Schedule schedule_{};
  const std::function<void()>* body_ = nullptr;
  int threads_ = 0, current_ = 0, block_x_ = 0, block_y_ = 0, at_warp_ = 0, burst_ = 0;
  uint32_t block_number_ = 0;
  uint64_t serial_ = 0, random_ = 1;
  void* host_stack_pointer_ = nullptr;
  std::string mistake_;
  std::vector<char*> stacks_;
  std::vector<Fiber> fibers_;
  std::vector<uint32_t> ready_, clocks_;  // lanes of every warp; clocks that warps know of each other
  std::vector<WarpOperation> operations_;
  Barrier barriers_[16] = {};
};

inline Machine machine;

// An array in shared memory, of which every access is checked.
template <class T, int count>
class SharedArray {
  static_assert(std::is_trivially_copyable_v<T>, "shared memory has no constructors");

 public:
  explicit SharedArray(const char* name) : name_(name) {}
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;

  class Element {
   public:
    Element(SharedArray& array, int64_t at) : array_(array), at_(at) {}
    operator T() const { return array_.read(at_); }  // NOLINT: reads as the element itself does
    Element& operator=(const T& value) {
      array_.write(at_, value);
      return *this;
    }
    Element& operator=(const Element& other) { return *this = static_cast<T>(other); }

   private:
    SharedArray& array_;
    int64_t at_;
  };

  Element operator[](int64_t at) { return {*this, at}; }

 private:
  // The thread is one of the warp's, or kMany of them at the same clock.
  struct Access {
    uint32_t clock = 0;  // 0: none
    int thread = 0;
  };
  static constexpr int kMany = -1;

  std::string place(int64_t at) const { return std::string(name_) + "[" + std::to_string(at) + "]"; }

  void begin(int64_t at, const char* access) {
    if (serial_ != machine.serial()) {
      serial_ = machine.serial();
      std::memset(static_cast<void*>(values_), 0xFF, sizeof values_);
      written_.assign(count, Access{});
      read_.assign(static_cast<size_t>(count) * machine.warps(), Access{});
    }
    if (at < 0 || at >= count) {
      machine.fail(std::string("out-of-bounds shared ") + access, place(at) + " of " + std::to_string(count));
    }
  }

  bool ordered(const Access& before, int warp) const {
    if (before.clock == 0 || before.thread == machine.thread()) return true;
    return warp == machine.warp() ? before.clock < machine.clock() : before.clock <= machine.known(warp);
  }

  void report(const char* race, int64_t at, const Access& before) {
    const std::string other = before.thread == kMany ? "several threads" : "thread " + std::to_string(before.thread);
    machine.fail("race", std::string(race) + " of " + place(at) + ", no barrier after " + other);
  }

  T read(int64_t at) {
    begin(at, "read");
    const Access& writer = written_[at];
    if (writer.clock == 0) machine.fail("uninitialised shared read", place(at));
    if (!ordered(writer, writer.thread / kWarp)) report("read after write", at, writer);
    Access& reader = read_[at * machine.warps() + machine.warp()];
    const bool other = reader.clock == machine.clock() && reader.thread != machine.thread();
    reader = {machine.clock(), other ? kMany : machine.thread()};
    return values_[at];
  }

  void write(int64_t at, const T& value) {
    begin(at, "write");
    const Access& writer = written_[at];
    if (!ordered(writer, writer.thread / kWarp)) report("write after write", at, writer);
    for (int w = 0; w < machine.warps(); ++w) {
      const Access& reader = read_[at * machine.warps() + w];
      if (!ordered(reader, w)) report("write after read", at, reader);
    }
    written_[at] = {machine.clock(), machine.thread()};
    values_[at] = value;
  }

  const char* name_;
  uint64_t serial_ = 0;
  T values_[count];
  std::vector<Access> written_, read_;
};

// Memory of the device, in buffers, and launches of kernels over it.
class Device {
 public:
  enum class Kind { input, output };  // what is given, read only; what kernels fill before they read it

  explicit Device(const Schedule& schedule) : schedule_(schedule) { current_ = this; }
  ~Device() { current_ = nullptr; }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int add(const char* name, const void* begin, int64_t bytes, Kind kind) {
    buffers_.push_back({name, static_cast<const char*>(begin), bytes, kind, {}});
    buffers_.back().granules.assign((bytes + 1) / 2, Granule{0, 0, kind == Kind::input});
    return static_cast<int>(buffers_.size()) - 1;
  }

  void launch(const char* kernel, int grid_x, int grid_y, int threads, const std::function<void()>& body) {
    for (Buffer& buffer : buffers_) {
      for (Granule& granule : buffer.granules) granule.writer = granule.reader = 0;
    }
    machine.launch(kernel, schedule_, grid_x, grid_y, threads, body);
  }

  static void check(int number, const void* address, int64_t bytes, bool write) {
    const char* const access = write ? "global write" : "global read";
    if (number < 0) machine.fail(std::string("out-of-bounds ") + access, "a pointer to nothing");
    Buffer& buffer = current_->buffers_[number];
    const int64_t at = static_cast<const char*>(address) - buffer.begin;
    const auto place = [&] { return std::string(buffer.name) + ", byte " + std::to_string(at); };
    if (at < 0 || at + bytes > buffer.bytes) {
      machine.fail(std::string("out-of-bounds ") + access, place() + " of " + std::to_string(buffer.bytes));
    }
    const int64_t alignment = bytes & -bytes;  // of 12 bytes 4
    if (reinterpret_cast<uintptr_t>(address) % alignment != 0) {
      machine.fail(std::string("misaligned ") + access, place() + ", " + std::to_string(bytes) + " bytes");
    }
    if (write && buffer.kind == Kind::input) machine.fail("write to input", place());
    const uint32_t me = machine.block_number() + 1;
    for (int64_t i = at / 2; i < (at + bytes + 1) / 2; ++i) {
      Granule& granule = buffer.granules[i];
      if (!write && !granule.written) machine.fail("uninitialised global read", place());
      const bool written = granule.writer != 0 && granule.writer != me;
      if (written || (write && granule.reader != 0 && granule.reader != me)) {
        machine.fail(
            "race", std::string(access) + " of " + place() + " beside another block's " + (written ? "write" : "read"));
      }
      if (write) {
        granule.writer = me, granule.written = true;
      } else {
        granule.reader = granule.reader == 0 || granule.reader == me ? me : ~0u;
      }
    }
  }

 private:
  struct Granule {
    uint32_t writer, reader;  // blocks' numbers from 1 on in this launch; of several readers ~0
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
};

}  // namespace simt

namespace crossret {
namespace gpu {

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

inline int thread_index() { return simt::machine.thread(); }
inline int block_threads() { return simt::machine.threads(); }
inline int block_x() { return simt::machine.block_x(); }
inline int block_y() { return simt::machine.block_y(); }

inline void sync_block(int line = __builtin_LINE()) { simt::machine.sync(0, simt::machine.threads(), line); }
inline void sync_named(int number, int threads, int line = __builtin_LINE()) {
  simt::machine.sync(number, threads, line);
}
inline void sync_warp(int line = __builtin_LINE()) {
  simt::machine.collective("sync_warp", line, nullptr, [](simt::Fiber*) { simt::machine.advance_clock(); });
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
std::remove_const_t<T> load(Global<T> from, int64_t at) {
  simt::Device::check(from.buffer(), from.address() + at, sizeof(T), false);
  return from.address()[at];
}
template <class T>
void store(Global<T> to, int64_t at, std::common_type_t<T> value) {
  simt::Device::check(to.buffer(), to.address() + at, sizeof(T), true);
  to.address()[at] = value;
}

inline int bits_of(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float max_or_nan(float a, float b) { return a != a || b != b ? float_of(0x7FFFFFFF) : a < b ? b : a; }

inline float float_of_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  const float size = exponent == 31  ? (digits != 0 ? NAN : INFINITY)
                     : exponent == 0 ? std::ldexp(static_cast<float>(digits), -24)
                                     : std::ldexp(static_cast<float>(digits + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}
inline uint16_t half_of(float x) {
  if (x != x) return 0x7FFF;
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);
  // In units of the last place, of which subnormal numbers have the smallest normal ones'.
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  const int digits = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + digits));
}
inline uint16_t bfloat16_of(float x) {
  if (x != x) return 0x7FFF;
  const auto bits = static_cast<uint32_t>(bits_of(x));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace gpu
}  // namespace crossret
