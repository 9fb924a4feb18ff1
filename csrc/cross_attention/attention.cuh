// Stacked cross attention of a tile of queries and a tile of contexts in CUDA (kernels.md §1): similarities go from the
// product's accumulators to shared memory, where they become weights and relevances.
//
// A job is some items of queries, or one that is longer than a tile and passes through it in pieces, by some items of
// contexts, whose rows are the tile's columns. Rows come packed (`pack.cuh`): finite, aligned, padded with zeros. A
// warp takes 16 rows and one item of contexts at a time. Its lane g * 4 + t has rows g and g + 8, and of every 8
// columns t and t + 4, so that its accesses lie in 32 banks; fragments of the Gram matrices are made for that order
// (`gram.cuh`).
#pragma once
#include "cross_attention/gram.cuh"
#include "cross_attention/problem.h"

namespace crossret {
namespace gpu {

constexpr int kMostQueries = 16, kMostContexts = 16;  // items of a job: sums over them are half a warp's
constexpr int kRelevancePitch = kMostContexts + 1;
constexpr float kEps = 1e-8f;          // of the published code: added to norms, and the cosine's least denominator
constexpr float kMostLogit = 3.4e38f;  // so that no difference to the greatest is ∞ − ∞, however large λ is
constexpr float kMostCosine = 2.0f;
constexpr float kMostFactor = 1e30f;  // of gradients' factors
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr int kContextsAtOnce = 64;  // whose weights a lane holds

struct AttentionOptions {
  Norm norm;
  Pooling pooling;
  bool shifted;  // whether the greatest logit is taken out
  bool normalize;
  float slope;  // of the clip below zero, 1 for none
  float lambda_softmax, lambda_lse, empty_score;
};

// Where the parts of a block's shared memory begin, in bytes. Tiles have `pitch` columns.
struct AttentionMemory {
  int pitch;  // an odd multiple of 4, at least columns in eights
  int ring, similarities, weights;
  int factors, greatest;  // of items of queries and contexts; the latter of the softmax
  int relevances;         // of rows and items of contexts
  int column_scales, column_sources, row_lengths, row_scales, row_items, row_sources;
  int query_begins, query_firsts, context_begins, context_firsts, context_flags;
  // For gradients: Gp of every weight; norms and what they pull on, beside factors; beside relevances their gradients
  // and what these are multiplied by; the greatest relevance of pairs, the row of the first of those, and the sum.
  int weighted, norms, pulls, gradients, of_products, of_squares, means, pooled;
  int total;

  template <class Shape>
  static AttentionMemory of(int most_columns, int most_queries, bool softmax, bool gradients) {
    AttentionMemory made{};
    int end = 0;
    const auto take = [&](int words) {
      const int begin = end;
      end += (4 * words + 15) / 16 * 16;
      return begin;
    };
    const int columns = most_columns > Shape::columns ? most_columns : Shape::columns;
    const int pitch = made.pitch = (columns + 7) / 8 * 8 + 4, tile = Shape::rows * pitch;
    if (gradients) {
      made.similarities = take(tile);
      made.ring = made.weights = take(tile), made.weighted = take(tile);
      if (end < made.ring + Shape::ring_bytes) end = made.ring + Shape::ring_bytes;
    } else if (most_columns <= Shape::columns) {  // the product is over before similarities are stored
      take(tile * 4 > Shape::ring_bytes ? tile : Shape::ring_bytes / 4);
    } else {
      take(Shape::ring_bytes / 4);
      made.similarities = made.weights = take(tile);
    }
    const int of_contexts = most_queries * pitch, of_rows = Shape::rows * kRelevancePitch;
    made.factors = take(of_contexts), made.greatest = take(softmax ? of_contexts : 0);
    made.relevances = take(of_rows), made.column_scales = take(pitch);
    made.column_sources = take(pitch);
    for (int* part : {&made.row_lengths, &made.row_scales, &made.row_items, &made.row_sources}) {
      *part = take(Shape::rows);
    }
    made.query_begins = take(most_queries + 1), made.query_firsts = take(most_queries);
    made.context_begins = take(kMostContexts + 1), made.context_firsts = take(kMostContexts);
    made.context_flags = take(kMostContexts);
    if (gradients) {
      made.norms = take(of_contexts), made.pulls = take(of_contexts);
      for (int* part : {&made.gradients, &made.of_products, &made.of_squares, &made.means}) *part = take(of_rows);
      made.pooled = take(3 * kMostQueries * kMostContexts);
    }
    made.total = end;
    return made;
  }
};

// At which items jobs begin: so many apart, or where a table (jobs + 1) says.
struct JobBounds {
  Global<const int> table;
  int apart, n_items;  // the former 0 where there is a table

  CROSSRET_DEVICE int begin(int number) const {
    if (apart == 0) return load(table, number);
    return number * apart < n_items ? number * apart : n_items;
  }
};

struct AttentionProblem {
  PackedRows queries, contexts;
  int dim;  // of packed rows
  JobBounds query_jobs, context_jobs;
  int n_query_jobs, n_context_jobs, most_queries;  // items of queries in a job
  Global<const Chunk> grams;
  int64_t gram_apart;       // of an item's first fragment and the next one's
  Global<const int> flags;  // (items)
  AttentionOptions options;
  AttentionMemory memory;
};

// What all threads know of a job.
struct Job {
  int first_query, n_queries, n_rows;  // items of queries, of listed pairs the place of the first, and their rows
  int first_context, n_contexts;       // items of contexts
  int n_columns;                       // rows of those
};

// What has been pooled of a pair's relevances.
struct Pooled {
  float sum, greatest;  // of "lse" the sum of exponentials, the greatest taken out
  int first;            // row of the greatest
};

CROSSRET_DEVICE float inverse(float x) { return x > 0.0f ? 1.0f / x : 0.0f; }
CROSSRET_DEVICE float clipped(float s, float slope) { return s > 0.0f ? s : slope * s; }
CROSSRET_DEVICE float bounded(float x, float most) { return fminf(fmaxf(x, -most), most); }

// Over the four lanes of a row.
CROSSRET_DEVICE float sum_of_row(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}
CROSSRET_DEVICE float greatest_of_row(float x) {
  x = fmaxf(x, shuffle_xor(x, 1));
  return fmaxf(x, shuffle_xor(x, 2));
}
CROSSRET_DEVICE float sum_of_warp(float x) {
#pragma unroll
  for (int mask = 1; mask < kWarp; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

// A block at work. With gradients to follow weights have a tile of their own, and what attends leaves Gp and factors.
template <class Shape, class Arithmetic, bool gradients>
class AttentionTile {
 public:
  using Element = typename Features<Arithmetic>::Element;
  static_assert(Shape::threads >= kMostQueries * kMostContexts, "a thread pools each pair of a job");

  CROSSRET_DEVICE explicit AttentionTile(const AttentionProblem& problem)
      : problem_(problem), options_(problem.options), at_(problem.memory) {}

  CROSSRET_DEVICE static Shared<float> floats(int byte) { return shared_at<float>(byte); }
  CROSSRET_DEVICE static Shared<int> ints(int byte) { return shared_at<int>(byte); }

  // Of a job's item of queries the packed rows, and where they begin among the job's.
  CROSSRET_DEVICE void describe_query(const Job& job, int number, PackedItem item, int begin) const {
    ints(at_.query_firsts)[number] = item.first;
    ints(at_.query_begins)[number] = begin;
    if (number == job.n_queries - 1) ints(at_.query_begins)[job.n_queries] = begin + item.count;
  }

  // Of the numbers of a warp's first lanes, one for each item of a job, those up to and with a lane's own.
  CROSSRET_DEVICE static int sum_so_far(int number) {
    const int lane = thread_index() % kWarp;
#pragma unroll
    for (int by = 1; by < kMostQueries; by *= 2) {
      const int before = shuffle(number, lane < by ? lane : lane - by);
      if (lane >= by) number += before;
    }
    return number;
  }

  CROSSRET_DEVICE void describe_queries(Job& job, int number) const {
    job.first_query = problem_.query_jobs.begin(number);
    job.n_queries = problem_.query_jobs.begin(number + 1) - job.first_query;
    const int lane = thread_index() % kWarp;
    PackedItem item{};
    if (lane < job.n_queries) item = load(problem_.queries.items, job.first_query + lane);
    const int end = sum_so_far(item.count);
    if (thread_index() < job.n_queries) describe_query(job, lane, item, end - item.count);
  }

  CROSSRET_DEVICE void choose_contexts(Job& job, int number) const {
    job.first_context = problem_.context_jobs.begin(number);
    job.n_contexts = problem_.context_jobs.begin(number + 1) - job.first_context;
  }

  // Columns follow one another, whatever lies between the packed rows.
  CROSSRET_DEVICE void describe_contexts(Job& job) const {
    const int lane = thread_index() % kWarp;
    PackedItem item{};
    if (lane < job.n_contexts) item = load(problem_.contexts.items, job.first_context + lane);
    const int end = sum_so_far(item.count);
    job.n_columns = shuffle(end, job.n_contexts - 1);
    if (thread_index() < job.n_contexts) {
      ints(at_.context_begins)[lane] = end - item.count;
      ints(at_.context_firsts)[lane] = item.first;
      ints(at_.context_flags)[lane] = load(problem_.flags, job.first_context + lane);
      if (lane == job.n_contexts - 1) ints(at_.context_begins)[job.n_contexts] = end;
    }
    sync_block();
    for (int column = thread_index(), number = 0; column < at_.pitch; column += Shape::threads) {
      int source = -1;
      if (column < job.n_columns) {
        while (column >= ints(at_.context_begins)[number + 1]) ++number;
        source = ints(at_.context_firsts)[number] + column - ints(at_.context_begins)[number];
      }
      const float norm = source >= 0 ? load(problem_.contexts.norms, source) : 0.0f;
      ints(at_.column_sources)[column] = source;
      floats(at_.column_scales)[column] = options_.normalize ? inverse(norm) : 1.0f;
    }
  }

  // Behind a barrier behind `describe_query`.
  CROSSRET_DEVICE void count_rows(Job& job) const { job.n_rows = ints(at_.query_begins)[job.n_queries]; }
  CROSSRET_DEVICE bool in_pieces(const Job& job) const { return job.n_rows > Shape::rows; }

  // Of the rows of a piece that begins at row `begin` of the job; all threads have seen them when it returns.
  CROSSRET_DEVICE void make_similarities(const Job& job, int begin) const {
    load_rows(job, begin);
    constexpr int element = static_cast<int>(sizeof(Element));
    const int row_chunks = problem_.dim * element / kChunkBytes;  // a part has fewer chunks than 2³¹
    const auto of_query = [&](int row) -> int {
      const int source = ints(at_.row_sources)[row];
      return source >= 0 ? source * row_chunks : -1;
    };
    const Shared<float> out = floats(at_.similarities);
    for (int first = 0; first < job.n_columns; first += Shape::columns) {
      const auto of_context = [&](int column) -> int {
        return first + column < job.n_columns ? ints(at_.column_sources)[first + column] * row_chunks : -1;
      };
      Accumulators<Shape> sums;
      multiply_tiles<Shape, Arithmetic>(sums, operand(problem_.queries.rows, of_query),
                                        operand(problem_.contexts.rows, of_context), problem_.dim * element,
                                        shared_at<Chunk>(at_.ring));
      sync_block();  // the ring is free
      sums.each_pair(job.n_columns - first, [&](int row, int column, float left, float right) {
        const float scale = floats(at_.row_scales)[row];
        const int at = first + column, cell = row * at_.pitch + at;
        Shared<Two<float>>(out + cell)[0] = Two<float>{
            {left * scale * floats(at_.column_scales)[at], right * scale * floats(at_.column_scales)[at + 1]}};
      });
    }
    sync_block();
  }

  // What rows of a piece are, between barriers.
  CROSSRET_DEVICE void load_rows(const Job& job, int begin) const {
    sync_block();
    for (int row = thread_index(); row < Shape::rows; row += Shape::threads) load_row(job, begin, row);
    sync_block();
  }

  CROSSRET_DEVICE void load_row(const Job& job, int begin, int row) const {
    const int place = begin + row;
    int item = 0, source = -1;
    if (place < job.n_rows) {
      while (item + 1 < job.n_queries && place >= ints(at_.query_begins)[item + 1]) ++item;
      source = ints(at_.query_firsts)[item] + place - ints(at_.query_begins)[item];
    }
    const float norm = source >= 0 ? load(problem_.queries.norms, source) : 0.0f;
    ints(at_.row_items)[row] = item;
    ints(at_.row_sources)[row] = source;
    floats(at_.row_lengths)[row] = options_.normalize && norm > 0.0f ? 1.0f : norm;  // NaN where one is not finite
    floats(at_.row_scales)[row] = options_.normalize ? inverse(norm) : 1.0f;
  }

  // Of every item of queries and context, what similarities are normalised by, of the piece from row `begin` on.
  CROSSRET_DEVICE void measure(const Job& job, int begin) const {
    for (int unit = thread_index(); unit < job.n_queries * job.n_columns; unit += Shape::threads) {
      const int item = unit / job.n_columns, column = unit - item * job.n_columns, at = item * at_.pitch + column;
      const int first = ints(at_.query_begins)[item] - begin, last = ints(at_.query_begins)[item + 1] - begin;
      const int from = first > 0 ? first : 0, to = last < Shape::rows ? last : Shape::rows;
      const auto x = [&](int row) -> float {
        return clipped(floats(at_.similarities)[row * at_.pitch + column], options_.slope);
      };
      float sum = 0.0f;
      if (options_.norm == Norm::softmax) {
        const float before = begin > 0 ? floats(at_.greatest)[at] : -INFINITY;
        float greatest = before;
        for (int row = from; row < to; ++row) greatest = fmaxf(greatest, x(row));
        for (int row = from; row < to; ++row) sum += approx_exp2((x(row) - greatest) * kLog2E);
        if (before > -INFINITY) sum += floats(at_.factors)[at] * approx_exp2((before - greatest) * kLog2E);
        floats(at_.greatest)[at] = greatest;
        floats(at_.factors)[at] = sum;
        continue;
      }
      if (options_.norm != Norm::none) {
        const bool squared = options_.norm == Norm::l2;
        for (int row = from; row < to; ++row) {
          const float y = x(row);
          sum = fmaf(y, squared ? y : y < 0.0f ? -1.0f : 1.0f, sum);
        }
      }
      floats(at_.factors)[at] = begin > 0 ? sum + floats(at_.factors)[at] : sum;
    }
  }

  // What normalised similarities are multiplied by to be logits of base 2, in place of what `measure` found: by the
  // same threads.
  CROSSRET_DEVICE void finish_factors(const Job& job) const {
    const float scale = options_.lambda_softmax * kLog2E;
    for (int unit = thread_index(); unit < job.n_queries * job.n_columns; unit += Shape::threads) {
      const int item = unit / job.n_columns, at = item * at_.pitch + unit - item * job.n_columns;
      const float sum = floats(at_.factors)[at];
      const float norm = options_.norm == Norm::l2 ? sqrtf(sum) : sum;
      float factor = scale;
      if (options_.norm == Norm::l2 || options_.norm == Norm::l1) factor = scale / (norm + kEps);
      if (options_.norm == Norm::softmax) factor = sum > 0.0f ? scale / sum : 0.0f;
      if (gradients) floats(at_.norms)[at] = norm;
      floats(at_.factors)[at] = bounded(factor, kMostLogit);
    }
    sync_block();
  }

  // Relevances of the piece's rows to every item of contexts.
  CROSSRET_DEVICE void attend(const Job& job, int begin) const {
    const int rows = job.n_rows - begin < Shape::rows ? job.n_rows - begin : Shape::rows;
    const int groups = (rows + 15) / 16;
    for (int unit = thread_index() / kWarp; unit < groups * job.n_contexts; unit += Shape::warps) {
      attend_to(job, unit % groups * 16, unit / groups);
    }
  }

  // λn log₂e of a cell, less `shift`: rounded once, so that a large one costs no digits of the difference.
  CROSSRET_DEVICE float logit(float s, int at, float shift) const {
    float x = clipped(s, options_.slope);
    if (options_.norm == Norm::softmax) x = approx_exp2((x - floats(at_.greatest)[at]) * kLog2E);
    return fmaf(x, floats(at_.factors)[at], -shift);
  }

  // 16 rows of the tile and an item of contexts, by a warp. Weights take the place of similarities but for gradients.
  CROSSRET_DEVICE void attend_to(const Job& job, int first_row, int item) const {
    const int lane = thread_index() % kWarp, t = lane % 4;
    const int first_column = ints(at_.context_begins)[item];
    const int count = ints(at_.context_begins)[item + 1] - first_column;
    const bool may_cancel = (ints(at_.context_flags)[item] & kMayCancel) != 0;
    const int rows[2] = {first_row + lane / 4, first_row + lane / 4 + 8};
    const Shared<float> cells[2] = {floats(at_.similarities) + rows[0] * at_.pitch + first_column,
                                    floats(at_.similarities) + rows[1] * at_.pitch + first_column};
    const Shared<float> weights[2] = {floats(at_.weights) + rows[0] * at_.pitch + first_column,
                                      floats(at_.weights) + rows[1] * at_.pitch + first_column};
    const int factors[2] = {ints(at_.row_items)[rows[0]] * at_.pitch + first_column,
                            ints(at_.row_items)[rows[1]] * at_.pitch + first_column};
    // The greatest logit, and what rounding left of it: large ones may round by more than exponents can bear.
    float shift[2] = {}, rest[2] = {};
    if (options_.shifted) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto greatest = [&] {
          float found = -INFINITY;
          for (int c = t; c < count; c += 4) {
            found = fmaxf(found, logit(cells[half][c], factors[half] + c, shift[half]));
          }
          return bounded(greatest_of_row(found), kMostLogit);
        };
        shift[half] = greatest();
        rest[half] = greatest();
      }
    }
    float products[2] = {}, totals[2] = {}, squares[2] = {}, orthogonal[2] = {};
    for (int c = t; c < count; c += 4) {
      const float length = may_cancel ? context_length(first_column + c) : 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float s = cells[half][c];
        float exponent = logit(s, factors[half] + c, shift[half]);
        if (options_.shifted) exponent = fminf(exponent - rest[half], 0.0f);
        const float p = approx_exp2(exponent);
        weights[half][c] = p;
        products[half] = fmaf(p, s, products[half]);
        totals[half] += p;
        orthogonal[half] = fmaf(p * length, p * length, orthogonal[half]);
      }
    }
    add_squares(weights, rows, first_column, count, gram_of(job, item), squares);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      products[half] = sum_of_row(products[half]), totals[half] = sum_of_row(totals[half]);
      squares[half] = sum_of_row(squares[half]), orthogonal[half] = sum_of_row(orthogonal[half]);
    }
    if (may_cancel) mend(first_row, first_column, count, orthogonal, products, squares);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row_length = floats(at_.row_lengths)[rows[half]];
      const float length = row_length * sqrtf(fmaxf(squares[half], 0.0f));
      // ‖q‖‖a‖ or its floor, scaled by the Σp that the attended vectors lack.
      const float denominator = fmaxf(fmaxf(length, totals[half] * kEps), kTiny);
      const float cosine = length > 0.0f ? bounded(products[half] / denominator, kMostCosine) : 0.0f;
      const int at = rows[half] * kRelevancePitch + item;
      if (t == 0) floats(at_.relevances)[at] = row_length == row_length ? cosine : NAN;
      if (!gradients) continue;
      // With g = ∂L/∂r, ∂L/∂(q·a) is g of_products and twice ∂L/∂‖a‖² is −g of_squares. ∂L/∂(Σp), which the floor
      // brings, is the same for all contexts of a query, so that the softmax drops it.
      const bool moves = length > 0.0f && length >= totals[half] * kEps && squares[half] > 0.0f;
      const float of_products = length > 0.0f ? fminf(1.0f / denominator, kMostFactor) : 0.0f;
      const float of_squares = moves ? bounded(cosine / fmaxf(squares[half], kTiny), kMostFactor) : 0.0f;
      // What the softmax takes out of ∂L/∂p is g mean. It is zero but for rounding, which λ and long features would
      // blow up: made of the very numbers that it is taken out of.
      float sum = 0.0f;
      for (int c = t; c < count; c += 4) {
        const float weighted = floats(at_.weighted)[rows[half] * at_.pitch + first_column + c];
        const float p = weights[half][c];
        sum = fmaf(p, of_weight(of_products, cells[half][c], of_squares, weighted), sum);
      }
      const float mean = sum_of_row(sum) / fmaxf(totals[half], kTiny);
      if (t != 0) continue;
      floats(at_.of_products)[at] = of_products;
      floats(at_.of_squares)[at] = of_squares;
      floats(at_.means)[at] = mean;
    }
  }

  // ∂L/∂p of a cell over ∂L/∂r of its row.
  CROSSRET_DEVICE static float of_weight(float of_products, float s, float of_squares, float weighted) {
    return fmaf(of_products, s, -(of_squares * weighted));
  }

  CROSSRET_DEVICE float context_length(int column) const {
    const float norm = load(problem_.contexts.norms, ints(at_.column_sources)[column]);
    return norm > 0.0f ? (options_.normalize ? 1.0f : norm) : 0.0f;
  }

  CROSSRET_DEVICE Global<const Chunk> gram_of(const Job& job, int item) const {
    return problem_.grams + (job.first_context + item) * problem_.gram_apart * kWarp;
  }

  CROSSRET_DEVICE static void double_all(float (&sums)[4]) {
#pragma unroll
    for (float& sum : sums) sum += sum;
  }

  // Adds a lane's part of pᵀGp of its two rows, by tensor cores; for gradients Gp is stored.
  CROSSRET_DEVICE void add_squares(const Shared<float> (&cells)[2], const int (&rows)[2], int first_column, int count,
                                   Global<const Chunk> gram, float (&squares)[2]) const {
    using Fine = gpu::Fine<Arithmetic>;
    constexpr int at_once = kContextsAtOnce / Fine::rows;
    const int lane = thread_index() % kWarp, t = lane % 4;
    const int steps = fragment_rows<Arithmetic>(count), groups = fragment_columns(count);
    for (int first = 0; first < steps; first += at_once) {
      uint32_t heads[at_once][4], rests[at_once][4];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const auto weight = [&](int half, int k) {
          const int c = Fine::rows * (first + i) + 4 * k + t;
          return c < count ? static_cast<float>(cells[half][c]) : 0.0f;
        };
        Fine::weights(weight, heads[i], rests[i]);
      }
      // Scores take what lies above the diagonal twice: columns from the first of these rows on.
      for (int group = gradients ? 0 : first * Fine::rows / 8; group < groups; ++group) {
        const int diagonal = 8 * group / Fine::rows - first;
        float sums[4] = {};
        sync_warp();  // lanes come from loops of different lengths, and multiply together
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          if (gradients ? first + i >= steps : i > diagonal) continue;
          if (!gradients && i == diagonal) double_all(sums);
          const Chunk g = load(gram, (int64_t{group} * steps + first + i) * kWarp + lane);
          const uint32_t head[2] = {g.words[0], g.words[1]}, rest[2] = {g.words[2], g.words[3]};
          multiply<typename Fine::Factor>(sums, heads[i], rest);
          multiply<typename Fine::Factor>(sums, rests[i], head);
          multiply<typename Fine::Factor>(sums, heads[i], head);
        }
        if (!gradients && diagonal >= at_once) double_all(sums);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = 8 * group + 4 * e + t;
          if (c >= count) continue;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float weighted = sums[2 * half + e];
            squares[half] = fmaf(weighted, cells[half][c], squares[half]);
            if (!gradients) continue;
            Shared<float> to = floats(at_.weighted) + rows[half] * at_.pitch + first_column;
            to[c] = first > 0 ? to[c] + weighted : weighted;
          }
        }
      }
    }
  }

  // Makes q·a and ‖a‖² of rows whose weighted contexts cancel from the vectors a = Σ p c themselves.
  CROSSRET_DEVICE void mend(int first_row, int first_column, int count, const float (&orthogonal)[2],
                            float (&products)[2], float (&squares)[2]) const {
    const int lane = thread_index() % kWarp;
    sync_warp();  // weights of all lanes
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t wanted = ballot(lane % 4 == 0 && squares[half] < orthogonal[half] * kCancelled);
      while (wanted != 0) {
        const int owner = first_one(wanted), row = first_row + owner / 4 + 8 * half;
        wanted &= wanted - 1;
        const int source = ints(at_.row_sources)[row];
        if (source < 0) continue;
        const Global<const Element> queries = Global<const Element>(problem_.queries.rows);
        const Global<const Element> contexts = Global<const Element>(problem_.contexts.rows);
        const Shared<float> weights = floats(at_.weights) + row * at_.pitch + first_column;
        float product = 0.0f, square = 0.0f;
        for (int d = lane; d < problem_.dim; d += kWarp) {
          float attended = 0.0f;
          int64_t at = int64_t{ints(at_.column_sources)[first_column]} * problem_.dim + d;
          for (int c = 0; c < count; ++c, at += problem_.dim) {
            const float scale = floats(at_.column_scales)[first_column + c];
            attended = fmaf(weights[c] * scale, widened(load(contexts, at)), attended);
          }
          product = fmaf(attended, widened(load(queries, int64_t{source} * problem_.dim + d)), product);
          square = fmaf(attended, attended, square);
        }
        product = sum_of_warp(product) * floats(at_.row_scales)[row], square = sum_of_warp(square);
        if (lane / 4 == owner / 4) products[half] = product, squares[half] = square;
      }
    }
  }

  // Adds the piece's relevances to what a thread's pair has (SCAN Eqs. 5–8).
  CROSSRET_DEVICE void pool(const Job& job, int begin, Pooled& pooled) const {
    const int query = thread_index() / kMostContexts, context = thread_index() % kMostContexts;
    if (query >= job.n_queries || context >= job.n_contexts) return;
    const int first = ints(at_.query_begins)[query] - begin, last = ints(at_.query_begins)[query + 1] - begin;
    const int from = first > 0 ? first : 0, to = last < Shape::rows ? last : Shape::rows;
    const auto relevance = [&](int row) -> float { return floats(at_.relevances)[row * kRelevancePitch + context]; };
    const bool by_exponentials = options_.pooling == Pooling::lse;
    const float before = pooled.greatest;
    for (int row = from; row < to; ++row) {
      if (gradients && relevance(row) > pooled.greatest) pooled.first = begin + row;
      pooled.greatest = max_or_nan(pooled.greatest, relevance(row));
      if (!by_exponentials) pooled.sum += relevance(row);
    }
    if (!by_exponentials) return;
    const float scale = options_.lambda_lse * kLog2E;
    if (before != -INFINITY) pooled.sum *= approx_exp2((before - pooled.greatest) * scale);
    for (int row = from; row < to; ++row) {
      const float below = relevance(row) - pooled.greatest;
      pooled.sum += below == 0.0f ? 1.0f : approx_exp2(below * scale);
    }
  }

 protected:
  const AttentionProblem& problem_;
  const AttentionOptions& options_;
  const AttentionMemory& at_;
};

}  // namespace gpu
}  // namespace crossret
