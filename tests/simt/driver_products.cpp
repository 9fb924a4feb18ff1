// Launches of kernels that copy boxes and multiply in warpgroups, as Python calls them.
#include <cstdint>
#include <iterator>

#include "cuda/launch.cuh"
#include "hopper_words.cuh"
#include "planted_products.cuh"
#include "reported.h"

namespace {

using namespace crossret;
using namespace crossret::gpu;

// A device and its stream.
struct Launcher {
  simt::Device device;
  Stream stream;

  Launcher(int order, uint64_t seed)
      : device({static_cast<simt::Order>(order), seed}), stream{&device, 0, 1, 227 << 10, 90} {}
};

struct Fault {
  const char* name;
  void (*kernel)(planted::ProductCall);
};

#define FAULT(name) {#name, planted::name}
constexpr Fault kFaults[] = {FAULT(refill_under_a_product),
                             FAULT(refill_when_one_warp_is_done),
                             FAULT(write_under_a_product),
                             FAULT(wait_for_the_wrong_parity),
                             FAULT(fewer_bytes_expected),
                             FAULT(more_bytes_expected),
                             FAULT(product_without_a_fence),
                             FAULT(sums_written_behind_the_fence),
                             FAULT(sums_read_early),
                             FAULT(sums_written_early),
                             FAULT(product_that_nobody_waits_for),
                             FAULT(missed_arrival),
                             FAULT(product_of_a_stage_on_its_way),
                             FAULT(wait_by_one_lane),
                             FAULT(arrivals_without_a_fence),
                             FAULT(arrivals_without_a_barrier),
                             FAULT(misaligned_box),
                             FAULT(box_beyond_shared_memory),
                             FAULT(product_without_a_thread),
                             FAULT(box_that_nobody_waits_for),
                             FAULT(product_of_nothing),
                             FAULT(written_rows_without_a_fence),
                             FAULT(fence_behind_the_barrier),
                             FAULT(release_before_the_warp_meets),
                             FAULT(read_behind_every_lanes_release),
                             FAULT(read_behind_the_release),
                             FAULT(arrivals_at_a_block_that_ended),
                             FAULT(copies_to_a_block_that_ended),
                             FAULT(refill_under_anothers_product),
                             FAULT(cluster_that_does_not_meet)};
#undef FAULT

template <class T>
void multiply(const Launcher& on, const void* left, const void* right, const float* in, float* out, int columns) {
  const auto run = [&](auto kernel) {
    const auto left_rows = tensor_map(on.stream, "left", left, 64, 128, 64);
    const auto right_rows = tensor_map(on.stream, "right", right, columns, 128, columns);
    const int bytes = (64 + columns) * 128 + 8;
    launch("products", kernel, {8, 1, vocabulary::kHopperThreads, bytes}, on.stream, left_rows, right_rows,
           input<float>(on.stream, "in", in, int64_t{64} * columns),
           output<float>(on.stream, "out", out, int64_t{8} * 64 * columns));
  };
  if (columns == 8) return run(&vocabulary::products<T, 4>);
  if (columns == 144) return run(&vocabulary::products<T, 72>);
  if (columns == 256) return run(&vocabulary::products<T, 128>);
  throw simt::Mistake("no such columns");
}

// Calls run(element) with the type of this number.
template <class Run>
void with_type(int type, const Run& run) {
  if (type == 0) return run(TFloat32{});
  if (type == 1) return run(BFloat16{});
  run(Float16{});
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The name of a fault, null after the last.
const char* product_fault_name(int number) {
  return number < static_cast<int>(std::size(kFaults)) ? kFaults[number].name : nullptr;
}

// left (64 * blocks, 96), right (16, 96), out (64 * blocks, 16).
int run_product_fault(int order, uint64_t seed, int number, int planted, int cluster, const float* left,
                      const float* right, float* out, int blocks, char* message, int64_t size) {
  return reported(message, size, [&] {
    using namespace planted;
    const Launcher on(order, seed);
    const ProductCall call{planted != 0,
                           cluster,
                           tensor_map(on.stream, "left", left, kRows * blocks, 4 * kDim, kRows),
                           tensor_map(on.stream, "right", right, kColumns, 4 * kDim, kColumns / cluster),
                           input<float>(on.stream, "numbers", right, kColumns * kDim),
                           output<float>(on.stream, "out", out, int64_t{kRows} * blocks * kColumns)};
    launch(kFaults[number].name, kFaults[number].kernel, {blocks, 1, kPipelineThreads, kPipelineBytes, cluster},
           on.stream, call);
  });
}

// Copies a box of box_rows rows of 128 bytes from each of `count` places (row, column).
int run_boxes(int order, uint64_t seed, const void* rows, int64_t n_rows, int64_t row_bytes, int box_rows,
              const int* places, int count, void* out, char* message, int64_t size) {
  return reported(message, size, [&] {
    const Launcher on(order, seed);
    const int bytes = (box_rows * 128 + 1023) / 1024 * 1024 + 8;
    launch("boxes", &vocabulary::boxes, {count, 1, vocabulary::kHopperThreads, bytes}, on.stream,
           tensor_map(on.stream, "rows", rows, n_rows, row_bytes, box_rows), box_rows,
           input<int>(on.stream, "places", places, int64_t{2} * count),
           output<Chunk>(on.stream, "out", out, int64_t{8} * count * box_rows));
  });
}

// left (64, 128 bytes), right (columns, 128 bytes), in (64, columns); out (8, 64, columns).
int run_products(int order, uint64_t seed, int type, const void* left, const void* right, const float* in, float* out,
                 int columns, char* message, int64_t size) {
  return reported(message, size, [&] {
    const Launcher on(order, seed);
    with_type(type, [&](auto kind) { multiply<decltype(kind)>(on, left, right, in, out, columns); });
  });
}

// In clusters of so many blocks: left (64 * blocks, 128 * steps bytes), right (144, the same), out (64 * blocks, 144).
int run_pipelined(int order, uint64_t seed, int type, const void* left, const void* right, float* out, int cluster,
                  int blocks, int steps, char* message, int64_t size) {
  return reported(message, size, [&] {
    const Launcher on(order, seed);
    constexpr int columns = 2 * vocabulary::kWide, bytes = 3 * (64 + columns) * 128 + 6 * 8;
    with_type(type, [&](auto kind) {
      launch("pipelined", &vocabulary::pipelined<decltype(kind)>,
             {blocks, 1, vocabulary::kHopperThreads, bytes, cluster}, on.stream,
             tensor_map(on.stream, "left", left, int64_t{64} * blocks, int64_t{128} * steps, 64),
             tensor_map(on.stream, "right", right, columns, int64_t{128} * steps, columns / cluster), cluster, steps,
             output<float>(on.stream, "out", out, int64_t{64} * blocks * columns));
    });
  });
}

// In clusters of so many blocks: in (count), out (blocks, 128).
int run_rounds(int order, uint64_t seed, const int* in, int count, int* out, int cluster, int blocks, char* message,
               int64_t size) {
  return reported(message, size, [&] {
    const Launcher on(order, seed);
    launch("rounds", &vocabulary::rounds, {blocks, 1, vocabulary::kHopperThreads, 2048, cluster}, on.stream, cluster,
           count, input<int>(on.stream, "in", in, count), output<int>(on.stream, "out", out, int64_t{128} * blocks));
  });
}
}
