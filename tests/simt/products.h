// Products that a warpgroup asks for and waits for later.
//
// A product reads its rows when it is asked for or when it is waited for, as the schedule says. Until then its sums are
// poisoned: who reads them has no numbers, and who writes them is found out.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"
#include "matrices.h"
#include "product_clocks.h"
#include "shared.h"
#include "tiles.h"

namespace simt {

constexpr int kProductRows = 64, kProductBytes = 32;  // of rows, in one product

// The rows of a product in shared memory.
struct ProductRows {
  SharedMemory* memory;
  int64_t at;

  int64_t chunk(int64_t row, int step, int half) const { return at + swizzled(row, 2 * step + half); }
  // 32 bytes of a row, as words.
  void load(int64_t row, int step, uint32_t (&words)[kProductBytes / 4]) const {
    for (int half = 0; half < 2; ++half) {
      std::memcpy(words + 4 * half, memory->address(chunk(row, step, half)), kChunkBytes);
    }
  }
  bool operator==(const ProductRows& other) const { return memory == other.memory && at == other.at; }
};

// values (64, columns) += a times b transposed, products exact.
template <class T>
void add_product(std::vector<float>& values, int columns, const ProductRows& a, const ProductRows& b, int step) {
  using Four = float __attribute__((vector_size(16)));
  constexpr int n = crossret::gpu::kElements<T>, words = kProductBytes / 4, k = n * words;
  static_assert(kProductBytes == 4 * words);
  uint32_t row[words];
  std::vector<float> right(static_cast<size_t>(k) * columns);
  for (int column = 0; column < columns; ++column) {
    b.load(column, step, row);
    for (int i = 0; i < words; ++i) crossret::gpu::unpack<T>(row[i], &right[n * i * columns + column], columns);
  }
  for (int r = 0; r < kProductRows; ++r) {
    float left[k];
    a.load(r, step, row);
    for (int i = 0; i < words; ++i) crossret::gpu::unpack<T>(row[i], &left[n * i], 1);
    float* const out = &values[static_cast<size_t>(r) * columns];
    for (int column = 0; column < columns; column += 4) {
      Four sum;
      std::memcpy(&sum, out + column, sizeof sum);
      for (int i = 0; i < k; ++i) {
        Four factors;
        std::memcpy(&factors, &right[i * columns + column], sizeof factors);
        sum += left[i] * factors;
      }
      std::memcpy(out + column, &sum, sizeof sum);
    }
  }
}

class Products : public Unit {
 public:
  using AddProduct = void (*)(std::vector<float>& values, int columns, const ProductRows& a, const ProductRows& b,
                              int step);
  // A thread's operands of a product.
  struct Lane {
    float* sums;
    int count;
    ProductRows a, b;
    int step;
    bool add;
    AddProduct perform;
  };

  Products() { machine.add(this); }

  void begin() override { groups_.clear(); }
  void end_thread() override {
    if (groups_.empty() || machine.warps_of_block() < Machine::kGroup) return;
    if (!mine().in_flight.empty()) machine.fail("unfinished product", "whose sums the thread has not waited for");
  }

  void fence() {
    Group& group = mine();
    group.fenced = true;
    for (Seen& seen : group.seen) {
      seen.values.clear();
      if (find(group, seen.of[0]) != nullptr) continue;
      for (float* const sums : seen.of) seen.values.insert(seen.values.end(), sums, sums + seen.count);
    }
  }

  // Issues a product for the warpgroup, by the last of its threads.
  void issue(const Fiber* fibers) {
    Group& group = mine();
    const auto lane = [&](int i) -> const Lane& { return *static_cast<const Lane*>(fibers[i].argument); };
    const Lane& first = lane(0);
    for (int i = 0; i < kThreads; ++i) {
      const Lane& other = lane(i);
      if (!(other.a == first.a && other.b == first.b) || other.step != first.step || other.add != first.add) {
        machine.fail("divergent warpgroup", "a product of different rows");
      }
    }
    read_rows(group, first);
    Sums* sums = find(group, first.sums);
    if (sums == nullptr) {
      check_fenced(group, first);
      group.in_flight.push_back(std::make_unique<Sums>());
      sums = group.in_flight.back().get();
      sums->count = first.count, sums->values.resize(static_cast<size_t>(kThreads) * first.count);
      for (int i = 0; i < kThreads; ++i) sums->of[i] = lane(i).sums;
      sums->take();
      remember(group, *sums);
    } else {
      for (int i = 0; i < kThreads; ++i) {
        if (sums->of[i] != lane(i).sums || sums->count != first.count) {
          machine.fail("divergent warpgroup", "a product of different sums");
        }
      }
      sums->check_poison();
    }
    sums->group = group.committed + 1;
    const Product product{sums, first.perform, first.a, first.b, first.step, first.add, group.committed + 1};
    if (machine.schedule().late()) {
      group.products.push_back(product);
    } else {
      perform(product);
    }
  }

  void commit() { ++mine().committed; }

  // For all groups of products but the latest n.
  void wait(uint32_t n) {
    Group& group = mine();
    const uint32_t done = group.committed - std::min(group.committed, n);
    auto after = group.products.begin();
    for (; after != group.products.end() && after->group <= done; ++after) perform(*after);
    group.products.erase(group.products.begin(), after);
    for (auto& sums : group.in_flight) {
      if (sums->group > done) continue;
      sums->check_poison();
      sums->give();
      sums.reset(), group.fenced = false;
    }
    group.in_flight.erase(std::remove(group.in_flight.begin(), group.in_flight.end(), nullptr), group.in_flight.end());
    if (group.committed == 0) return;
    const int agent = product_clocks.first_agent(machine.group()), warp = machine.first_of_group();
    for (int i = 0; i < kThreads; ++i) {
      machine.clocks.know(warp * kWarp + i, agent + i / kWarp, machine.clocks.before() + done);
    }
  }

 private:
  static constexpr int kThreads = Machine::kGroup * kWarp;
  static constexpr uint32_t kPoison = 0x7FC5A5A5;  // not a number

  // Accumulators of products that are not waited for: the threads' arrays, and the sums to come.
  struct Sums {
    float* of[kThreads];
    int count;                  // of a thread
    std::vector<float> values;  // (64, 2 * count)
    uint32_t group;             // of products, the last that adds to them

    template <class Visit>
    void each(const Visit& visit) {
      for (int thread = 0; thread < kThreads; ++thread) {
        for (int i = 0; i < count; ++i) {
          const int e = i % 4, lane = thread % kWarp;
          const int row = thread / kWarp * 16 + lane / 4 + e / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + e % 2;
          visit(of[thread][i], values[static_cast<size_t>(row) * 2 * count + column]);
        }
      }
    }
    void take() {
      each([](float& own, float& value) { value = own, std::memcpy(&own, &kPoison, sizeof own); });
    }
    void give() {
      each([](float& own, float& value) { own = value; });
    }
    void check_poison() {
      each([](float& own, float&) {
        if (std::memcmp(&own, &kPoison, sizeof own) != 0) {
          machine.fail("unfinished product", "whose sums were written before it was waited for");
        }
      });
    }
  };
  struct Product {
    Sums* sums;
    AddProduct perform;
    ProductRows a, b;
    int step;
    bool add;
    uint32_t group;
  };
  // Sums of products that were waited for, and what they were at the fence.
  struct Seen {
    float* of[kThreads];
    int count;
    std::vector<float> values;
  };
  struct Group {
    bool fenced = false;
    uint32_t committed = 0;  // groups of products
    std::vector<std::unique_ptr<Sums>> in_flight;
    std::vector<Product> products;  // that are still to be made
    std::vector<Seen> seen;
  };

  Group& mine() {
    if (groups_.empty()) groups_.resize(machine.groups());
    return groups_[machine.group()];
  }

  static Sums* find(Group& group, const float* sums) {
    for (auto& one : group.in_flight) {
      if (one->of[0] == sums) return one.get();
    }
    return nullptr;
  }

  static void perform(const Product& product) {
    if (!product.add) std::fill(product.sums->values.begin(), product.sums->values.end(), 0.0f);
    product.perform(product.sums->values, 2 * product.sums->count, product.a, product.b, product.step);
  }

  // Reads are checked by what every thread of the warpgroup knows.
  static void read_rows(const Group& group, const Lane& product) {
    const int number = machine.group(), agent = product_clocks.first_agent(number);
    const int first = machine.first_of_group() * kWarp;
    Knowledge all = machine.clocks.of(first);
    all.single.clear();
    for (int i = 1; i < kThreads; ++i) all.meet(machine.clocks.of(first + i));
    const uint32_t clock = machine.clocks.before() + 1 + group.committed;
    machine.clocks.note(clock);
    const Access access = access_by(clock, static_cast<uint32_t>(agent * kWarp));
    const auto read = [&](const ProductRows& rows, int64_t count) {
      if (rows.memory == nullptr) machine.fail("no shared memory", "a pointer to nothing");
      if (rows.at % kBoxAlignment != 0) {
        machine.fail("misaligned shared product", rows.memory->place(rows.at) + ", 1024 bytes");
      }
      for (int64_t row = 0; row < count; ++row) {
        for (int half = 0; half < 2; ++half) {
          rows.memory->read_by_products(rows.chunk(row, product.step, half), number, access, all);
        }
      }
    };
    read(product.a, kProductRows);
    read(product.b, 2 * product.count);
  }

  static void check_fenced(const Group& group, const Lane& product) {
    if (!group.fenced) machine.fail("missing fence", "a product without fence_products");
    for (const Seen& seen : group.seen) {
      if (seen.of[0] != product.sums || seen.count != product.count || seen.values.empty()) continue;
      for (int i = 0; i < kThreads; ++i) {
        if (std::memcmp(seen.of[i], &seen.values[i * seen.count], sizeof(float) * seen.count) != 0) {
          machine.fail("missing fence", "a product whose sums were written behind fence_products");
        }
      }
    }
  }

  static void remember(Group& group, const Sums& sums) {
    for (const Seen& seen : group.seen) {
      if (seen.of[0] == sums.of[0] && seen.count == sums.count) return;
    }
    group.seen.emplace_back();
    std::copy_n(sums.of, kThreads, group.seen.back().of);
    group.seen.back().count = sums.count;
  }

  std::vector<Group> groups_;
};

inline Products products;

}  // namespace simt
