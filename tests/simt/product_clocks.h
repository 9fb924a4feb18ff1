// Clocks of products that read shared memory on their own: a group of products is later than the one before.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "machine.h"

namespace simt {

// Each warp of a warpgroup waits for its part of the products, so that a part has a clock of its own.
class ProductClocks : public Unit {
 public:
  ProductClocks() { machine.add(this); }

  void begin() override { first_agents_.clear(); }

  // Warpgroups whose products may read; none where nobody multiplies.
  int groups() const { return static_cast<int>(first_agents_.size()); }

  // The last product of a warpgroup that all its warps are known to be done with.
  Access behind(int group, const Knowledge& known) const {
    const int first = first_agents_[group];
    if (first < 0) return access_by(Clocks::kNever, kMany);
    return *std::min_element(known.behind + first, known.behind + first + Machine::kGroup);
  }

  // The agent that is the first warp's part of the products.
  int first_agent(int group) {
    if (first_agents_.empty()) first_agents_.assign(machine.groups(), -1);
    int& first = first_agents_[group];
    if (first < 0) first = machine.clocks.add_agents(Machine::kGroup);
    if (first < 0) machine.fail("too many agents", "products of so many warpgroups");
    return first;
  }

 private:
  std::vector<int> first_agents_;
};

inline ProductClocks product_clocks;

}  // namespace simt
