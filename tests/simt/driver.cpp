// Launches of kernels on the CPU, as Python calls them.
#include <cstddef>
#include <cstring>
#include <iterator>

#include "accesses.cuh"
#include "planted.cuh"
#include "planted_copies.cuh"
#include "programs.cuh"
#include "reported.h"
#include "vocabulary.cuh"

extern "C" const char __ehdr_start;  // where the library lies: of the linker

namespace {

using namespace crossret;
using namespace crossret::gpu;
using Kind = simt::Device::Kind;

template <class T>
Global<const T> input(simt::Device& device, const char* name, const void* at, int64_t count) {
  const auto* const first = static_cast<const T*>(at);
  return {first, device.add(name, first, count * static_cast<int64_t>(sizeof(T)), Kind::input)};
}

template <class T>
Global<T> output(simt::Device& device, const char* name, void* at, int64_t count) {
  auto* const first = static_cast<T*>(at);
  return {first, device.add(name, first, count * static_cast<int64_t>(sizeof(T)), Kind::output)};
}

struct Fault {
  const char* name;
  void (*kernel)(planted::Call);
};

#define FAULT(name) {#name, planted::name}
constexpr Fault kFaults[] = {FAULT(race_between_warps),
                             FAULT(race_past_a_warps_barrier),
                             FAULT(race_in_a_warp),
                             FAULT(write_before_all_have_read),
                             FAULT(two_writers),
                             FAULT(barrier_without_a_warp),
                             FAULT(barrier_without_odd_threads),
                             FAULT(barriers_of_two_numbers),
                             FAULT(barriers_of_two_branches),
                             FAULT(shuffle_by_half_a_warp),
                             FAULT(shuffle_beside_a_vote),
                             FAULT(read_of_nothing),
                             FAULT(read_of_another_blocks),
                             FAULT(write_beyond_shared_memory),
                             FAULT(read_before_shared_memory),
                             FAULT(write_beyond_the_output),
                             FAULT(read_before_the_input),
                             FAULT(read_of_the_output),
                             FAULT(write_to_the_input),
                             FAULT(four_at_an_odd_place),
                             FAULT(blocks_that_meet),
                             FAULT(copy_without_a_wait),
                             FAULT(copy_without_a_barrier),
                             FAULT(wait_for_all_but_one),
                             FAULT(wait_before_the_commit),
                             FAULT(copy_that_nobody_waits_for),
                             FAULT(ring_too_short),
                             FAULT(write_under_a_copy),
                             FAULT(two_copies_to_one_place),
                             FAULT(copy_beyond_the_input),
                             FAULT(misaligned_chunk),
                             FAULT(misaligned_source),
                             FAULT(write_beyond_dynamic_memory),
                             FAULT(memory_of_two_types),
                             FAULT(matrix_before_its_rows),
                             FAULT(product_of_half_a_warp),
                             FAULT(vote_beside_a_barrier)};
#undef FAULT

struct Word {
  const char* name;
  int in, out;
  void (*kernel)(Global<const uint32_t>, Global<uint32_t>);
};

constexpr Word kWords[] = {{"copied", 8, 8, vocabulary::copied},
                           {"loaded", 4, 6, vocabulary::loaded},
                           {"multiplied bfloat16", 10, 4, vocabulary::multiplied<BFloat16>},
                           {"multiplied float16", 10, 4, vocabulary::multiplied<Float16>},
                           {"multiplied tfloat32", 10, 4, vocabulary::multiplied<TFloat32>},
                           {"calculated", 2, 7, vocabulary::calculated},
                           {"voted", 1, 4, vocabulary::voted},
                           {"rows", 1, 1, accesses::rows},
                           {"columns", 1, 1, accesses::columns},
                           {"padded_columns", 1, 1, accesses::padded_columns},
                           {"one_word", 1, 1, accesses::one_word},
                           {"chunks_of_rows", 4, 1, accesses::chunks_of_rows},
                           {"turned_chunks_of_rows", 4, 1, accesses::turned_chunks_of_rows},
                           {"odd_lanes", 4, 1, accesses::odd_lanes}};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The name of a fault, null after the last.
const char* fault_name(int number) {
  return number < static_cast<int>(std::size(kFaults)) ? kFaults[number].name : nullptr;
}

int run_fault(int number, int planted, int order, uint64_t seed, const float* in, float* out, int blocks, char* message,
              int64_t size) {
  return reported(message, size, [&] {
    simt::Device device({static_cast<simt::Order>(order), seed});
    const int64_t count = int64_t{blocks} * planted::kThreads;
    const planted::Call call{planted != 0, input<float>(device, "in", in, count),
                             output<float>(device, "out", out, count)};
    device.launch(kFaults[number].name, blocks, 1, planted::kThreads, planted::kSharedBytes,
                  [&] { kFaults[number].kernel(call); });
  });
}

// A mistake that only sanitizers see: they end the process.
void run_beyond_an_array(int planted, int order) {
  simt::Device device({static_cast<simt::Order>(order), 0});
  float in[planted::kThreads] = {}, out[planted::kThreads];
  const planted::Call call{planted != 0, input<float>(device, "in", in, planted::kThreads),
                           output<float>(device, "out", out, planted::kThreads)};
  device.launch("write_beyond_an_array", 1, 1, planted::kThreads, 0, [&] { planted::write_beyond_an_array(call, 7); });
}

// In two blocks, one after the other.
int run_program(int order, uint64_t seed, const programs::Step* steps, int threads, int phases, int steps_of_phase,
                int shared_bytes, char* message, int64_t size) {
  return reported(message, size, [&] {
    simt::Device device({static_cast<simt::Order>(order), seed});
    const programs::Program program{steps, phases, steps_of_phase, shared_bytes};
    device.launch("program", 2, 1, threads, shared_bytes, [&] { programs::run(program); });
  });
}

// Of 2 by 2 blocks.
int run_words(int order, uint64_t seed, const int* in, int* out, char* message, int64_t size) {
  return reported(message, size, [&] {
    simt::Device device({static_cast<simt::Order>(order), seed});
    const int64_t count = int64_t{4} * vocabulary::kThreads;
    const auto numbers = input<int>(device, "in", in, count);
    const auto made = output<int>(device, "out", out, count * vocabulary::kWords);
    device.launch("words", 2, 2, vocabulary::kThreads, 0, [&] { vocabulary::words(numbers, made); });
  });
}

// Of `count` floats in each of the 16-bit types, and of those as floats again, in two halves.
int run_conversions(const float* in, void* bfloats, void* halves, float* out, int count, char* message, int64_t size) {
  return reported(message, size, [&] {
    simt::Device device({simt::Order::forward, 0});
    const int blocks = (count + vocabulary::kThreads - 1) / vocabulary::kThreads;
    const auto from = input<float>(device, "in", in, count);
    const auto narrow = output<BFloat16>(device, "bfloats", bfloats, count);
    const auto half = output<Float16>(device, "halves", halves, count);
    const auto wide = output<float>(device, "out", out, int64_t{2} * count);
    device.launch("narrowed", blocks, 1, vocabulary::kThreads, 0,
                  [&] { vocabulary::narrowed(from, narrow, half, count); });
    device.launch("widened_bits", blocks, 1, vocabulary::kThreads, 0,
                  [&] { vocabulary::widened_bits(narrow, half, wide, count); });
  });
}

// Counts what accesses cost from here on, or says what they have.
void count_traffic(int on) {
  simt::traffic.on = on != 0;
  simt::traffic.clear();
}
int report_traffic(char* message, int64_t size) {
  const std::string lines = simt::traffic.report(&__ehdr_start);
  if (static_cast<int64_t>(lines.size()) >= size) return 1;
  std::memcpy(message, lines.c_str(), lines.size() + 1);
  return 0;
}

// Words of every thread from words of every thread, in clusters of so many blocks.
int run_word(const char* name, int order, uint64_t seed, const uint32_t* in, uint32_t* out, int blocks, int cluster,
             char* message, int64_t size) {
  return reported(message, size, [&] {
    simt::Device device({static_cast<simt::Order>(order), seed});
    const int64_t threads = int64_t{blocks} * vocabulary::kThreads;
    for (const Word& word : kWords) {
      if (std::strcmp(word.name, name) != 0) continue;
      const auto given = input<uint32_t>(device, "in", in, threads * word.in);
      const auto made = output<uint32_t>(device, "out", out, threads * word.out);
      device.launch(
          name, blocks, 1, vocabulary::kThreads, vocabulary::kSharedBytes, [&] { word.kernel(given, made); }, cluster);
      return;
    }
    throw simt::Mistake("no such word");
  });
}
}
