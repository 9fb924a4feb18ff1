// Barriers in shared memory on which threads arrive and bytes of copies are counted: mbarriers.
//
// A phase is complete when so many have arrived, and as many bytes have come as were expected. Who waits for it then
// knows what those knew who arrived, and has what the copies wrote.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine.h"
#include "shared.h"

namespace simt {

class ArrivalBarrier {
 public:
  ArrivalBarrier(std::string place, SharedMemory* memory, int64_t at, int count)
      : place_(std::move(place)), memory_(memory), at_(at), count_(count), pending_(count) {}

  const std::string& place() const { return place_; }
  bool lies_at(const SharedMemory& memory, int64_t at) const { return memory_ == &memory && at_ == at; }

  // A thread that has this knowledge arrives.
  void arrive(const Knowledge& known, int bytes) {
    if (pending_ == 0) machine.fail("unexpected arrival", place_ + " has all arrivals of its phase");
    joining_.join(known);
    --pending_, expected_ += bytes;
    complete_if_all_came();
  }
  int pending() const { return pending_; }

  // So many bytes are on their way: what writes them.
  Access issue(int bytes) {
    if (agent_ < 0) {
      agent_ = machine.clocks.add_agents(1);
      if (agent_ < 0) machine.fail("too many agents", "barriers of copies");
    }
    const uint32_t clock = machine.clocks.before() + 1 + phase_;
    machine.clocks.note(clock);
    issued_ += bytes, last_issued_ = phase_ + 1;
    complete_if_all_came();
    return access_by(clock, static_cast<uint32_t>(agent_ * kWarp));
  }
  void land(int bytes) {
    landed_ += bytes;
    complete_if_all_came();
  }
  bool awaited() const { return !waiting_.empty(); }

  void wait(int parity, int line) {
    if (parity != 0 && parity != 1) machine.fail("bad parity", std::to_string(parity));
    if (static_cast<int>(phase_ % 2) == parity) {
      const uint32_t mine = phase_;
      waiting_.push_back(machine.thread());
      machine.sleep(line, [&] { return missing(mine); });
      return;
    }
    seen_ = phase_;
    if (phase_ > 0) machine.know(released_);
  }

  // When all threads are done.
  void end() const {
    if (last_issued_ > seen_) machine.fail("unfinished copy", "for whose bytes at " + place_ + " nobody has waited");
  }

 private:
  void complete_if_all_came() {
    if (pending_ > 0) return;
    if (issued_ > expected_) {
      machine.fail("unexpected bytes",
                   std::to_string(issued_) + " come to " + place_ + ", which expects " + std::to_string(expected_));
    }
    if (landed_ < expected_) return;
    ++phase_;
    pending_ = count_, expected_ = issued_ = landed_ = 0;
    released_.join(std::exchange(joining_, {}));
    if (agent_ >= 0) released_.behind[agent_] = access_by(machine.clocks.before() + phase_, kMany);
    if (!waiting_.empty()) seen_ = phase_;
    for (const int thread : std::exchange(waiting_, {})) {
      machine.clocks.own(thread).join(released_);
      machine.wake(thread);
    }
  }

  std::string missing(uint32_t phase) const {
    return " for phase " + std::to_string(phase) + " of " + place_ + ": " + std::to_string(pending_) + " of " +
           std::to_string(count_) + " arrivals and " + std::to_string(expected_ - landed_) + " of " +
           std::to_string(expected_) + " bytes are missing";
  }

  std::string place_;
  SharedMemory* memory_;
  int64_t at_;
  int count_, pending_, agent_ = -1;  // agent: of the copies whose bytes are counted here
  uint32_t phase_ = 0, seen_ = 0, last_issued_ = 0;
  int64_t expected_ = 0, issued_ = 0, landed_ = 0;  // bytes of this phase
  Knowledge joining_, released_;                    // of those who have arrived in this phase, and in earlier ones
  std::vector<int> waiting_;
};

// All mbarriers of a cluster.
class ArrivalBarriers : public Unit {
 public:
  ArrivalBarriers() { machine.add(this); }

  void begin() override { barriers_.clear(), from_others_.clear(), last_known_.assign(machine.blocks(), {}); }
  void end_thread() override {
    if (machine.blocks() > 1) last_known_[machine.rank()].join(machine.knowledge());
  }
  void end() override {
    for (const ArrivalBarrier& barrier : barriers_) barrier.end();
    for (const auto& [who, arrival] : from_others_) {
      const auto& [thread, rank] = who;
      if (last_known_[rank].of(thread / kWarp, arrival.access)) continue;
      machine.fail("early end", "of block " + std::to_string(rank) + " of the cluster, which does not know that " +
                                    machine.name_of(thread) + " has arrived at " + arrival.at->place());
    }
  }

  void init(SharedMemory* memory, int64_t at, int count) {
    if (memory == nullptr) machine.fail("no shared memory", "a pointer to nothing");
    if (count < 1 || count >= 1 << 20) machine.fail("bad count", std::to_string(count) + " arrivals");
    const uint64_t number = kMark | barriers_.size();
    memory->put<sizeof number, sizeof number>(at, &number);
    barriers_.emplace_back("the barrier in " + memory->place(at), memory, at, count);
  }

  // For the running thread, who must know of its initialisation; `fenced`: for copies or from another block.
  ArrivalBarrier& find(SharedMemory* memory, int64_t at, bool fenced) {
    if (memory == nullptr) machine.fail("no shared memory", "a pointer to nothing");
    uint64_t number = 0;
    memory->get<sizeof number, sizeof number>(at, &number);
    const uint64_t index = number & ~kMark;
    if ((number & kMark) != kMark || index >= barriers_.size() || !barriers_[index].lies_at(*memory, at)) {
      machine.fail("no barrier", "what lies in " + memory->place(at) + " was never initialised as one");
    }
    if (fenced && !machine.clocks.fenced(Fence::arrivals, memory->writer(at), machine.knowledge(), machine.thread())) {
      machine.fail("missing fence", barriers_[index].place() + " was initialised without fence_arrivals");
    }
    return barriers_[index];
  }

  // The memory in the same place of a block of the cluster.
  static SharedMemory* there(SharedMemory* memory, int rank) {
    if (memory != &dynamic_memory.memory(machine.rank())) machine.fail("no shared memory", "of a cluster");
    if (rank < 0 || rank >= machine.blocks()) machine.fail("no such block", std::to_string(rank) + " of the cluster");
    return &dynamic_memory.memory(rank);
  }

  void arrive(SharedMemory* memory, int64_t at, int bytes) {
    Arrival mine{&find(memory, at, false), bytes};
    machine.together(&mine, &ArrivalBarriers::arrive_together);
  }
  // A block must not end before it knows that others have arrived there.
  void arrive_at(SharedMemory* memory, int64_t at, int rank) {
    Arrival mine{&find(there(memory, rank), at, rank != machine.rank()), 0};
    if (rank != machine.rank()) from_others_[{machine.thread(), rank}] = {machine.access(), mine.at};
    machine.together(&mine, &ArrivalBarriers::arrive_together);
  }

 private:
  static constexpr uint64_t kMark = 0xA77Eull << 48;

  struct Arrival {
    ArrivalBarrier* at;
    int bytes;
  };

  // Lanes of a warp that arrive at once. What all lanes did till then is behind all their arrivals; of fewer it is
  // known for each of them alone.
  static void arrive_together(int warp, uint32_t lanes, Fiber* fibers) {
    while (lanes != 0) {
      const auto arrival = [&](int lane) { return static_cast<const Arrival*>(fibers[lane].argument); };
      ArrivalBarrier& barrier = *arrival(__builtin_ctz(lanes))->at;
      uint32_t here = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        if ((lanes >> lane & 1) != 0 && arrival(lane)->at == &barrier) here |= 1u << lane;
      }
      const uint32_t now = machine.clocks.now(warp);
      const bool whole = here == ~0u && barrier.pending() >= kWarp;
      for (int lane = 0; lane < kWarp; ++lane) {
        if ((here >> lane & 1) == 0) continue;
        const int thread = warp * kWarp + lane;
        Knowledge known = machine.clocks.of(thread);
        if (whole) {
          known.behind[warp] = access_by(now, kMany);
        } else {
          known.learn(access_by(now, static_cast<uint32_t>(thread)));
        }
        barrier.arrive(known, arrival(lane)->bytes);
      }
      lanes &= ~here;
    }
    machine.clocks.step(warp);
  }

  struct FromOther {
    Access access;
    const ArrivalBarrier* at;
  };

  std::deque<ArrivalBarrier> barriers_;
  std::map<std::pair<int, int>, FromOther> from_others_;  // of a thread and the rank of a block the last
  std::vector<Knowledge> last_known_;                     // of blocks' threads that are done
};

inline ArrivalBarriers arrival_barriers;

}  // namespace simt
