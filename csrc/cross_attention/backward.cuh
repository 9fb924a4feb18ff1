// Gradients of stacked cross attention in CUDA (kernels.md §2): similarities are computed again and turned into ∂L/∂S.
//
// A block has a job of contexts and takes a share of the jobs of queries one after the other. It alone adds to the
// gradients of its Gram matrices in that share: sums have one order. ∂L/∂S is stored for the products with features
// that follow, beside the factor of each query's own row in its gradient.
#pragma once
#include "cross_attention/attention.cuh"

namespace crossret {
namespace gpu {

constexpr float kMostScoreGradient = 1e15f;  // beyond it, NaN among them, gradients of a pair are NaN
constexpr float kMostGradient = 1e20f;       // of logits

template <class T>
struct AttentionGradients {
  Global<const float> grad_scores;  // item of contexts c and of queries q at c · context_stride + q · query_stride
  int64_t context_stride, query_stride;
  Global<T> of_similarities;  // (rows of queries, pitch): beside each row of contexts ∂L/∂S
  int64_t pitch;
  Global<float> own;                   // (jobs of contexts, rows of queries): −Σ r ∂L/∂r
  Global<float> of_grams;              // (shares, items, apart): ∂L/∂G + its transpose, (L, gram_pitch) of every item
  int64_t gram_pitch, apart, numbers;  // strides of its rows, items and shares
  int n_query_rows, shares;
  int context_slots, query_slots;  // of an item; 0 without slots
};

template <class Shape, class Arithmetic, class T, bool usual>
class DifferentiateBlock : AttentionTile<Shape, Arithmetic, true, usual> {
  using Tile = AttentionTile<Shape, Arithmetic, true, usual>;
  using Tile::at_, Tile::options_, Tile::problem_, Tile::floats, Tile::ints;

 public:
  CROSSRET_DEVICE DifferentiateBlock(const AttentionProblem& problem, const AttentionGradients<T>& made)
      : Tile(problem), made_(made) {}

  CROSSRET_DEVICE void run() const {
    Job job{};
    this->choose_contexts(job, block_x());
    this->describe_contexts(job);
    bool first = true;
    for (int number = block_y(); number < problem_.n_query_jobs; number += made_.shares) {
      this->describe_queries(job, number);  // the last job's were read ahead of its last barrier
      sync_block();
      this->count_rows(job);
      clear_slots(job);
      differentiate(job, first);
      first = false;
    }
  }

 private:
  // Passes over an item in pieces: norms, scores, Σ x ∂L/∂n of the norms, gradients. Other jobs take one pass for all.
  enum Pass { kMeasure, kPool, kPull, kTurn };

  CROSSRET_DEVICE void differentiate(const Job& job, bool first) const {
    if (!has_gradient(job) || job.n_rows == 0) return pass_by(job, first);
    const bool in_pieces = this->in_pieces(job), normed = this->norm() != Norm::none;
    Pooled pooled;
    for (int pass = in_pieces && normed ? kMeasure : kPool; pass <= kTurn; ++pass) {
      if (pass == kPull && !(in_pieces && normed)) continue;
      for (int begin = 0; begin < job.n_rows; begin += Shape::rows) {
        const bool again = in_pieces || pass == kPool;  // else the tile still holds the similarities
        if (again) this->make_similarities(job, begin);
        if (pass == kMeasure || (pass == kPool && begin == 0 && !(in_pieces && normed))) this->measure(job, begin);
        if (pass == kMeasure) continue;
        if (pass == kPool && begin == 0) this->finish_factors(job);
        if (again) this->attend(job, begin);
        sync_block();
        if (pass == kPool) {
          this->pool(job, begin, pooled,
                     [&](int query, int context, const Pooled& all) { keep_pooled(pair_of(query, context), all); });
          continue;
        }
        find_relevance_gradients(job, begin);
        sync_block();
        turn_weighted(job, begin, normed && (pass == kPull || !in_pieces));
        if (pass == kPull) continue;
        sync_block();
        turn_derivatives(job);
        sync_block();
        add_to_grams(job, begin, first && begin == 0);
        turn_similarities(job, begin);
        sync_block();
        store_similarities(job, begin);
        store_own(job, begin);
      }
    }
  }

  // Whether a score of the job has a gradient: under a hardest-negative loss most jobs have none.
  CROSSRET_DEVICE bool has_gradient(const Job& job) const {
    const int query = thread_index() / kMostContexts, context = thread_index() % kMostContexts;
    const bool there = query < job.n_queries && context < job.n_contexts;
    return any_in_block(there && grad_score(job, query, context) != 0.0f);
  }

  CROSSRET_DEVICE float grad_score(const Job& job, int query, int context) const {
    return load(made_.grad_scores,
                (job.first_context + context) * made_.context_stride + (job.first_query + query) * made_.query_stride);
  }

  // Stores zeros for a job without gradients.
  CROSSRET_DEVICE void pass_by(const Job& job, bool first) const {
    for (int begin = 0; begin < job.n_rows; begin += Shape::rows) {
      this->load_rows(job, begin);
      const int rows = rows_of(job, begin);
      for (int row = thread_index() / kWarp; row < rows; row += Shape::warps) {
        const int source = ints(at_.row_sources)[row];
        for (int column = thread_index() % kWarp; column < job.n_columns; column += kWarp) {
          store(made_.of_similarities, source * made_.pitch + ints(at_.column_sources)[column], T{});
        }
        if (thread_index() % kWarp == 0) store(made_.own, block_x() * int64_t{made_.n_query_rows} + source, 0.0f);
      }
    }
    if (first) clear_grams(job);
  }

  // Stores zeros for empty slots, which the products with features read.
  CROSSRET_DEVICE void clear_slots(const Job& job) const {
    const int slots = made_.context_slots, columns = job.n_contexts * slots;
    if (slots == 0) return;
    const int lane = thread_index() % kWarp;
    for (int row = thread_index() / kWarp; row < job.n_queries * made_.query_slots; row += Shape::warps) {
      const int query = row / made_.query_slots, place = row - query * made_.query_slots;
      const int64_t source = ints(at_.query_firsts)[query] + place;
      const Global<T> to = made_.of_similarities + (source * made_.pitch + ints(at_.context_firsts)[0]);
      if (place >= ints(at_.query_begins)[query + 1] - ints(at_.query_begins)[query]) {
        for (int column = lane; column < columns; column += kWarp) store(to, column, T{});
        continue;
      }
      for (int context = 0; context < job.n_contexts; ++context) {
        const int count = ints(at_.context_begins)[context + 1] - ints(at_.context_begins)[context];
        for (int c = count + lane; c < slots; c += kWarp) store(to, context * slots + c, T{});
      }
    }
  }

  CROSSRET_DEVICE static int pair_of(int query, int context) { return query * kMostContexts + context; }
  static constexpr int kPairs = kMostQueries * kMostContexts;

  CROSSRET_DEVICE void keep_pooled(int pair, const Pooled& pooled) const {
    floats(at_.pooled)[pair] = pooled.greatest;
    floats(at_.pooled)[kPairs + pair] = pooled.sum;
    floats(at_.pooled)[2 * kPairs + pair] = pooled.detail;
  }

  CROSSRET_DEVICE Pooled pooled_of(int pair) const {
    return {floats(at_.pooled)[kPairs + pair], floats(at_.pooled)[pair], floats(at_.pooled)[2 * kPairs + pair]};
  }

  // ∂L/∂r of the piece's rows beside r's derivatives, zeros behind: NaN of a pair whose gradient is not finite, or
  // which has one and whose features are not finite. Items without contexts pass none on. r ∂L/∂r takes the place of r,
  // zero where r does not depend on ‖a‖.
  CROSSRET_DEVICE void find_relevance_gradients(const Job& job, int begin) const {
    const int rows = rows_of(job, begin);
    for (int unit = thread_index(); unit < Shape::rows * job.n_contexts; unit += Shape::threads) {
      const int row = unit / job.n_contexts, context = unit - row * job.n_contexts,
                at = row * kRelevancePitch + context;
      RowDerivatives found{};
      float along = 0.0f;
      if (row < rows) {
        found = this->derivatives()[at];
        const int query = ints(at_.row_items)[row], pair = pair_of(query, context);
        const Pooled pooled = pooled_of(pair);
        const float given = grad_score(job, query, context);
        const bool broken = (ints(at_.context_flags)[context] & kBroken) != 0 || pooled.greatest != pooled.greatest;
        const bool fine = fabsf(given) < kMostScoreGradient && !broken;
        const int count = ints(at_.query_begins)[query + 1] - ints(at_.query_begins)[query];
        const float relevance = floats(at_.relevances)[at];
        const float share = pooled.share(options_, relevance, begin + row, count);
        found.gradient = given == 0.0f ? 0.0f : fine ? given * share : NAN;
        if (found.of_squares != 0.0f) along = found.gradient * relevance;
      }
      this->derivatives()[at] = found;
      floats(at_.relevances)[at] = along;
    }
  }

  // `RowGradients` in place of derivatives, by the same threads.
  CROSSRET_DEVICE void turn_derivatives(const Job& job) const {
    for (int unit = thread_index(); unit < Shape::rows * job.n_contexts; unit += Shape::threads) {
      const int at = unit / job.n_contexts * kRelevancePitch + unit % job.n_contexts;
      const RowDerivatives given = this->derivatives()[at];
      const float number = given.gradient == given.gradient ? given.gradient : 0.0f;
      const float product = bounded(number * given.of_products, kMostFactor);
      gradients_of_rows()[at] = {number == given.gradient ? product : NAN,
                                 bounded(0.0f - number * given.of_squares, kMostFactor), 0.0f, 0.0f};
    }
  }

  CROSSRET_DEVICE static int rows_of(const Job& job, int begin) {
    return job.n_rows - begin < Shape::rows ? job.n_rows - begin : Shape::rows;
  }

  // Gradients of a row and an item of contexts.
  struct alignas(16) RowGradients {
    float product;  // ∂L/∂(q · a); NaN where ∂L/∂r is
    float square;   // 2 ∂L/∂‖a‖²
    float unused[2];
  };
  static_assert(sizeof(RowGradients) == sizeof(RowDerivatives), "they take the same places");
  CROSSRET_DEVICE Shared<RowGradients> gradients_of_rows() const { return shared_at<RowGradients>(at_.derivatives); }
  CROSSRET_DEVICE RowGradients gradients_of_row(int row, int context) const {
    return gradients_of_rows()[row * kRelevancePitch + context];
  }

  // The cell's value in its norm's gradient: x, or n of the softmax.
  CROSSRET_DEVICE float in_norm(float s, int at) const {
    const float x = this->clip(s);
    if (this->norm() != Norm::softmax) return x;
    return approx_exp2((x - floats(at_.greatest)[at]) * kLog2E) * inverse(floats(at_.norms)[at]);
  }

  // A column of an item of queries: its rows [from, to) of the piece.
  struct Column {
    int query, column, context, at, from, to;
  };
  template <class Take>
  CROSSRET_DEVICE void each_part(const Job& job, int begin, const Take& take) const {
    Tile::each_unit(job.n_queries, job.n_columns, thread_index(), Shape::threads, [&](int query, int column) {
      Column own{query, column, 0, query * at_.pitch + column, 0, 0};
      while (own.context + 1 < job.n_contexts && column >= ints(at_.context_begins)[own.context + 1]) ++own.context;
      const int first = ints(at_.query_begins)[query] - begin, last = ints(at_.query_begins)[query + 1] - begin;
      own.from = first > 0 ? first : 0, own.to = last < Shape::rows ? last : Shape::rows;
      take(own);
    });
  }

  // ∂L/∂n in place of Gp; adds the piece to Σ x ∂L/∂n along an item's queries where `pulled`, of the softmax Σ n ∂L/∂n.
  CROSSRET_DEVICE void turn_weighted(const Job& job, int begin, bool pulled) const {
    each_part(job, begin, [&](const Column& own) {
      float sum = pulled && begin > 0 ? static_cast<float>(floats(at_.pulls)[own.at]) : 0.0f;
      for (int row = own.from; row < own.to; ++row) {
        const int cell = row * at_.pitch + own.column;
        const RowDerivatives of_row = this->derivatives()[row * kRelevancePitch + own.context];
        const float s = floats(at_.similarities)[cell];
        const float of_weight = weight_derivative(of_row.of_products, s, of_row.of_squares, floats(at_.weighted)[cell]);
        const float of_exponent = floats(at_.weights)[cell] * (of_weight - of_row.mean);
        // Some number of a pair whose gradients are NaN, as their products are.
        const float gradient = bounded(options_.lambda_softmax * (of_row.gradient * of_exponent), kMostGradient);
        floats(at_.weighted)[cell] = gradient;
        if (pulled) sum = fmaf(in_norm(s, own.at), gradient, sum);
      }
      if (pulled) floats(at_.pulls)[own.at] = sum;
    });
  }

  // ∂L/∂S in place of similarities; a thread has the same columns as in `turn_weighted`.
  CROSSRET_DEVICE void turn_similarities(const Job& job, int begin) const {
    each_part(job, begin, [&](const Column& own) {
      const bool normed = this->norm() != Norm::none;
      NormGradient norm{};
      if (normed) norm = NormGradient::of(this->norm(), floats(at_.norms)[own.at], floats(at_.pulls)[own.at]);
      const float column_scale = floats(at_.column_scales)[own.column];
      for (int row = own.from; row < own.to; ++row) {
        const int cell = row * at_.pitch + own.column;
        const float s = floats(at_.similarities)[cell];
        float gradient = floats(at_.weighted)[cell];
        if (normed) gradient = norm.through(this->norm(), gradient, in_norm(s, own.at));
        if (!(s > 0.0f)) gradient *= options_.slope;
        const float product = gradients_of_row(row, own.context).product;
        gradient = fmaf(product, floats(at_.weights)[cell], gradient);
        floats(at_.similarities)[cell] = gradient * floats(at_.row_scales)[row] * column_scale;
      }
    });
  }

  CROSSRET_DEVICE Global<float> grams_of(const Job& job, int context) const {
    return made_.of_grams + (block_y() * made_.numbers + (job.first_context + context) * made_.apart);
  }

  // Adds Σ w p pᵀ of the piece's rows to the gradients of the Gram matrices, w = 2 ∂L/∂‖a‖² of each row. They are
  // symmetric: a warp has 16 rows of a matrix from their own columns on, and stores what is right of these below, too.
  CROSSRET_DEVICE void add_to_grams(const Job& job, int begin, bool first) const {
    const int rows = rows_of(job, begin);
    int block = thread_index() / kWarp;
    for (int context = 0; context < job.n_contexts; ++context) {
      const int count = ints(at_.context_begins)[context + 1] - ints(at_.context_begins)[context];
      const int blocks = (count + 15) / 16;
      for (; block < blocks; block += Shape::warps) {  // warps continue with the next item's
        for (int right = 16 * block; right < count; right += 8 * kGroups) {
          add_to_gram(job, context, count, rows, 16 * block, right, first);
        }
      }
      block -= blocks;
    }
  }
  static constexpr int kGroups = 6;  // of eight columns, which a warp has at once

  // Rows `left` to `left` + 15 by some groups of columns from `right` on.
  CROSSRET_DEVICE void add_to_gram(const Job& job, int context, int count, int rows, int left, int right,
                                   bool first) const {
    using Fine = gpu::Fine<Arithmetic>;
    sync_warp();  // lanes store apart, and multiply together
    const int lane = thread_index() % kWarp, g = lane / 4, t = lane % 4;
    const int first_column = ints(at_.context_begins)[context], groups = fragment_columns(count - right);
    // Places behind the item repeat its last: what they make is read by nobody.
    const auto column_of = [&](int c) -> int { return first_column + (c < count ? c : count - 1); };
    int lefts[2], rights[kGroups];
#pragma unroll
    for (int half = 0; half < 2; ++half) lefts[half] = column_of(left + g + 8 * half);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) rights[j] = column_of(right + g + 8 * j);
    float sums[kGroups][4] = {};
    for (int top = 0; top < rows; top += Fine::rows) {
      Shared<float> weights[Fine::of_lane];
      float of_squares[Fine::of_lane];
#pragma unroll
      for (int k = 0; k < Fine::of_lane; ++k) {  // rows 2 t and 2 t + 1 of every eight lie in banks of their own
        const int row = top + 2 * t + k % 2 + k / 2 * 8;
        weights[k] = floats(at_.weights) + (row < rows ? row : rows - 1) * at_.pitch;
        of_squares[k] = gradients_of_row(row, context).square;  // 0 behind the rows
      }
      uint32_t heads[4], rests[4];
      Fine::weights([&](int half, int k) { return of_squares[k] * weights[k][lefts[half]]; }, heads, rests);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        if (j >= groups) break;
        const Chunk b = Fine::fragment([&](int k) -> float { return weights[k][rights[j]]; });
        const uint32_t head[2] = {b.words[0], b.words[1]}, rest[2] = {b.words[2], b.words[3]};
        multiply<typename Fine::Factor>(sums[j], heads, rest);
        multiply<typename Fine::Factor>(sums[j], rests, head);
        multiply<typename Fine::Factor>(sums[j], heads, head);
      }
    }
    const auto scale_of = [&](int c) -> float { return floats(at_.column_scales)[column_of(c)]; };
    const Global<float> to = grams_of(job, context);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j >= groups) break;
      const int column = right + 8 * j + 2 * t;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = left + g + 8 * half;
        if (row >= count) continue;
        Two<float> sum{};
#pragma unroll
        for (int e = 0; e < 2; ++e) sum.at[e] = sums[j][2 * half + e] * scale_of(row) * scale_of(column + e);
        const auto cell = Global<Two<float>>(to + (int64_t{row} * made_.gram_pitch + column));
        if (!first) {
          const Two<float> before = load(cell, 0);
          sum.at[0] += before.at[0], sum.at[1] += before.at[1];
        }
        store(cell, 0, sum);
        if (right + 8 * j < left + 16) continue;
#pragma unroll
        for (int e = 0; e < 2; ++e) {  // eight rows of a column are one sector of memory below
          if (column + e < count) store(to, (int64_t{column} + e) * made_.gram_pitch + row, sum.at[e]);
        }
      }
    }
  }

  // Stores zeros for a share whose first job has no gradients.
  CROSSRET_DEVICE void clear_grams(const Job& job) const {
    for (int context = 0; context < job.n_contexts; ++context) {
      const int64_t count = ints(at_.context_begins)[context + 1] - ints(at_.context_begins)[context];
      const Global<float> to = grams_of(job, context);
      for (int64_t cell = thread_index(); cell < count * made_.gram_pitch; cell += Shape::threads)
        store(to, cell, 0.0f);
    }
  }

  CROSSRET_DEVICE void store_similarities(const Job& job, int begin) const {
    const int rows = rows_of(job, begin), lane = thread_index() % kWarp;
    for (int row = thread_index() / kWarp; row < rows; row += Shape::warps) {
      const Global<T> to = made_.of_similarities + ints(at_.row_sources)[row] * made_.pitch;
      for (int column = lane; column < job.n_columns; column += kWarp) {
        T narrowed;
        narrow(floats(at_.similarities)[row * at_.pitch + column], narrowed);
        store(to, ints(at_.column_sources)[column], narrowed);
      }
    }
  }

  // −Σ r ∂L/∂r of every row, over items of contexts whose relevance depends on ‖a‖.
  CROSSRET_DEVICE void store_own(const Job& job, int begin) const {
    const int rows = rows_of(job, begin);
    for (int row = thread_index(); row < rows; row += Shape::threads) {
      float along = 0.0f;
      for (int context = 0; context < job.n_contexts; ++context) {
        along -= floats(at_.relevances)[row * kRelevancePitch + context];
      }
      store(made_.own, block_x() * int64_t{made_.n_query_rows} + ints(at_.row_sources)[row], along);
    }
  }

  const AttentionGradients<T>& made_;
};

template <class Shape, class Arithmetic, class T, bool usual>
CROSSRET_KERNEL(Shape::threads, Shape::blocks)
differentiate(CROSSRET_PARAMETER AttentionProblem problem, CROSSRET_PARAMETER AttentionGradients<T> made) {
  const DifferentiateBlock<Shape, Arithmetic, T, usual> block(problem, made);
  block.run();
}

}  // namespace gpu
}  // namespace crossret
