// Tiles of the kernels of stacked cross attention, and which of them a call takes.
#pragma once
#include <algorithm>
#include <type_traits>

#include "cross_attention/backward.cuh"
#include "cross_attention/gpu.h"
#include "cross_attention/warpgroups.cuh"

namespace crossret {
namespace gpu {

constexpr int kProductBytes = 64;      // rows are packed to a multiple of it
constexpr int kMostQueriesOfLong = 4;  // items of a job with long contexts, whose norms take shared memory

// Tiles of 128 queries by 144 contexts. Longer items of contexts leave room for fewer queries.
using Tall = TileShape<4, 2, 2, 9, kProductBytes, 4, 2>;
using Flat = TileShape<2, 4, 1, 4, kProductBytes, 4, 2>;
using Flattest = TileShape<1, 8, 1, 2, kProductBytes, 4, 1>;
// Float32 features do without Flat: fewer kernels are compiled.
template <class Arithmetic>
using Flatter = std::conditional_t<std::is_same_v<typename Features<Arithmetic>::Element, float>, Flattest, Flat>;
// For gradients, which keep three tiles.
using Half = TileShape<2, 4, 2, 5, kProductBytes, 3, 1>;
// On compute capability 9.0 alone.
using OfWarpgroups = WarpgroupShape<2>;
static_assert(OfWarpgroups::rows == Tall::rows && OfWarpgroups::columns == Tall::columns, "they take the same jobs");

// Bounds of jobs, and the layout of a block's shared memory.
struct Tiling {
  JobSizes sizes;
  AttentionMemory memory;
};

template <class Shape>
Tiling tiling_of(int longest, bool softmax, bool gradients) {
  const int columns = std::max(longest, std::min(Shape::columns, Tall::columns));
  const int most_queries = longest > Tall::columns ? kMostQueriesOfLong : kMostQueries;
  return {{Shape::rows, columns, most_queries, kMostContexts},
          AttentionMemory::of<Shape>(columns, most_queries, softmax, gradients)};
}

// Calls run(shape, its tiling) with the largest tile that fits in a block's shared memory. Items longer than a tall
// tile's columns never take the largest.
template <class Arithmetic, bool gradients, class Run>
void by_shape(int longest, bool softmax, int most_shared, const Run& run) {
  using Largest = std::conditional_t<gradients, Half, Tall>;
  using Larger = Flatter<Arithmetic>;
  const auto tiling = [&](auto shape) { return tiling_of<decltype(shape)>(longest, softmax, gradients); };
  const auto fits = [&](auto shape) { return tiling(shape).memory.total <= most_shared; };
  if (longest <= Tall::columns && fits(Largest{})) return run(Largest{}, tiling(Largest{}));
  if (fits(Larger{})) return run(Larger{}, tiling(Larger{}));
  run(Flattest{}, tiling(Flattest{}));
}

template <class Arithmetic, bool gradients, class Run>
void by_shape(const AttentionCall& call, const Stream& stream, const Run& run) {
  by_shape<Arithmetic, gradients>(call.contexts.part.longest, call.choices.options.norm == Norm::softmax,
                                  stream.most_shared, run);
}

inline bool usual(const AttentionOptions& options) {
  return options.norm == Norm::l2 && !options.shifted && 0.0f <= options.slope && options.slope <= 1.0f;
}

// Calls run(whether the options are usual), of which kernels with the largest tiles are compiled apart.
template <class Shape, class Run>
void by_options(const AttentionOptions& options, const Run& run) {
  if constexpr (std::is_same_v<Shape, Tall> || std::is_same_v<Shape, Half>) {
    if (usual(options)) return run(std::true_type{});
  }
  run(std::false_type{});
}

}  // namespace gpu
}  // namespace crossret
