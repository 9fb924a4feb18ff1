// Launches of the kernels of stacked cross attention.
#include "cross_attention/gpu.h"

#include <algorithm>
#include <cmath>

#include "cross_attention/backward.cuh"
#include "cross_attention/feature_gradients.cuh"
#include "cross_attention/forward.cuh"
#include "cuda/dtypes.cuh"
#include "cuda/launch.cuh"
#include "cuda/told.h"

namespace crossret {
namespace gpu {

namespace {

constexpr int kProductBytes = 64;           // rows are packed to a multiple of it
constexpr float kLargestFreeLogit = 20.0f;  // weights of exp(±20) squared keep their digits, whatever lengths are
// Beyond these the greatest logit has all the weight, and what logits are made of could overflow: λ log₂e, divided by a
// norm of at least 1e-8 where there is one.
constexpr float kMostLambda = 1e30f, kMostLambdaUnnormed = 2e38f;

// 128 queries by 144 contexts; float32's own products take more registers. Longer items of contexts leave room for
// fewer queries.
using Tall = TileShape<4, 2, 2, 9, kProductBytes, 4, 2>;
using TallIeee = TileShape<4, 2, 2, 5, kProductBytes, 3, 1>;
using Flat = TileShape<2, 4, 1, 4, kProductBytes, 4, 2>;
using Flattest = TileShape<1, 8, 1, 2, kProductBytes, 4, 1>;
// Of float32 it would spill.
template <class Arithmetic>
using Flatter = std::conditional_t<std::is_same_v<typename Features<Arithmetic>::Element, float>, Flattest, Flat>;
// The same of gradients, which keep three tiles.
using Half = TileShape<2, 4, 2, 5, kProductBytes, 3, 1>;

int element_bytes(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

int blocks_for(int count, int size) { return std::max((count + size - 1) / size, 1); }

// run(arithmetic) of products of packed rows.
template <class Run>
void by_arithmetic(Dtype packed, bool tfloat32, const Run& run) {
  switch (packed) {
    case Dtype::float32:
      return tfloat32 ? run(TFloat32{}) : run(Ieee{});
    case Dtype::bfloat16:
      return run(BFloat16{});
    case Dtype::float16:
      return run(Float16{});
  }
}

template <class T>
Source<T> source_of(const SidePart& side, bool normalize, const Stream& stream) {
  Source<T> source{};
  source.item_stride = side.item_stride, source.row_stride = side.row_stride, source.packed = side.packed;
  source.starts = input<int>(stream, "starts", side.starts, side.all_items + 1);
  source.masked = side.places != nullptr;
  if (source.masked) source.places = input<int>(stream, "places", side.places, side.all_rows);
  source.first = side.first, source.dim = side.dim, source.normalize = normalize;
  return source;
}

int64_t chunks_of(const PackedPart& side) {
  return side.n_rows * int64_t{side.dim} * element_bytes(side.dtype) / kChunkBytes;
}

PackedSide packed_side(const PackedPart& side, const Stream& stream) {
  return {input<Chunk>(stream, "packed rows", side.rows, chunks_of(side)),
          input<float>(stream, "norms", side.norms, side.n_rows),
          input<PackedItem>(stream, "items", side.items, side.n_items)};
}

// Its parts in scratch memory.
int64_t gram_bytes(const AttentionCall& call) { return call.n_fragments * kWarp * int64_t{sizeof(Chunk)}; }

AttentionProblem problem_of(const AttentionCall& call, const Stream& stream, void* scratch, bool upper) {
  AttentionProblem problem{};
  problem.contexts = packed_side(call.contexts, stream), problem.queries = packed_side(call.queries, stream);
  problem.dim = call.queries.dim;
  Grams grams{};
  grams.fragments = output<Chunk>(stream, "Gram matrices", scratch, call.n_fragments * kWarp);
  grams.starts = input<int>(stream, "starts of Gram matrices", call.gram_starts, call.contexts.n_items);
  grams.flags = output<int>(stream, "flags", static_cast<char*>(scratch) + gram_bytes(call), call.contexts.n_items);
  grams.upper = upper;
  const int blocks = blocks_for(call.contexts.longest, kGramBlock);
  by_arithmetic(call.queries.dtype, call.tfloat32, [&](auto arithmetic) {
    launch("gram_matrices", gram_matrices<decltype(arithmetic)>,
           {call.contexts.n_items, int64_t{blocks} * blocks, GramTile::threads, kGramMemory}, stream, problem.contexts,
           grams, problem.dim, blocks, call.normalize);
  });
  problem.grams = grams.fragments, problem.gram_starts = grams.starts, problem.flags = grams.flags;
  const Jobs& jobs = call.jobs;
  problem.query_jobs = input<int>(stream, "jobs of queries", jobs.queries, jobs.n_queries + 1);
  problem.context_jobs = input<int>(stream, "jobs of contexts", jobs.contexts, jobs.n_contexts + 1);
  problem.n_query_jobs = jobs.n_queries, problem.n_context_jobs = jobs.n_contexts;
  problem.most_queries = jobs.most_queries;
  const CrossAttentionOptions& given = call.options;
  const bool free = given.norm != Norm::none && std::fabs(given.lambda_softmax) <= kLargestFreeLogit;
  const float most = given.norm == Norm::none ? kMostLambdaUnnormed : kMostLambda;
  const float lambda = std::clamp(given.lambda_softmax, -most, most);
  problem.options = {given.norm, given.pooling,    !free,           call.normalize, given.clip_slope,
                     lambda,     given.lambda_lse, call.empty_score};
  return problem;
}

template <class Shape>
AttentionMemory memory_of(int most_columns, int most_queries, bool softmax, bool gradients) {
  return AttentionMemory::of<Shape>(most_columns, most_queries, softmax, gradients);
}

// run(shape) of the first of the tiles, from the largest on, that `fits` says a block has the memory for. Beside items
// of contexts longer than any the largest is none of them.
template <class Arithmetic, bool gradients, class Fits, class Run>
void by_shape(bool has_long, const Fits& fits, const Run& run) {
  using Whole = std::conditional_t<std::is_same_v<Arithmetic, Ieee>, TallIeee, Tall>;
  using Largest = std::conditional_t<gradients, Half, Whole>;
  using Larger = Flatter<Arithmetic>;
  if (!has_long && fits(Largest{})) return run(Largest{});
  if (fits(Larger{})) return run(Larger{});
  run(Flattest{});
}

// run(shape, its memory) of a call.
template <class Arithmetic, bool gradients, class Run>
void by_shape(const AttentionCall& call, const Stream& stream, const Run& run) {
  const auto memory = [&](auto shape) {
    return memory_of<decltype(shape)>(call.jobs.most_columns, call.jobs.most_queries,
                                      call.options.norm == Norm::softmax, gradients);
  };
  const auto fits = [&](auto shape) { return memory(shape).total <= stream.most_shared; };
  by_shape<Arithmetic, gradients>(call.jobs.most_columns > Tall::columns, fits,
                                  [&](auto shape) { run(shape, memory(shape)); });
}

// The rows of a side's jobs where items of contexts have up to `longest`.
template <class Arithmetic, bool gradients>
JobRows job_rows_of(int longest, int most_queries, bool softmax, int most_shared) {
  JobRows found{};
  const auto columns = [&](auto shape) { return std::max(longest, std::min(decltype(shape)::columns, Tall::columns)); };
  const auto fits = [&](auto shape) {
    return memory_of<decltype(shape)>(columns(shape), most_queries, softmax, gradients).total <= most_shared;
  };
  by_shape<Arithmetic, gradients>(longest > Tall::columns, fits,
                                  [&](auto shape) { found = {decltype(shape)::rows, columns(shape)}; });
  return found;
}

}  // namespace

std::string attention_constants() {
  return told("attention_long", {Tall::columns}) + told("attention_items", {kMostContexts}) +
         told("attention_fragment_bytes", {kWarp * int64_t{sizeof(Chunk)}}) +
         // Of float32's own products, those in TF32, of bfloat16, of float16.
         told("attention_fragment_rows",
              {Fine<Ieee>::rows, Fine<TFloat32>::rows, Fine<BFloat16>::rows, Fine<Float16>::rows});
}

JobRows job_rows(Dtype packed, bool tfloat32, bool softmax, int longest, int most_queries, bool gradients,
                 int most_shared) {
  JobRows found{};
  by_arithmetic(packed, tfloat32, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    found = gradients ? job_rows_of<Arithmetic, true>(longest, most_queries, softmax, most_shared)
                      : job_rows_of<Arithmetic, false>(longest, most_queries, softmax, most_shared);
  });
  return found;
}

int packed_dim(int dim, Dtype dtype) {
  const int step = kProductBytes / element_bytes(dtype);
  return (dim + step - 1) / step * step;
}

int64_t packed_item_bytes() { return sizeof(PackedItem); }

void pack(const SidePart& side, const void* features, bool normalize, const PackedPart& out, const Stream& stream) {
  Packing packing{};
  packing.rows = output<Chunk>(stream, "packed rows", out.rows, chunks_of(out));
  packing.norms = output<float>(stream, "norms", out.norms, side.n_rows);
  if (normalize) packing.powers = output<float>(stream, "powers", out.powers, side.n_rows);
  packing.items = output<PackedItem>(stream, "items", out.items, side.n_items);
  packing.dim = out.dim;
  const Grid grid{side.n_items, blocks_for(side.longest, kPackWarps), kPackThreads};
  const auto run = [&](auto feature, auto packed) {
    using Feature = decltype(feature);
    Source<Feature> source = source_of<Feature>(side, normalize, stream);
    source.features = input<Feature>(stream, "features", features, side.elements);
    launch("pack_rows", pack_rows<Feature, decltype(packed)>, grid, stream, source, packing);
  };
  by_dtype(side.dtype, [&](auto feature) {
    if constexpr (std::is_same_v<decltype(feature), Float16>) {
      if (out.dtype == Dtype::float32) return run(feature, float{});
    }
    run(feature, feature);
  });
}

int64_t attention_scratch(const AttentionCall& call) { return gram_bytes(call) + int64_t{call.contexts.n_items} * 4; }

void score_attention(const AttentionCall& call, const PairList& listed, float* out, int64_t n_scores,
                     const Stream& stream, void* scratch) {
  AttentionProblem problem = problem_of(call, stream, scratch, true);
  ListedPairs pairs{};
  int64_t blocks = int64_t{call.jobs.n_queries} * call.jobs.n_contexts;
  if (listed.count != 0) {
    // Enough for a tile to be filled again and again, and for every multiprocessor to have some.
    const int64_t share = std::clamp<int64_t>(listed.count / (int64_t{8} * stream.multiprocessors), 4, 64);
    pairs = {input<int64_t>(stream, "pairs", listed.items, 2 * listed.count),
             input<int64_t>(stream, "order", listed.order, listed.count), listed.count, static_cast<int>(share)};
    blocks = (listed.count + share - 1) / share;
  }
  const Scores scores{updated<float>(stream, "scores", out, n_scores), call.context_stride, call.query_stride};
  by_arithmetic(call.queries.dtype, call.tfloat32, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    by_shape<Arithmetic, false>(call, stream, [&](auto shape, const AttentionMemory& memory) {
      using Shape = decltype(shape);
      problem.memory = memory;
      launch("attend", attend<Shape, Arithmetic>, {blocks, 1, Shape::threads, problem.memory.total}, stream, problem,
             pairs, scores);
    });
  });
}

int shares_of(const Jobs& jobs, const Stream& stream) {
  return std::clamp(2 * stream.multiprocessors / std::max(jobs.n_contexts, 1), 1, std::max(jobs.n_queries, 1));
}

void differentiate_attention(const AttentionCall& call, const GradientsOfAttention& made, const Stream& stream,
                             void* scratch) {
  AttentionProblem problem = problem_of(call, stream, scratch, false);
  by_arithmetic(call.queries.dtype, call.tfloat32, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    if constexpr (!std::is_same_v<Arithmetic, Float16>) {  // which has too little room: packed as float32
      using T = typename Features<Arithmetic>::Element;
      AttentionGradients<T> out{};
      out.grad_scores = input<float>(stream, "gradients of scores", made.grad_scores, made.n_scores);
      out.context_stride = call.context_stride, out.query_stride = call.query_stride;
      out.of_similarities =
          output<T>(stream, "gradients of similarities", made.of_similarities, call.queries.n_rows * made.pitch);
      out.pitch = made.pitch;
      out.own = output<float>(stream, "own gradients", made.own, int64_t{call.jobs.n_contexts} * call.queries.n_rows);
      out.of_grams = output<float>(stream, "gradients of Gram matrices", made.of_grams, made.shares * made.numbers);
      out.gram_numbers = input<int>(stream, "numbers of Gram matrices", made.gram_numbers, call.contexts.n_items);
      out.numbers = made.numbers, out.n_query_rows = call.queries.n_rows, out.shares = made.shares;
      by_shape<Arithmetic, true>(call, stream, [&](auto shape, const AttentionMemory& memory) {
        using Shape = decltype(shape);
        problem.memory = memory;
        launch("differentiate", differentiate<Shape, Arithmetic, T>,
               {call.jobs.n_contexts, made.shares, Shape::threads, problem.memory.total}, stream, problem, out);
      });
    }
  });
}

void finish_gradients(const SidePart& side, const PackedPart& packed, bool normalize, float* sums, const float* own,
                      int own_parts, const GradientsOfAttention* grams, void* out, const Stream& stream) {
  const PackedSide rows = packed_side(packed, stream);
  const Grid grid{side.n_items, blocks_for(side.longest, kRowWarps), kRowThreads};
  const int64_t numbers = int64_t{packed.n_rows} * packed.dim;
  const auto run = [&](auto element, auto feature) {
    using T = decltype(element);
    using Feature = decltype(feature);
    if (grams != nullptr) {
      const GramGradients given{
          input<float>(stream, "gradients of Gram matrices", grams->of_grams, grams->shares * grams->numbers),
          input<int>(stream, "numbers of Gram matrices", grams->gram_numbers, side.n_items), grams->numbers,
          grams->shares};
      launch("add_gram_products", add_gram_products<T>, grid, stream, rows, given,
             updated<float>(stream, "sums", sums, numbers), packed.dim);
    }
    RowSums given{};
    given.sums = input<float>(stream, "sums", sums, numbers);
    given.norms = rows.norms;
    if (normalize) given.powers = input<float>(stream, "powers", packed.powers, packed.n_rows);
    if (own_parts > 0) given.own = input<float>(stream, "own", own, int64_t{own_parts} * packed.n_rows);
    given.parts = own_parts, given.n_rows = packed.n_rows, given.dim = packed.dim;
    launch("store_gradients", store_gradients<T, Feature>, grid, stream, rows, given,
           source_of<Feature>(side, normalize, stream), updated<Feature>(stream, "gradients", out, side.elements));
  };
  by_dtype(side.dtype, [&](auto feature) {
    if constexpr (std::is_same_v<decltype(feature), Float16>) {
      run(float{}, feature);
    } else {
      run(feature, feature);
    }
  });
}

}  // namespace gpu
}  // namespace crossret
