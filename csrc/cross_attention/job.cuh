// Jobs of stacked cross attention in CUDA and their similarities. A job is some items of queries, the rows of a tile,
// by some items of contexts, its columns. An item of queries longer than a tile is taken in pieces. Rows come packed
// (`pack.cuh`): finite, aligned, padded with zeros.
#pragma once
#include "cross_attention/gram.cuh"
#include "cross_attention/relevance.cuh"

namespace crossret {
namespace gpu {

constexpr int kMostQueries = 16, kMostContexts = 16;  // items of a job: sums over them are half a warp's
constexpr int kRelevancePitch = kMostContexts + 1;
// Barriers where other warps multiply: of the threads that attend, and of all when a job's rows are described, and its
// similarities stored.
constexpr int kAttending = 1, kDescribed = 2, kStored = 3;

// Offsets of the arrays in a block's shared memory, in bytes. Tiles have row stride `pitch`.
struct AttentionMemory {
  int pitch;  // columns rounded up to eights, plus 4: rows then begin in different banks
  int ring, similarities, weights;
  int barriers;           // of the ring, where other warps multiply
  int factors, greatest;  // (items of queries, pitch); `greatest` for the softmax alone
  int relevances;         // (rows, kRelevancePitch)
  int column_scales, column_sources, row_lengths, row_scales, row_items, row_sources;
  int query_begins, query_firsts, context_begins, context_firsts, context_flags;
  // For gradients: Gp as a tile; norms and Σ x ∂L/∂n, laid out as factors; derivatives of relevances, 16 bytes each,
  // laid out as these; `Pooled` of every pair, a field after the other.
  int weighted, norms, pulls, derivatives, pooled;
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
    } else if (!Shape::apart &&
               most_columns <= Shape::columns) {  // one product: the ring is free before they are stored
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
      made.derivatives = take(4 * of_rows);
      made.pooled = take(3 * kMostQueries * kMostContexts);
    }
    if constexpr (Shape::apart) made.barriers = take(Shape::barrier_bytes / 4);
    made.total = end;
    return made;
  }
};

// First items of jobs: multiples of `apart`, or numbers of a table (jobs + 1).
struct JobBounds {
  Global<const int> table;
  int apart, n_items;  // `apart` is 0 where there is a table

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
  int64_t gram_apart;       // fragments from item to item
  Global<const int> flags;  // (items)
  AttentionOptions options;
  AttentionMemory memory;
};

// A job, in every thread.
struct Job {
  int first_query, n_queries, n_rows;        // items of queries, and their rows
  int first_context, n_contexts, n_columns;  // items of contexts, and their rows
};

// A block's tile of queries × contexts in shared memory, from a job's items to their similarities.
template <class Shape, class Arithmetic>
class JobTile {
 public:
  using Element = typename Features<Arithmetic>::Element;

  CROSSRET_DEVICE explicit JobTile(const AttentionProblem& problem)
      : problem_(problem), options_(problem.options), at_(problem.memory) {}

  CROSSRET_DEVICE static Shared<float> floats(int byte) { return shared_at<float>(byte); }
  CROSSRET_DEVICE static Shared<int> ints(int byte) { return shared_at<int>(byte); }

  // A barrier of the threads that attend: of the block, unless other warps multiply.
  CROSSRET_DEVICE static void sync() {
    if constexpr (Shape::apart) {
      sync_named(kAttending, Shape::threads);
    } else {
      sync_block();
    }
  }

  // Stores an item of queries of a job, whose rows begin at `begin` among the job's.
  CROSSRET_DEVICE void describe_query(const Job& job, int number, PackedItem item, int begin) const {
    ints(at_.query_firsts)[number] = item.first;
    ints(at_.query_begins)[number] = begin;
    if (number == job.n_queries - 1) ints(at_.query_begins)[job.n_queries] = begin + item.count;
  }

  // Inclusive prefix sum over the lanes of a warp, kMostQueries of which have a number.
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

  // Stores the items of contexts of a job. Their columns follow one another, whatever lies between the packed rows.
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
    sync();
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

  // Behind a barrier after `describe_query`.
  CROSSRET_DEVICE void count_rows(Job& job) const { job.n_rows = ints(at_.query_begins)[job.n_queries]; }
  CROSSRET_DEVICE bool in_pieces(const Job& job) const { return !Shape::apart && job.n_rows > Shape::rows; }

  // Similarities of the piece that begins at row `begin` of the job; visible to all threads on return.
  CROSSRET_DEVICE void make_similarities(const Job& job, int begin) const {
    load_rows(job, begin);
    if constexpr (Shape::apart) {  // the multiplying warps store them
      sync_named(kDescribed, Shape::exchanging);
      sync_named(kStored, Shape::exchanging);
    } else if (job.n_rows > 0) {
      multiply(job);
    }
  }

  CROSSRET_DEVICE void multiply(const Job& job) const {
    constexpr int element = static_cast<int>(sizeof(Element));
    const int row_chunks = problem_.dim * element / kChunkBytes;  // in int: a part has fewer than 2³¹ chunks
    const auto of_query = [&](int row) -> int {
      const int source = ints(at_.row_sources)[row];
      return source >= 0 ? source * row_chunks : 0;
    };
    for (int first = 0; first < job.n_columns; first += Shape::columns) {
      const auto of_context = [&](int column) -> int {
        return first + column < job.n_columns ? ints(at_.column_sources)[first + column] * row_chunks : 0;
      };
      // Product of the piece and some contexts.
      Accumulators<Shape> sums;
      multiply_tiles<Shape, Arithmetic>(sums, operand(problem_.queries.rows, of_query),
                                        operand(problem_.contexts.rows, of_context), problem_.dim * element,
                                        shared_at<Chunk>(at_.ring));
      sync_block();  // the ring is free
      store_scaled(sums, first, job.n_columns);
    }
    sync_block();
  }

  // Stores accumulators, scaled, as similarities from column `first` on, in groups of eight that begin below `columns`.
  template <class Sums>
  CROSSRET_DEVICE void store_scaled(const Sums& sums, int first, int columns) const {
    const int row = Sums::own_row(), column = first + Sums::own_column();
    const int last = columns - first - Sums::first_own_column();
    float row_scales[Sums::row_tiles][2];
#pragma unroll
    for (int i = 0; i < Sums::row_tiles; ++i) {
      for (int half = 0; half < 2; ++half) {
        row_scales[i][half] = floats(at_.row_scales)[row + Sums::rows_apart * i + 8 * half];
      }
    }
    const Shared<Two<float>> scales = Shared<Two<float>>(floats(at_.column_scales) + column);
#pragma unroll
    for (int j = 0; j < Sums::column_tiles; ++j) {
      if (8 * j >= last) continue;
      const Two<float> scale = scales[4 * j];
#pragma unroll
      for (int i = 0; i < Sums::row_tiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float of_row = row_scales[i][half];
          const int cell = (row + Sums::rows_apart * i + 8 * half) * at_.pitch + column + 8 * j;
          Shared<Two<float>>(floats(at_.similarities) + cell)[0] = Two<float>{
              {sums.cell(i, j, 2 * half) * of_row * scale.at[0], sums.cell(i, j, 2 * half + 1) * of_row * scale.at[1]}};
        }
      }
    }
  }

  // Stores the rows of a piece: items, sources, lengths and scales, between barriers.
  CROSSRET_DEVICE void load_rows(const Job& job, int begin) const {
    sync();
    for (int row = thread_index(); row < Shape::rows; row += Shape::threads) load_row(job, begin, row);
    sync();
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

 protected:
  const AttentionProblem& problem_;
  const AttentionOptions& options_;
  const AttentionMemory& at_;
};

}  // namespace gpu
}  // namespace crossret
