// Schedules: which thread goes on where several can.
#pragma once
#include <cstdint>
#include <vector>

#include "clocks.h"

namespace simt {

enum class Order : int { forward, reversed, bursts };

struct Schedule {
  Order order;
  uint64_t seed;  // of bursts

  // Whether asynchronous copies land, and products are made, when they are waited for; otherwise at once.
  bool late() const { return order == Order::bursts ? seed % 2 == 1 : order == Order::forward; }
};

class Turns {
 public:
  explicit Turns(const Schedule& schedule)
      : order_(schedule.order), random_(schedule.seed * 0x9E3779B97F4A7C15ull + 1) {}

  void begin(int warps) { at_warp_ = order_ == Order::reversed ? warps - 1 : 0, burst_ = 0; }

  // The thread that goes on, or -1 where none can: a warp as long as it can, from the first on or from the last,
  // or for a while.
  [[gnu::always_inline]] int next(const std::vector<uint32_t>& ready) {
    const bool stays = ready[at_warp_] != 0 && (order_ != Order::bursts || burst_-- > 0);
    if (!stays) {
      std::vector<int> able;
      for (int w = 0; w < static_cast<int>(ready.size()); ++w) {
        if (ready[w] != 0) able.push_back(w);
      }
      if (able.empty()) return -1;
      at_warp_ = order_ == Order::forward    ? able.front()
                 : order_ == Order::reversed ? able.back()
                                             : able[random() % able.size()];
      burst_ = 1 << random() % 12;
    }
    uint32_t lanes = ready[at_warp_];
    if (order_ == Order::reversed) return at_warp_ * kWarp + 31 - __builtin_clz(lanes);
    if (order_ == Order::bursts) {
      for (uint32_t skip = random() % static_cast<uint32_t>(__builtin_popcount(lanes)); skip > 0; --skip) {
        lanes &= lanes - 1;
      }
    }
    return at_warp_ * kWarp + __builtin_ctz(lanes);
  }

 private:
  uint32_t random() {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return static_cast<uint32_t>(random_ >> 16);
  }

  Order order_;
  int at_warp_ = 0, burst_ = 0;
  uint64_t random_;
};

}  // namespace simt
