// Launches of the kernels of stacked cross attention.
#include "cross_attention/gpu.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>

#include "cross_attention/feature_gradients.cuh"
#include "cross_attention/tilings.cuh"
#include "cuda/launch.cuh"

namespace crossret {
namespace gpu {

namespace {

constexpr float kLargestFreeLogit = 20.0f;  // squares of weights exp(±20) keep their digits: no maximum is subtracted
// Bounds of |λ|. Beyond them the greatest logit has all the weight, and λ log₂e / ε could overflow.
constexpr float kMostLambda = 1e30f, kMostLambdaUnnormed = 2e38f;

// Calls run(element) with an element of the features' dtype.
template <class Run>
void by_dtype(Dtype dtype, const Run& run) {
  switch (dtype) {
    case Dtype::float32:
      return run(float{});
    case Dtype::bfloat16:
      return run(BFloat16{});
    case Dtype::float16:
      return run(Float16{});
  }
}

int blocks_for(int count, int size) { return std::max((count + size - 1) / size, 1); }

// Calls run(arithmetic) with the arithmetic of products of packed rows, float32's that of TF32.
template <class Run>
void by_arithmetic(Dtype packed, const Run& run) {
  switch (packed) {
    case Dtype::float32:
      return run(TFloat32{});
    case Dtype::bfloat16:
      return run(BFloat16{});
    case Dtype::float16:
      return run(Float16{});
  }
}

template <class T>
RaggedRows<T> ragged_rows(const RaggedPart& side, bool normalize, const Stream& stream) {
  RaggedRows<T> source{};
  source.item_stride = side.item_stride, source.row_stride = side.row_stride, source.packed = side.packed;
  source.has_extents = side.extents != nullptr, source.masked = side.places != nullptr;
  const int64_t extents = side.packed ? side.all_items + 1 : side.all_items;
  if (source.has_extents) source.extents = input<int64_t>(stream, "extents", side.extents, extents);
  if (source.masked) source.places = input<int64_t>(stream, "places", side.places, side.all_items * side.most);
  if (side.part.slots == 0) source.starts = input<int>(stream, "starts", side.starts, side.all_items + 1);
  source.first = side.part.first, source.slots = side.part.slots, source.most = static_cast<int>(side.most);
  source.dim = side.dim, source.normalize = normalize;
  return source;
}

int64_t chunks_of(const PackedPart& side) {
  return in_eights(side.part.n_rows) * side.dim * element_bytes(side.dtype) / kChunkBytes;
}

PackedRows packed_rows(const PackedPart& side, const Stream& stream) {
  return {input<Chunk>(stream, "packed rows", side.rows, chunks_of(side)),
          input<float>(stream, "norms", side.norms, side.part.n_rows),
          input<PackedItem>(stream, "items", side.items, side.part.n_items)};
}

// Fragments of the longest item's Gram matrix: every item has room for as many.
int64_t fragments_of(const Part& part, Dtype packed) {
  int64_t count = 0;
  by_arithmetic(packed, [&](auto arithmetic) {
    count = int64_t{blocks_for(part.longest, Fine<decltype(arithmetic)>::rows)} * blocks_for(part.longest, 8);
  });
  return count;
}

// A part's jobs: from the table, or with slots as many items as fit in `rows`.
JobBounds jobs_of(const char* name, const Part& part, const JobTable& table, int rows, int most, int& count,
                  const Stream& stream) {
  JobBounds jobs{};
  jobs.n_items = part.n_items, count = table.count;
  if (part.slots == 0) {
    jobs.table = input<int>(stream, name, table.begins, table.count + 1);
  } else {
    jobs.apart = std::clamp(rows / part.slots, 1, most);
    count = blocks_for(part.n_items, jobs.apart);
  }
  return jobs;
}

AttentionProblem problem_of(const AttentionCall& call, const Tiling& tiling, const Stream& stream) {
  AttentionProblem problem{};
  const AttentionChoices& choices = call.choices;
  problem.contexts = packed_rows(call.contexts, stream), problem.queries = packed_rows(call.queries, stream);
  problem.dim = call.queries.dim;
  const Part& part = call.contexts.part;
  problem.gram_apart = fragments_of(part, call.contexts.dtype);
  problem.grams = input<Chunk>(stream, "Gram matrices", call.contexts.grams, part.n_items * problem.gram_apart * kWarp);
  problem.flags = input<int>(stream, "flags", call.contexts.flags, part.n_items);
  const JobSizes& sizes = tiling.sizes;
  problem.context_jobs = jobs_of("jobs of contexts", part, call.context_jobs, sizes.context_rows, sizes.most_contexts,
                                 problem.n_context_jobs, stream);
  problem.query_jobs = jobs_of("jobs of queries", call.queries.part, call.query_jobs, sizes.query_rows,
                               sizes.most_queries, problem.n_query_jobs, stream);
  problem.most_queries = sizes.most_queries;
  problem.memory = tiling.memory;
  const CrossAttentionOptions& given = choices.options;
  const bool free = given.norm != Norm::none && std::fabs(given.lambda_softmax) <= kLargestFreeLogit;
  const float most = given.norm == Norm::none ? kMostLambdaUnnormed : kMostLambda;
  const float lambda = std::clamp(given.lambda_softmax, -most, most);
  problem.options = {given.norm,       given.pooling,      !free, choices.normalize, given.clip_slope, lambda,
                     given.lambda_lse, choices.empty_score};
  return problem;
}

// True where warpgroups multiply: all pairs of items that fit a tile, whose rows follow one another, by the usual
// options, in more jobs of queries than one.
template <class Shape>
bool by_warpgroups(const AttentionCall& call, const AttentionProblem& problem, const Stream& stream) {
  const Part &contexts = call.contexts.part, &queries = call.queries.part;
  return std::is_same_v<Shape, Tall> && kWarpgroupsBuilt && call.choices.warpgroups && stream.capability == 90 &&
         usual(problem.options) && contexts.full && queries.full && contexts.n_rows > 0 && queries.n_rows > 0 &&
         queries.longest <= Tall::rows && problem.n_query_jobs > 1;
}

TensorMap boxes_of(const PackedPart& side, int box_rows, const Stream& stream) {
  return tensor_map(stream, "packed rows", side.rows, in_eights(side.part.n_rows), side.dim * element_bytes(side.dtype),
                    box_rows);
}

template <class Arithmetic>
void score_by_warpgroups(const AttentionCall& call, const Scores& scores, const Stream& stream) {
  using Shape = OfWarpgroups;
  constexpr int cluster = Shape::cluster;
  const AttentionProblem problem = problem_of(call, tiling_of<Shape>(Shape::columns, false, false), stream);
  const int64_t jobs = int64_t{blocks_for(problem.n_query_jobs, cluster)} * problem.n_context_jobs;
  const int64_t clusters = std::min<int64_t>(std::max(stream.multiprocessors / cluster, 1), jobs);
  launch("attend_by_warpgroups", attend_by_warpgroups<Shape, Arithmetic>,
         {clusters * cluster, 1, Shape::all_threads, problem.memory.total, cluster}, stream, problem, scores,
         boxes_of(call.queries, Shape::rows, stream), boxes_of(call.contexts, Shape::columns / cluster, stream));
}

void make_grams(const PackedPart& contexts, const AttentionChoices& choices, const Stream& stream) {
  const Part& part = contexts.part;
  Grams grams{};
  grams.apart = fragments_of(part, contexts.dtype);
  grams.fragments = output<Chunk>(stream, "Gram matrices", contexts.grams, part.n_items * grams.apart * kWarp);
  grams.flags = output<int>(stream, "flags", contexts.flags, part.n_items);
  const int blocks = blocks_for(part.longest, kGramBlock);
  by_arithmetic(contexts.dtype, [&](auto arithmetic) {
    launch("gram_matrices", gram_matrices<decltype(arithmetic)>,
           {part.n_items, int64_t{blocks} * blocks, GramTile::threads, kGramMemory}, stream,
           packed_rows(contexts, stream), grams, contexts.dim, blocks, choices.normalize);
  });
}

// A line for host code: a name and its values.
std::string constant(const char* name, std::initializer_list<int64_t> values) {
  std::string line = name;
  for (const int64_t value : values) line += " " + std::to_string(value);
  return line + "\n";
}

}  // namespace

std::string attention_constants() {
  return constant("attention_fragment_bytes", {kWarp * int64_t{sizeof(Chunk)}}) +
         // Rows by the dtype of packed features, in the order of Dtype.
         constant("attention_fragment_rows", {Fine<TFloat32>::rows, Fine<BFloat16>::rows, Fine<Float16>::rows}) +
         constant("attention_most_rows", {kPackWarps * kMostY});
}

JobSizes job_sizes(Dtype packed, bool softmax, int longest, bool gradients, int most_shared) {
  JobSizes found{};
  by_arithmetic(packed, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    const auto take = [&](auto, const Tiling& tiling) { found = tiling.sizes; };
    gradients ? by_shape<Arithmetic, true>(longest, softmax, most_shared, take)
              : by_shape<Arithmetic, false>(longest, softmax, most_shared, take);
  });
  return found;
}

int most_attended_rows(bool gradients, int most_shared) {
  int found = 0;
  for (int step = 1 << 20; step > 0; step /= 2) {
    if (tiling_of<Flattest>(found + step, true, gradients).memory.total <= most_shared) found += step;
  }
  return found;
}

int packed_dim(int dim, Dtype dtype) {
  const int step = kProductBytes / static_cast<int>(element_bytes(dtype));
  return blocks_for(dim, step) * step;
}

int64_t packed_item_bytes() { return sizeof(PackedItem); }

int64_t gram_bytes(const Part& part, Dtype packed) {
  return part.n_items * fragments_of(part, packed) * kWarp * int64_t{sizeof(Chunk)};
}

void pack(const RaggedPart& side, const void* features, const AttentionChoices& choices, const PackedPart& out,
          const Stream& stream) {
  const Part& part = side.part;
  Packing packing{};
  packing.rows = output<Chunk>(stream, "packed rows", out.rows, chunks_of(out));
  packing.norms = output<float>(stream, "norms", out.norms, part.n_rows);
  if (choices.normalize) packing.powers = output<float>(stream, "powers", out.powers, part.n_rows);
  packing.items = output<PackedItem>(stream, "items", out.items, part.n_items);
  packing.dim = out.dim, packing.n_rows = part.n_rows;
  packing.surplus = static_cast<int>(in_eights(part.n_rows) - part.n_rows);
  const Grid grid{part.n_items, blocks_for(part.longest, kPackWarps), kPackThreads};
  const auto run = [&](auto feature, auto packed) {
    using Feature = decltype(feature);
    RaggedRows<Feature> source = ragged_rows<Feature>(side, choices.normalize, stream);
    source.features = input<Feature>(stream, "features", features, side.elements);
    launch("pack_rows", pack_rows<Feature, decltype(packed)>, grid, stream, source, packing);
  };
  by_dtype(side.dtype, [&](auto feature) {
    if constexpr (std::is_same_v<decltype(feature), Float16>) {
      if (out.dtype == Dtype::float32) return run(feature, float{});
    }
    run(feature, feature);
  });
  if (out.grams != nullptr) make_grams(out, choices, stream);
}

void score_attention(const AttentionCall& call, const OrderedPairs& listed, float* out, int64_t n_scores,
                     const Stream& stream) {
  ListedPairs pairs{};
  if (listed.count != 0) {
    // Pairs of a block: several tiles of them, and some for every multiprocessor.
    const int64_t share = std::clamp<int64_t>(listed.count / (int64_t{8} * stream.multiprocessors), 4, 64);
    pairs = {input<int64_t>(stream, "pairs", listed.items, 2 * listed.count),
             input<int64_t>(stream, "order", listed.order, listed.count), listed.count, static_cast<int>(share)};
  }
  const Scores scores{updated<float>(stream, "scores", out, n_scores), call.context_stride, call.query_stride};
  by_arithmetic(call.queries.dtype, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    by_shape<Arithmetic, false>(call, stream, [&](auto shape, const Tiling& tiling) {
      using Shape = decltype(shape);
      const AttentionProblem problem = problem_of(call, tiling, stream);
      if (listed.count == 0 && by_warpgroups<Shape>(call, problem, stream)) {
        return score_by_warpgroups<Arithmetic>(call, scores, stream);
      }
      const int64_t blocks = listed.count != 0 ? (listed.count + pairs.a_block - 1) / pairs.a_block
                                               : int64_t{problem.n_query_jobs} * problem.n_context_jobs;
      by_options<Shape>(problem.options, [&](auto usual) {
        launch("attend", attend<Shape, Arithmetic, usual.value>, {blocks, 1, Shape::threads, problem.memory.total},
               stream, problem, pairs, scores);
      });
    });
  });
}

GradientParts gradient_parts(const AttentionCall& call, const Stream& stream) {
  const Part& part = call.contexts.part;
  const JobSizes sizes =
      job_sizes(call.queries.dtype, call.choices.options.norm == Norm::softmax, part.longest, true, stream.most_shared);
  GradientParts parts{};
  int n_query_jobs = 0;
  jobs_of("jobs of contexts", part, call.context_jobs, sizes.context_rows, sizes.most_contexts, parts.context_jobs,
          stream);
  jobs_of("jobs of queries", call.queries.part, call.query_jobs, sizes.query_rows, sizes.most_queries, n_query_jobs,
          stream);
  parts.shares = std::clamp(2 * stream.multiprocessors / std::max(parts.context_jobs, 1), 1, std::max(n_query_jobs, 1));
  return parts;
}

void differentiate_attention(const AttentionCall& call, const GradientsOfAttention& made, const Stream& stream) {
  by_arithmetic(call.queries.dtype, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    if constexpr (!std::is_same_v<Arithmetic, Float16>) {  // its range is too small: it is packed as float32
      by_shape<Arithmetic, true>(call, stream, [&](auto shape, const Tiling& tiling) {
        using Shape = decltype(shape);
        using T = typename Features<Arithmetic>::Element;
        const AttentionProblem problem = problem_of(call, tiling, stream);
        const int64_t rows = call.queries.part.n_rows;
        AttentionGradients<T> out{};
        out.grad_scores = input<float>(stream, "gradients of scores", made.grad_scores, made.n_scores);
        out.context_stride = call.context_stride, out.query_stride = call.query_stride;
        out.of_similarities = output<T>(stream, "gradients of similarities", made.of_similarities, rows * made.pitch);
        out.context_slots = call.contexts.part.slots, out.query_slots = call.queries.part.slots;
        out.pitch = made.pitch, out.n_query_rows = static_cast<int>(rows), out.shares = made.shares;
        out.own = output<float>(stream, "own gradients", made.own, problem.n_context_jobs * rows);
        out.gram_pitch = gram_pitch(call.contexts.part.longest);
        out.apart = numbers_of_gram(call.contexts.part.longest), out.numbers = call.contexts.part.n_items * out.apart;
        out.of_grams = output<float>(stream, "gradients of Gram matrices", made.of_grams, made.shares * out.numbers);
        by_options<Shape>(problem.options, [&](auto usual) {
          launch("differentiate", differentiate<Shape, Arithmetic, T, usual.value>,
                 {problem.n_context_jobs, made.shares, Shape::threads, problem.memory.total}, stream, problem, out);
        });
      });
    }
  });
}

void finish_gradients(const RaggedPart& side, const PackedPart& packed, bool normalize, float* sums, const float* own,
                      int own_parts, const float* of_grams, int shares, void* out, const Stream& stream) {
  const Part& part = packed.part;
  const PackedRows rows = packed_rows(packed, stream);
  const Grid grid{part.n_items, blocks_for(part.longest, kRowWarps), kRowThreads};
  const int64_t numbers = int64_t{part.n_rows} * packed.dim;
  const auto run = [&](auto element, auto feature) {
    using T = decltype(element);
    using Feature = decltype(feature);
    const auto destination = ragged_rows<Feature>(side, normalize, stream);
    const auto gradients = updated<Feature>(stream, "gradients", out, side.elements);
    if (of_grams != nullptr) {
      GramGradients given{};
      given.pitch = gram_pitch(part.longest), given.apart = numbers_of_gram(part.longest),
      given.numbers = part.n_items * given.apart, given.shares = shares;
      given.values = input<float>(stream, "gradients of Gram matrices", of_grams, shares * given.numbers);
      const int units = blocks_for(part.longest, kProductRows) * blocks_for(packed.dim, kProductColumns);
      const Grid of_units{part.n_items, blocks_for(units, kRowWarps), kRowThreads};
      launch("add_gram_products", add_gram_products<T, Feature>, of_units, stream, rows, given,
             updated<float>(stream, "sums", sums, numbers), packed.dim, destination, gradients);
      if (!normalize) return;
    }
    RowSums given{};
    given.sums = input<float>(stream, "sums", sums, numbers);
    given.norms = rows.norms;
    if (normalize) given.powers = input<float>(stream, "powers", packed.powers, part.n_rows);
    if (own_parts > 0) given.own = input<float>(stream, "own", own, int64_t{own_parts} * part.n_rows);
    given.parts = own_parts, given.n_rows = part.n_rows, given.dim = packed.dim;
    launch("store_gradients", store_gradients<T, Feature>, grid, stream, rows, given, destination, gradients);
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
