// Stacked cross attention of a tile of queries and a tile of contexts in CUDA (kernels.md §1): similarities in shared
// memory become weights and relevances.
//
// A warp takes 16 rows and one item of contexts at a time. Its lane g * 4 + t has rows g and g + 8, and of every 8
// columns t and t + 4, so that its accesses lie in 32 banks; fragments of the Gram matrices are made for that order
// (`gram.cuh`).
#pragma once
#include "cross_attention/job.cuh"

namespace crossret {
namespace gpu {

constexpr int kContextsAtOnce = 64;  // whose weights a lane holds

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

// A job's weights and relevances. For gradients weights have a tile of their own, and Gp and the relevances'
// derivatives are stored.
template <class Shape, class Arithmetic, bool gradients>
class AttentionTile : public JobTile<Shape, Arithmetic> {
  using Base = JobTile<Shape, Arithmetic>;

 public:
  using Base::floats, Base::ints;
  using typename Base::Element;
  static_assert(Shape::threads >= kMostQueries * kMostContexts, "a thread pools each pair of a job");

  CROSSRET_DEVICE explicit AttentionTile(const AttentionProblem& problem) : Base(problem) {}

  // Adds the piece from row `begin` on to the norms' sums of every item of queries and context, in `factors`.
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
      for (int row = from; options_.norm != Norm::none && row < to; ++row) {
        sum = add_norm_term(options_.norm, x(row), sum);
      }
      floats(at_.factors)[at] = begin > 0 ? sum + floats(at_.factors)[at] : sum;
    }
  }

  // Factors of logits in place of the norms' sums, by the same threads.
  CROSSRET_DEVICE void finish_factors(const Job& job) const {
    for (int unit = thread_index(); unit < job.n_queries * job.n_columns; unit += Shape::threads) {
      const int item = unit / job.n_columns, at = item * at_.pitch + unit - item * job.n_columns;
      const float norm = finish_norm(options_.norm, floats(at_.factors)[at]);
      if (gradients) floats(at_.norms)[at] = norm;
      floats(at_.factors)[at] = logit_factor(options_, norm);
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

  // λ n log₂e of a cell minus `shift`, rounded once: a large logit costs no digits of the difference.
  CROSSRET_DEVICE float logit(float s, int at, float shift) const {
    float x = clipped(s, options_.slope);
    if (options_.norm == Norm::softmax) x = approx_exp2((x - floats(at_.greatest)[at]) * kLog2E);
    return fmaf(x, floats(at_.factors)[at], -shift);
  }

  // Relevances of 16 rows to an item of contexts, by a warp. Weights replace similarities, except for gradients.
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
    // The greatest logit in two parts, as it is and its rounding error: exponents need both where logits are large.
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
    // Weights, Σ p s, Σ p, and Σ p² ‖c‖², which ‖a‖² would be of orthogonal contexts.
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
    // ‖a‖² = pᵀGp, then sums over the lanes of a row.
    add_squares(weights, rows, first_column, count, gram_of(job, item), squares);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      products[half] = sum_of_row(products[half]), totals[half] = sum_of_row(totals[half]);
      squares[half] = sum_of_row(squares[half]), orthogonal[half] = sum_of_row(orthogonal[half]);
    }
    if (may_cancel) mend(first_row, first_column, count, orthogonal, products, squares);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Relevance relevance =
          Relevance::of(floats(at_.row_lengths)[rows[half]], products[half], totals[half], squares[half]);
      const int at = rows[half] * kRelevancePitch + item;
      if (t == 0) floats(at_.relevances)[at] = relevance.value;
      if (!gradients) continue;
      // The mean that the softmax takes out of ∂r/∂p. It is zero but for rounding, which λ and long features would
      // magnify: it is computed from the same rounded numbers.
      float sum = 0.0f;
      for (int c = t; c < count; c += 4) {
        const float weighted = floats(at_.weighted)[rows[half] * at_.pitch + first_column + c];
        const float p = weights[half][c];
        sum = fmaf(p, weight_derivative(relevance.of_products, cells[half][c], relevance.of_squares, weighted), sum);
      }
      const float mean = sum_of_row(sum) / fmaxf(totals[half], kTiny);
      if (t != 0) continue;
      floats(at_.of_products)[at] = relevance.of_products;
      floats(at_.of_squares)[at] = relevance.of_squares;
      floats(at_.means)[at] = mean;
    }
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

  // Adds a lane's part of pᵀGp of its two rows, by tensor cores; stores Gp for gradients.
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
      // Scores take the upper triangle, off-diagonal terms twice: columns from the first of these rows on.
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

  // Computes q·a and ‖a‖² of rows whose weighted contexts cancel from the vectors a = Σ p c themselves.
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

  // Adds the piece's relevances to the pair of a thread.
  CROSSRET_DEVICE void pool(const Job& job, int begin, Pooled& pooled) const {
    const int query = thread_index() / kMostContexts, context = thread_index() % kMostContexts;
    if (query >= job.n_queries || context >= job.n_contexts) return;
    const int first = ints(at_.query_begins)[query] - begin, last = ints(at_.query_begins)[query + 1] - begin;
    const int from = first > 0 ? first : 0, to = last < Shape::rows ? last : Shape::rows;
    pooled.add(options_, begin, from, to,
               [&](int row) -> float { return floats(at_.relevances)[row * kRelevancePitch + context]; });
  }

 protected:
  using Base::problem_, Base::options_, Base::at_;
};

}  // namespace gpu
}  // namespace crossret
