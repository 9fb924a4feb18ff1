// Asynchronous copies by threads into shared memory that are on their way.
//
// What a copy writes is nobody's until the thread that asked for it has waited, and that thread's from then on.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "machine.h"
#include "shared.h"

namespace simt {

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
