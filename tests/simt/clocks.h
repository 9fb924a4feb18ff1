// Clocks, by which accesses to shared memory are ordered: who knows of what others did.
//
// Each warp has a clock, which its barriers advance, and knows of the other warps' clocks what barriers told it: an
// access is ordered behind another where its warp knows of a clock as late as the other's. What works beside the warps,
// copies of boxes and products, has clocks too; their owners are agents, of whom warps are the first. A thread that has
// waited for an mbarrier knows more than its warp does until they meet.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace simt {

constexpr int kWarp = 32, kMostWarps = 32, kMostAgents = 63;

// An agent's clock and one of its threads, or kMany of them, in one word: the later, the greater. It is positive as
// int. Agent i has threads from 32 i on.
using Access = uint32_t;
constexpr int kThreadBits = 11;
constexpr Access kMany = (1u << kThreadBits) - 1;
constexpr Access access_by(uint32_t clock, uint32_t thread) { return clock << kThreadBits | thread; }
constexpr uint32_t clock_of(Access access) { return access >> kThreadBits; }
constexpr uint32_t thread_of(Access access) { return access & kMany; }
static_assert(kMostAgents * kWarp <= static_cast<int>(kMany), "all threads of agents have numbers");

// Last accesses of every agent that somebody's next accesses are ordered behind.
struct Knowledge {
  alignas(16) Access behind[kMostAgents + 1] = {};  // of every agent the last
  std::vector<Access> single;                       // of single threads, of which more is known than of their warps

  bool of(int agent, Access access) const {
    if (access <= behind[agent]) return true;
    return std::any_of(single.begin(), single.end(),
                       [&](Access last) { return thread_of(last) == thread_of(access) && access <= last; });
  }

  void learn(Access access) {
    for (Access& last : single) {
      if (thread_of(last) == thread_of(access)) return void(last = std::max(last, access));
    }
    single.push_back(access);
  }

  // Keeps the accesses that both know.
  void meet(const Knowledge& other) {
    for (int i = 0; i < kMostAgents; ++i) behind[i] = std::min(behind[i], other.behind[i]);
  }
  // Adds the accesses that the other knows.
  void join(const Knowledge& other) {
    for (int i = 0; i < kMostAgents; ++i) behind[i] = std::max(behind[i], other.behind[i]);
    for (const Access last : other.single) learn(last);
  }
};

// Fences between a thread's write and its use by another: of writes to tiles, and of initialised mbarriers.
enum class Fence : int { copies, arrivals };

class Clocks {
 public:
  // Clocks go on from block to block, so that what an earlier block did is older than what any warp knows. Before they
  // come to kNever, and after a mistake, they begin anew: another generation.
  static constexpr uint32_t kNever = (1u << 20) - 1;

  void begin(int warps) {
    if (latest_ > kNever / 2) forget();
    warps_ = agents_ = warps, before_ = latest_;
    for (int w = 0; w < warps; ++w) {
      std::fill_n(of_warps_[w].behind, kMostAgents, access_by(before_, kMany));
      of_warps_[w].single.clear();
      now_[w] = before_ + 1, apart_[w] = 0;
    }
    note(before_ + 1);
    for (auto& of_threads : fences_) of_threads.clear();
  }
  void forget() { ++generation_, latest_ = 0; }

  uint32_t generation() const { return generation_; }
  bool exhausted() const { return latest_ + 1 >= kNever; }
  uint32_t before() const { return before_; }  // what every agent's clocks follow
  uint32_t now(int warp) const { return now_[warp]; }

  const Knowledge& of(int thread) const { return apart(thread) ? *own_[thread] : of_warps_[thread / kWarp]; }
  // Knowledge that a thread has for itself until its warp meets.
  Knowledge& own(int thread) {
    if (own_.empty()) own_.resize(kMostWarps * kWarp);
    if (!apart(thread)) {
      if (own_[thread] == nullptr) own_[thread] = std::make_unique<Knowledge>();
      *own_[thread] = of_warps_[thread / kWarp];
      apart_[thread / kWarp] |= 1u << thread % kWarp;
    }
    return *own_[thread];
  }

  // A thread knows of an agent's clock, and its warp does where it knows no more.
  void know(int thread, int agent, uint32_t clock) {
    Access& last = (apart(thread) ? *own_[thread] : of_warps_[thread / kWarp]).behind[agent];
    last = std::max(last, access_by(clock, kMany));
  }

  // The lanes of a warp meet.
  void meet(int warp) {
    if (apart_[warp] != 0) gather(warp);
    of_warps_[warp].behind[warp] = access_by(now_[warp], kMany);
    step(warp);
  }
  void meet(const std::vector<int>& warps) {
    Knowledge& all = of_warps_[warps[0]];
    for (const int w : warps) {
      if (apart_[w] != 0) gather(w);
      Knowledge& own = of_warps_[w];
      own.behind[w] = access_by(now_[w], kMany);
      if (&own == &all) continue;
      for (int of = 0; of < agents_; ++of) all.behind[of] = std::max(all.behind[of], own.behind[of]);
      for (const Access last : own.single) all.learn(last);
    }
    for (const int w : warps) {
      if (&of_warps_[w] != &all) {
        std::copy_n(all.behind, agents_, of_warps_[w].behind);
        of_warps_[w].single = all.single;
      }
      step(w);
    }
  }

  // Advances a warp's clock: later accesses have another time, and are not ordered by it.
  void step(int warp) { note(++now_[warp]); }
  void note(uint32_t clock) { latest_ = std::max(latest_, clock); }

  // The first of `count` new agents, or -1 where there are too many.
  int add_agents(int count) {
    if (agents_ + count > kMostAgents) return -1;
    agents_ += count;
    return agents_ - count;
  }

  void fence(Fence kind, int thread) {
    auto& of_threads = fences_[static_cast<int>(kind)];
    if (of_threads.empty()) of_threads.resize(kMostWarps * kWarp);
    of_threads[thread].push_back(now_[thread / kWarp]);
    step(thread / kWarp);
  }
  // True where the writer has put a fence behind the write, and this knowledge has it.
  bool fenced(Fence kind, Access write, const Knowledge& known, int thread) const {
    const auto& of_threads = fences_[static_cast<int>(kind)];
    const uint32_t writer = thread_of(write);
    if (of_threads.empty()) return false;
    const auto& clocks = of_threads[writer];
    const auto first = std::lower_bound(clocks.begin(), clocks.end(), clock_of(write));
    if (first == clocks.end()) return false;
    return static_cast<int>(writer) == thread || known.of(static_cast<int>(writer) / kWarp, access_by(*first, writer));
  }

 private:
  bool apart(int thread) const { return (apart_[thread / kWarp] >> thread % kWarp & 1) != 0; }

  // The warp knows what any of its lanes knows.
  void gather(int warp) {
    for (int lane = 0; lane < kWarp; ++lane) {
      if ((apart_[warp] >> lane & 1) != 0) of_warps_[warp].join(*own_[warp * kWarp + lane]);
    }
    apart_[warp] = 0;
  }

  int warps_ = 0, agents_ = 0;
  uint32_t before_ = 0, latest_ = 0, generation_ = 0;
  uint32_t now_[kMostWarps] = {}, apart_[kMostWarps] = {};  // apart: lanes that have knowledge of their own
  Knowledge of_warps_[kMostWarps];
  std::vector<std::unique_ptr<Knowledge>> own_;   // of threads
  std::vector<std::vector<uint32_t>> fences_[2];  // clocks at which each thread put them
};

}  // namespace simt
