// Blocks of a kernel on the CPU: threads as fibers of one host thread, who goes on by a schedule, barriers.
//
// Blocks run one after another; in a block threads run until they meet a barrier or an operation of their warp. A
// schedule says who goes on then, and results must not depend on it. Each warp has a clock, which its barriers advance,
// and knows of the other warps' clocks what barriers told it: an access is ordered behind another where its warp knows
// of a clock as late as the other's.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fibers.h"
#include "traffic.h"

namespace simt {

constexpr int kWarp = 32, kMostWarps = 32;

enum class Order : int { forward, reversed, bursts };

struct Schedule {
  Order order;
  uint64_t seed;  // of bursts

  // Whether asynchronous copies land when they are waited for; otherwise at once.
  bool late() const { return order == Order::bursts ? seed % 2 == 1 : order == Order::forward; }
};

// What a kernel did wrong; its text names the kind, the kernel, the block and the thread.
struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A warp's clock and one of its threads, or kMany of them, in one word: the later, the greater. It is positive as int.
using Access = uint32_t;
constexpr int kThreadBits = 11;
constexpr Access kMany = (1u << kThreadBits) - 1;
constexpr Access access_by(uint32_t clock, uint32_t thread) { return clock << kThreadBits | thread; }
constexpr uint32_t clock_of(Access access) { return access >> kThreadBits; }
constexpr uint32_t thread_of(Access access) { return access & kMany; }

enum class State { ready, in_warp, in_barrier, done };

struct Fiber {
  Context context;
  State state;
  int line;        // of what it waits at
  int barrier;     // its number
  bool vote;       // its own, then of all who meet there
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
  int warp() const { return warp_; }
  int threads() const { return threads_; }
  int warps() const { return warps_; }
  int block_x() const { return block_x_; }
  int block_y() const { return block_y_; }
  uint32_t block_number() const { return block_number_; }
  const Schedule& schedule() const { return schedule_; }

  // Clocks go on from block to block, so that what an earlier block did is older than what any warp knows. Before they
  // come to kNever, and after a mistake, they begin anew: another generation.
  static constexpr uint32_t kNever = (1u << 20) - 1;
  uint64_t serial() const { return serial_; }  // of the block, over all launches
  uint32_t generation() const { return generation_; }
  Access access() const { return access_by(clocks_[warp_][warp_], static_cast<uint32_t>(current_)); }
  bool earlier_block(Access access) const { return access <= oldest_; }
  // Of every warp the last access that the running thread's are ordered behind; more than any where there is no warp.
  const Access* behind() const { return behind_[warp_]; }

  // Ends the launch; in a fiber it does not return.
  [[noreturn]] void fail(const std::string& kind, const std::string& detail) {
    mistake_ = kind + ": kernel " + kernel_ + ", block (" + std::to_string(block_x_) + ", " + std::to_string(block_y_) +
               "), thread " + std::to_string(current_) + ": " + detail;
    leave_for_good();
  }

  void launch(const char* kernel, const Schedule& schedule, int grid_x, int grid_y, int threads,
              const std::function<void()>& body) {
    if (threads <= 0 || threads % kWarp != 0 || threads > 1024) throw Mistake("a block is whole warps, 1024 threads");
    kernel_ = kernel, schedule_ = schedule, threads_ = threads, warps_ = threads / kWarp, body_ = &body;
    random_ = schedule.seed * 0x9E3779B97F4A7C15ull + 1;
    stacks_.grow(threads_);
    traffic.begin(kernel);
    const int blocks = grid_x * grid_y;
    for (int i = 0; i < blocks; ++i) {
      const int number = schedule.order == Order::forward ? i : blocks - 1 - i;
      run_block(number, number % grid_x, number / grid_x);
    }
  }

  // Whether one of those who meet votes so.
  bool sync(int number, int expected, int line, bool vote = false) {
    if (number < 0 || number > 15 || expected <= 0 || expected % kWarp != 0 || expected > threads_) {
      fail("bad barrier", "number " + std::to_string(number) + " of " + std::to_string(expected) + " threads");
    }
    Barrier& barrier = barriers_[number];
    if (barrier.arrived == 0) barrier.expected = expected, barrier.line = line;
    if (barrier.expected != expected || (number == 0 && barrier.line != line)) {
      fail("divergent barrier", "line " + std::to_string(line) + " meets line " + std::to_string(barrier.line));
    }
    Fiber& me = fibers_[current_];
    me.state = State::in_barrier, me.line = line, me.barrier = number, me.vote = vote;
    set_ready(current_, false);
    if (++barrier.arrived == expected) release(number);
    yield();
    return me.vote;
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
      traffic.meet(warp());
      operation.arrived = 0;
      for (int lane = 0; lane < kWarp; ++lane) lanes[lane].state = State::ready;
      ready_[warp()] = ~0u;
    }
    yield();
  }

  void advance_clock() {
    ++clocks_[warp_][warp_];
    order_behind_clocks(warp_);
  }

 private:
  void run_block(int number, int x, int y) {
    block_number_ = static_cast<uint32_t>(number), block_x_ = x, block_y_ = y;
    ++serial_;
    fibers_.assign(threads_, Fiber{});
    ready_.assign(warps(), ~0u);
    operations_.assign(warps(), WarpOperation{});
    begin_clocks();
    for (Barrier& barrier : barriers_) barrier = {};
    for (int t = 0; t < threads_; ++t) fibers_[t].context = stacks_.begin(t, &Machine::enter);
    mistake_.clear();
    at_warp_ = schedule_.order == Order::reversed ? warps() - 1 : 0;
    burst_ = 0;
    running_ = this;
    go_on_with(choose());
    host_ = {};
    change(host_, fibers_[current_].context);
    for (int w = 0; w < warps(); ++w) traffic.meet(w);
    if (!mistake_.empty()) {
      forget();
      throw Mistake(mistake_);
    }
  }

  void begin_clocks() {
    if (latest_clock_ > kNever / 2) forget();
    const uint32_t before = latest_clock_;
    oldest_ = access_by(before, kMany);
    for (int w = 0; w < warps(); ++w) {
      std::fill_n(clocks_[w], warps(), before);
      std::fill_n(behind_[w], kMostWarps, access_by(kNever, kMany));
      clocks_[w][w] = before + 1;
      order_behind_clocks(w);
    }
  }

  void forget() { ++generation_, latest_clock_ = 0; }

  void order_behind_clocks(int warp) {
    const uint32_t* const known = clocks_[warp];
    for (int of = 0; of < warps(); ++of) behind_[warp][of] = access_by(known[of], kMany);
    behind_[warp][warp] = access_by(known[warp] - 1, kMany);
    latest_clock_ = std::max(latest_clock_, known[warp]);
    if (known[warp] + 1 >= kNever) fail("too many barriers", "in one block");
  }

  static void enter() {
    Machine& machine = *running_;
    arrive(machine.host_);
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
    uint32_t latest[kMostWarps] = {};
    bool vote = false;
    for (const int w : taking_part) {
      for (int lane = 0; lane < kWarp; ++lane) vote = vote || fibers_[w * kWarp + lane].vote;
      for (int of = 0; of < warps(); ++of) latest[of] = std::max(latest[of], clocks_[w][of]);
    }
    for (const int w : taking_part) {
      traffic.meet(w);
      for (int of = 0; of < warps(); ++of) clocks_[w][of] = latest[of];
      ++clocks_[w][w];
      order_behind_clocks(w);
      ready_[w] = ~0u;
      for (int lane = 0; lane < kWarp; ++lane) {
        Fiber& fiber = fibers_[w * kWarp + lane];
        fiber.state = State::ready, fiber.vote = vote;
      }
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

  void go_on_with(int thread) { current_ = thread, warp_ = thread / kWarp; }

  void yield() {
    const int before = current_, next = choose();
    if (next == before) return;
    if (next < 0) finish();
    go_on_with(next);
    change(fibers_[before].context, fibers_[next].context);
  }

  // Nobody can go on: all threads are done, or some wait for others in vain.
  [[noreturn]] void finish() {
    for (int t = 0; t < threads_; ++t) {
      const Fiber& waiting = fibers_[t];
      if (waiting.state == State::done) continue;
      go_on_with(t);
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
    Context abandoned;
    change(abandoned, host_, false);
    std::abort();
  }

  inline static Machine* running_ = nullptr;

  const char* kernel_ = "";
  Schedule schedule_{};
  const std::function<void()>* body_ = nullptr;
  int threads_ = 0, warps_ = 0, current_ = 0, warp_ = 0, block_x_ = 0, block_y_ = 0, at_warp_ = 0, burst_ = 0;
  uint32_t block_number_ = 0, generation_ = 0, latest_clock_ = 0;
  uint32_t clocks_[kMostWarps][kMostWarps] = {};  // that warps know of each other
  Access oldest_ = 0;
  alignas(16) Access behind_[kMostWarps][kMostWarps] = {};
  uint64_t serial_ = 0, random_ = 1;
  Context host_;
  std::string mistake_;
  Stacks stacks_;
  std::vector<Fiber> fibers_;
  std::vector<uint32_t> ready_;  // lanes of every warp
  std::vector<WarpOperation> operations_;
  Barrier barriers_[16] = {};
};

inline Machine machine;

}  // namespace simt
