// The names of csrc/cuda/hopper.cuh, which includes this, for kernels compiled as host code.
//
// arrivals.h, tiles.h and products.h check what they do.
#pragma once
#include <cstdint>
#include <string>

#include "arrivals.h"
#include "machine.h"
#include "products.h"
#include "tiles.h"

namespace crossret {
namespace gpu {

using Arrivals = uint64_t;

inline void init_arrivals(Shared<Arrivals> at, int count) { simt::arrival_barriers.init(at.memory(), at.at(), count); }
inline void fence_arrivals() {
  simt::machine.fence(simt::Fence::arrivals);
  simt::machine.fence(simt::Fence::copies);
}
inline void fence_copies() { simt::machine.fence(simt::Fence::copies); }

inline void arrive(Shared<Arrivals> at) { simt::arrival_barriers.arrive(at.memory(), at.at(), 0); }
inline void arrive_at(Shared<Arrivals> at, int rank) { simt::arrival_barriers.arrive_at(at.memory(), at.at(), rank); }
inline void expect_bytes(Shared<Arrivals> at, int bytes) {
  if (bytes < 0 || bytes >= 1 << 20) simt::machine.fail("bad bytes", std::to_string(bytes));
  simt::arrival_barriers.arrive(at.memory(), at.at(), bytes);
}
inline void wait_phase(Shared<Arrivals> at, int parity, int line = __builtin_LINE()) {
  simt::arrival_barriers.find(at.memory(), at.at(), false).wait(parity, line);
}

struct TensorMap {
  simt::BoxedRows rows;
};

inline void copy_box(Shared<Chunk> to, const TensorMap& from, int column, int row, Shared<Arrivals> at) {
  simt::box_copies.issue(to.memory(), to.at(), from.rows, column, row,
                         simt::arrival_barriers.find(at.memory(), at.at(), true));
}

inline void copy_box_to_all(Shared<Chunk> to, const TensorMap& from, int column, int row, Shared<Arrivals> at) {
  using simt::arrival_barriers;
  for (int rank = 0; rank < simt::machine.blocks(); ++rank) {
    simt::box_copies.issue(arrival_barriers.there(to.memory(), rank), to.at(), from.rows, column, row,
                           arrival_barriers.find(arrival_barriers.there(at.memory(), rank), at.at(), true));
  }
}

inline void fence_products(int line = __builtin_LINE()) {
  simt::machine.collective_of_group("fence_products", line, nullptr, [](simt::Fiber*) { simt::products.fence(); });
}
inline void commit_products(int line = __builtin_LINE()) {
  simt::machine.collective_of_group("commit_products", line, nullptr, [](simt::Fiber*) { simt::products.commit(); });
}
template <int n>
void wait_products(int line = __builtin_LINE()) {
  simt::machine.collective_of_group("wait_products", line, nullptr, [](simt::Fiber*) { simt::products.wait(n); });
}
template <class T, int count>
void multiply_rows(float (&sums)[count], Shared<const Chunk> a, Shared<const Chunk> b, int step, bool add,
                   int line = __builtin_LINE()) {
  static_assert(count % 4 == 0 && count <= 128, "columns are a multiple of 8, at most 256");
  simt::Products::Lane me{sums, count, {a.memory(), a.at()}, {b.memory(), b.at()}, step, add, &simt::add_product<T>};
  simt::machine.collective_of_group("multiply_rows", line, &me,
                                    [](simt::Fiber* fibers) { simt::products.issue(fibers); });
}

// A warpgroup's registers, of which there are enough here.
template <int registers>
void take_registers(int line = __builtin_LINE()) {
  static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "as setmaxnreg takes them");
  simt::machine.collective_of_group("take_registers", line, nullptr, [](simt::Fiber*) {});
}
template <int registers>
void give_registers(int line = __builtin_LINE()) {
  static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "as setmaxnreg takes them");
  simt::machine.collective_of_group("give_registers", line, nullptr, [](simt::Fiber*) {});
}

inline int cluster_rank() { return simt::machine.rank(); }
inline void sync_cluster(int line = __builtin_LINE()) { simt::machine.sync_cluster(line); }

}  // namespace gpu
}  // namespace crossret
