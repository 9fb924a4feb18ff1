// Blocks of a kernel on the CPU: threads as fibers of one host thread, who goes on by a schedule, barriers.
//
// Clusters of blocks run one after another; in a cluster threads run until they meet a barrier or an operation of their
// warp. A schedule says who goes on then, and results must not depend on it. Threads and warps are numbered through
// their cluster here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "clocks.h"
#include "fibers.h"
#include "schedule.h"
#include "threads.h"
#include "traffic.h"

namespace simt {

// One cluster of one kernel at a time.
class Machine {
 public:
  int thread() const { return current_; }
  int warp() const { return warp_; }
  int all_threads() const { return threads_ * blocks_; }
  int warps() const { return warps_; }
  int warps_of_block() const { return warps_ / blocks_; }
  const Schedule& schedule() const { return schedule_; }

  // The running thread's block.
  int rank() const { return rank_; }
  int blocks() const { return blocks_; }  // of the cluster
  int threads() const { return threads_; }
  int thread_in_block() const { return current_ - rank_ * threads_; }
  int grid_x() const { return grid_x_; }
  int block_x() const { return block_x_ + rank_; }
  int block_y() const { return block_y_; }
  uint32_t block_number() const { return block_number_ + static_cast<uint32_t>(rank_); }

  uint64_t serial() const { return serial_; }  // of the cluster, over all launches
  uint32_t generation() const { return clocks.generation(); }
  static constexpr uint32_t kNever = Clocks::kNever;
  Access access() const { return access_by(clocks.now(warp_), static_cast<uint32_t>(current_)); }
  bool earlier_block(Access access) const { return access <= oldest_; }
  // Accesses that the running thread's are ordered behind.
  const Knowledge& knowledge() const { return *knowledge_; }
  const Access* behind() const { return knowledge_->behind; }

  // Ends the launch; in a fiber it does not return.
  [[noreturn]] void fail(const std::string& kind, const std::string& detail) {
    mistake_ = kind + ": kernel " + kernel_ + ", block (" + std::to_string(block_x()) + ", " +
               std::to_string(block_y()) + "), thread " + std::to_string(thread_in_block()) + ": " + detail;
    leave_for_good();
  }
  std::string name_of(int thread) const {
    const std::string of_block = blocks_ > 1 ? " of block " + std::to_string(thread / threads_) : "";
    return "thread " + std::to_string(thread % threads_) + of_block;
  }

  void launch(const char* kernel, const Schedule& schedule, int grid_x, int grid_y, int threads, int blocks,
              const std::function<void()>& body) {
    if (threads <= 0 || threads % kWarp != 0 || threads > 1024) throw Mistake("a block is whole warps, 1024 threads");
    if (blocks < 1 || threads * blocks > kMostWarps * kWarp || grid_x % blocks != 0) {
      throw Mistake("a cluster is whole blocks, here of " + std::to_string(kMostWarps) + " warps together");
    }
    kernel_ = kernel, schedule_ = schedule, threads_ = threads, blocks_ = blocks, body_ = &body, grid_x_ = grid_x;
    warps_ = all_threads() / kWarp;
    turns_ = Turns(schedule);
    stacks_.grow(all_threads());
    traffic.begin(kernel);
    const int all = grid_x / blocks * grid_y;
    for (int i = 0; i < all; ++i) {
      const int number = (schedule.order == Order::forward ? i : all - 1 - i) * blocks;
      run_cluster(number, number % grid_x, number / grid_x);
    }
  }

  // Whether one of those who meet votes so.
  bool sync(int number, int expected, int line, bool vote = false) {
    if (number < 0 || number >= kBarriers || expected <= 0 || expected % kWarp != 0 || expected > threads_) {
      fail("bad barrier", "number " + std::to_string(number) + " of " + std::to_string(expected) + " threads");
    }
    return meet_at(rank_ * kBarriers + number, expected, line, vote, number == 0);
  }
  void sync_cluster(int line) { meet_at(blocks_ * kBarriers, all_threads(), line, false, false); }

  // Every lane of the warp brings its argument; the last to come performs it for all.
  template <class Perform>
  void collective(const char* kind, int line, void* argument, const Perform& perform) {
    meet_for(operations_[warp_], State::in_warp, warp_, 1, kind, line, argument, perform);
  }
  // Every thread of the warpgroup.
  template <class Perform>
  void collective_of_group(const char* kind, int line, void* argument, const Perform& perform) {
    const int of_block = rank_ * warps_of_block(), first = first_of_group();
    if (first - of_block + kGroup > warps_of_block()) {
      fail("divergent warpgroup", std::string(kind) + " by warps that are no warpgroup");
    }
    meet_for(group_operations_[group()], State::in_group, first, kGroup, kind, line, argument, perform);
  }
  // The running thread's warpgroup, and its first warp.
  static constexpr int kGroup = 4;  // warps
  int groups() const { return blocks_ * groups_of_block(); }
  int group() const { return rank_ * groups_of_block() + (warp_ - rank_ * warps_of_block()) / kGroup; }
  int first_of_group() const { return warp_ - (warp_ - rank_ * warps_of_block()) % kGroup; }

  // Pauses until no other lane of the warp can go on: lanes that do the same thing do it at once. `perform` gets those
  // who pause, each with its argument.
  using Perform = void (*)(int warp, uint32_t lanes, Fiber* fibers);
  void together(void* argument, Perform perform) {
    Fiber& me = fibers_[current_];
    me.argument = argument, me.state = State::pausing;
    pausing_[warp_] |= 1u << current_ % kWarp, perform_ = perform;
    set_ready(current_, false);
    yield();
  }

  // Waits until somebody wakes this thread; `awaited` tells for what.
  void sleep(int line, const std::function<std::string()>& awaited) {
    Fiber& me = fibers_[current_];
    me.state = State::asleep, me.line = line, me.awaited = &awaited;
    set_ready(current_, false);
    yield();
  }
  void wake(int thread) {
    fibers_[thread].state = State::ready;
    set_ready(thread, true);
  }

  void know(const Knowledge& more) {
    clocks.own(current_).join(more);
    knowledge_ = &clocks.of(current_);
  }
  void fence(Fence kind) {
    clocks.fence(kind, current_);
    check_clocks();
  }
  void meet_warp() { clocks.meet(warp_); }
  void add(Unit* unit) { units_.push_back(unit); }

  Clocks clocks;

 private:
  static constexpr int kBarriers = 16;  // of a block

  int groups_of_block() const { return (warps_of_block() + kGroup - 1) / kGroup; }

  void run_cluster(int number, int x, int y) {
    block_number_ = static_cast<uint32_t>(number), block_x_ = x, block_y_ = y;
    ++serial_;
    fibers_.assign(all_threads(), Fiber{});
    ready_.assign(warps(), ~0u), pausing_.assign(warps(), 0);
    operations_.assign(warps(), Operation{}), group_operations_.assign(groups(), Operation{});
    barriers_.assign(blocks_ * kBarriers + 1, Barrier{});
    clocks.begin(warps());
    oldest_ = access_by(clocks.before(), kMany);
    for (Unit* unit : units_) unit->begin();
    for (int t = 0; t < all_threads(); ++t) fibers_[t].context = stacks_.begin(t, &Machine::enter);
    mistake_.clear();
    turns_.begin(warps());
    running_ = this;
    go_on_with(choose());
    host_ = {};
    change(host_, fibers_[current_].context);
    for (int w = 0; w < warps(); ++w) traffic.meet(w);
    if (!mistake_.empty()) {
      clocks.forget();
      throw Mistake(mistake_);
    }
  }

  static void enter() {
    Machine& machine = *running_;
    arrive(machine.host_);
    (*machine.body_)();
    for (Unit* unit : machine.units_) unit->end_thread();
    machine.fibers_[machine.current_].state = State::done;
    machine.set_ready(machine.current_, false);
    machine.yield();
    std::abort();  // nobody goes on with a thread that is done
  }

  bool meet_at(int number, int expected, int line, bool vote, bool at_one_line) {
    Barrier& barrier = barriers_[number];
    if (barrier.arrived == 0) barrier.expected = expected, barrier.line = line;
    if (barrier.expected != expected || (at_one_line && barrier.line != line)) {
      fail("divergent barrier", "line " + std::to_string(line) + " meets line " + std::to_string(barrier.line));
    }
    Fiber& me = fibers_[current_];
    me.state = State::in_barrier, me.line = line, me.barrier = number, me.vote = vote;
    set_ready(current_, false);
    if (++barrier.arrived == expected) release(number);
    yield();
    return me.vote;
  }

  void release(int number) {
    Barrier& barrier = barriers_[number];
    std::vector<int> taking_part;
    bool vote = false;
    for (int w = 0; w < warps(); ++w) {
      uint32_t here = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        const Fiber& fiber = fibers_[w * kWarp + lane];
        if (fiber.state != State::in_barrier || fiber.barrier != number) continue;
        here |= 1u << lane, vote = vote || fiber.vote;
      }
      if (here != 0 && here != ~0u) {
        fail("divergent barrier",
             "a part of warp " + std::to_string(w) + " is at line " + std::to_string(barrier.line));
      }
      if (here != 0) taking_part.push_back(w);
    }
    clocks.meet(taking_part);
    check_clocks();
    for (const int w : taking_part) {
      traffic.meet(w);
      ready_[w] = ~0u;
      for (int lane = 0; lane < kWarp; ++lane) {
        Fiber& fiber = fibers_[w * kWarp + lane];
        fiber.state = State::ready, fiber.vote = vote;
      }
    }
    barrier = {};
  }

  template <class Perform>
  void meet_for(Operation& operation, State state, int first, int count, const char* kind, int line, void* argument,
                const Perform& perform) {
    if (operation.arrived == 0) operation.kind = kind, operation.line = line;
    if (operation.kind != kind || operation.line != line) {
      fail(count == 1 ? "divergent warp" : "divergent warpgroup",
           std::string(kind) + " of line " + std::to_string(line) + " meets " + operation.kind + " of line " +
               std::to_string(operation.line));
    }
    Fiber& me = fibers_[current_];
    me.argument = argument, me.state = state, me.line = line;
    set_ready(current_, false);
    if (++operation.arrived == count * kWarp) {
      Fiber* const lanes = &fibers_[first * kWarp];
      perform(lanes);
      operation.arrived = 0;
      for (int w = first; w < first + count; ++w) traffic.meet(w), ready_[w] = ~0u;
      for (int lane = 0; lane < count * kWarp; ++lane) lanes[lane].state = State::ready;
    }
    yield();
  }

  void check_clocks() {
    if (clocks.exhausted()) fail("too many barriers", "in one block");
  }

  [[gnu::always_inline]] void set_ready(int thread, bool ready) {
    const int warp = thread / kWarp;
    const uint32_t bit = 1u << thread % kWarp;
    uint32_t& lanes = ready_[warp];
    lanes = ready ? lanes | bit : lanes & ~bit;
    if (lanes == 0 && __builtin_expect(pausing_[warp] != 0, 0)) go_on_together(warp);
  }

  [[gnu::noinline]] void go_on_together(int warp) {
    const uint32_t lanes = std::exchange(pausing_[warp], 0);
    Fiber* const fibers = &fibers_[warp * kWarp];
    perform_(warp, lanes, fibers);
    for (int lane = 0; lane < kWarp; ++lane) {
      if ((lanes >> lane & 1) != 0) fibers[lane].state = State::ready;
    }
    ready_[warp] |= lanes;
    check_clocks();
  }

  // The thread that goes on, or -1.
  int choose() {
    int next = turns_.next(ready_);
    while (next < 0 && units_go_on()) next = turns_.next(ready_);
    return next;
  }
  [[gnu::noinline]] bool units_go_on() {
    return std::any_of(units_.begin(), units_.end(), [](Unit* unit) { return unit->go_on(); });
  }

  [[gnu::always_inline]] void go_on_with(int thread) {
    current_ = thread, warp_ = thread / kWarp, rank_ = blocks_ == 1 ? 0 : thread / threads_;
    knowledge_ = &clocks.of(thread);
  }

  [[gnu::always_inline]] void yield() {
    const int before = current_, next = choose();
    if (next < 0) finish();
    go_on_with(next);
    if (next != before) change(fibers_[before].context, fibers_[next].context);
  }

  // A thread that this one waits for, or -1.
  int absent(int thread) const {
    const Fiber& waiting = fibers_[thread];
    int first = 0, last = all_threads();
    if (waiting.state != State::in_barrier) {
      const int together = waiting.state == State::in_warp ? kWarp : kGroup * kWarp;
      first = thread - thread % threads_ % together, last = first + together;
    } else if (waiting.barrier < blocks_ * kBarriers) {
      first = thread - thread % threads_, last = first + threads_;
    }
    for (int other = first; other < last; ++other) {
      const Fiber& fiber = fibers_[other];
      if (fiber.state != waiting.state) return other;
      if (waiting.state == State::in_barrier && fiber.barrier != waiting.barrier) return other;
    }
    return -1;
  }

  // Nobody can go on: all threads are done, or some wait in vain. What is told first is a wait for a thread that is
  // done or at a barrier of more threads, then one for an mbarrier.
  [[noreturn]] void finish() {
    int told = -1, told_first = -1;
    for (int t = 0; t < all_threads(); ++t) {
      const Fiber& waiting = fibers_[t];
      if (waiting.state == State::done) continue;
      const int other = waiting.state == State::asleep ? -1 : absent(t);
      const State others = other < 0 ? State::asleep : fibers_[other].state;
      const bool left = others == State::done || (others == State::in_barrier && waiting.state != State::in_barrier);
      const int first = left ? 2 : other < 0 ? 1 : 0;
      if (first > told_first) told = t, told_first = first;
    }
    if (told >= 0) tell(told);
    for (Unit* unit : units_) unit->end();
    leave_for_good();
  }

  [[noreturn]] void tell(int thread) {
    const Fiber& waiting = fibers_[thread];
    go_on_with(thread);
    const std::string here = "waits at line " + std::to_string(waiting.line);
    if (waiting.state == State::asleep) fail("missed arrival", here + (*waiting.awaited)() + other_waits(thread));
    const int other = absent(thread);
    const Fiber& fiber = fibers_[other];
    fail(waiting.state == State::in_warp    ? "missed warp operation"
         : waiting.state == State::in_group ? "missed warpgroup operation"
                                            : "missed barrier",
         here + ", which " + name_of(other) +
             (fiber.state == State::done ? " never reached" : " waits for at line " + std::to_string(fiber.line)));
  }

  // One may wait for the other.
  std::string other_waits(int than) const {
    std::string others;
    for (int t = 0, last_line = fibers_[than].line; t < all_threads(); ++t) {
      const Fiber& fiber = fibers_[t];
      if (fiber.state != State::asleep || fiber.line == last_line) continue;
      others += "; " + name_of(t) + " waits at line " + std::to_string(fiber.line) + (*fiber.awaited)();
      last_line = fiber.line;
    }
    return others;
  }

  [[noreturn]] void leave_for_good() {
    Context abandoned;
    change(abandoned, host_, false);
    std::abort();
  }

  inline static Machine* running_ = nullptr;

  const char* kernel_ = "";
  Schedule schedule_{};
  Turns turns_{schedule_};
  const std::function<void()>* body_ = nullptr;
  int threads_ = 0, blocks_ = 1, warps_ = 0, current_ = 0, warp_ = 0, rank_ = 0;
  int grid_x_ = 0, block_x_ = 0, block_y_ = 0;
  uint32_t block_number_ = 0;
  const Knowledge* knowledge_ = nullptr;
  Access oldest_ = 0;
  uint64_t serial_ = 0;
  Context host_;
  std::string mistake_;
  Stacks stacks_;
  std::vector<Fiber> fibers_;
  std::vector<uint32_t> ready_, pausing_;  // lanes of every warp
  Perform perform_ = nullptr;
  std::vector<Operation> operations_, group_operations_;
  std::vector<Barrier> barriers_;  // of every block, then the cluster's
  std::vector<Unit*> units_;
};

inline Machine machine;

}  // namespace simt
