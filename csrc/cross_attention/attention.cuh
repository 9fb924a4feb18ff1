// Stacked cross attention of a tile of queries and a tile of contexts in CUDA (kernels.md §1): similarities in shared
// memory become weights and relevances.
//
// A warp takes 16 rows and one item of contexts at a time. Its lane g * 4 + t has rows g and g + 8, and of every 8
// columns t and t + 4, so that its accesses lie in 32 banks; fragments of the Gram matrices are made for that order
// (`gram.cuh`).
#pragma once
#include "cross_attention/norms.cuh"

namespace crossret {
namespace gpu {

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

// Derivatives of a row's relevance r to an item of contexts, kept for gradients.
struct alignas(16) RowDerivatives {
  float of_products, of_squares;  // of `Relevance`
  float mean;                     // of ∂r/∂p, which the softmax takes out
  float gradient;                 // ∂L/∂r, once it is known
};

// A job's weights and relevances. For gradients weights have a tile of their own, and Gp and the relevances'
// derivatives are stored.
template <class Shape, class Arithmetic, bool gradients, bool usual>
class AttentionTile : public NormedTile<Shape, Arithmetic, gradients, usual> {
  using Base = NormedTile<Shape, Arithmetic, gradients, usual>;
  using Fine = gpu::Fine<Arithmetic>;

 public:
  using Base::floats, Base::ints, Base::norm, Base::shifted, Base::clip, Base::each_unit;
  using typename Base::Element;
  static constexpr int kPoolingLanes = 8;  // of a pair

  CROSSRET_DEVICE explicit AttentionTile(const AttentionProblem& problem) : Base(problem) {}

  CROSSRET_DEVICE Shared<RowDerivatives> derivatives() const { return shared_at<RowDerivatives>(at_.derivatives); }

  // Relevances of the piece's rows to every item of contexts.
  CROSSRET_DEVICE void attend(const Job& job, int begin) const {
    const int rows = job.n_rows - begin < Shape::rows ? job.n_rows - begin : Shape::rows;
    each_unit(job.n_contexts, (rows + 15) / 16, thread_index() / kWarp, Shape::warps,
              [&](int item, int group) { attend_to(job, 16 * group, item); });
  }

  // λ n log₂e of a cell minus `shift`, rounded once: a large logit costs no digits of the difference. `at` is the place
  // of its factor.
  CROSSRET_DEVICE float logit(float s, int at, float shift) const {
    float x = clip(s);
    if (norm() == Norm::softmax) x = approx_exp2((x - floats(at_.greatest)[at]) * kLog2E);
    return fmaf(x, floats(at_.factors)[at], -shift);
  }

  // Weights of some steps of contexts, the rows of a fragment each, are held at once as operands of products with G.
  static constexpr int most_steps = Fine::rows == 16 ? 4 : 6, at_once = most_steps * Fine::rows;
  struct Operands {
    // Without a value they would keep their registers from unit to unit.
    uint32_t heads[most_steps][4] = {}, rests[most_steps][4] = {};
  };

  // A warp's 16 rows and an item of contexts. A lane has its rows and every fourth context from `t` on.
  struct Unit {
    int rows[2];
    Shared<float> cells[2], of_gradients[2];
    int factors[2];  // places
    int first_column, count, t;
    Global<const Chunk> gram;

    // Weights replace similarities, but for gradients.
    CROSSRET_DEVICE Shared<float> weights(int half) const { return gradients ? of_gradients[half] : cells[half]; }
  };

  // Relevances of 16 rows to an item of contexts, by a warp. Weights that are needed again replace similarities in
  // shared memory, except for gradients.
  CROSSRET_DEVICE void attend_to(const Job& job, int first_row, int item) const {
    const int lane = opaque(thread_index() % kWarp);
    Unit unit{};
    unit.t = lane % 4, unit.first_column = ints(at_.context_begins)[item];
    unit.count = ints(at_.context_begins)[item + 1] - unit.first_column;
    unit.gram = problem_.grams + ((job.first_context + item) * problem_.gram_apart * kWarp + lane);
    const bool may_cancel = (ints(at_.context_flags)[item] & kMayCancel) != 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = unit.rows[half] = first_row + lane / 4 + 8 * half;
      unit.cells[half] = floats(at_.similarities) + (row * at_.pitch + unit.first_column);
      if (gradients) unit.of_gradients[half] = floats(at_.weights) + (row * at_.pitch + unit.first_column);
      unit.factors[half] = ints(at_.row_items)[row] * at_.pitch + unit.first_column;
    }
    // The greatest logit in two parts, as it is and its rounding error: exponents need both where logits are large.
    float shift[2] = {}, rest[2] = {};
    if (shifted()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto greatest = [&] {
          float found = -INFINITY;
          for (int c = unit.t; c < unit.count; c += 4) {
            found = fmaxf(found, logit(unit.cells[half][c], unit.factors[half] + c, shift[half]));
          }
          return bounded(greatest_of_row(found), kMostLogit);
        };
        shift[half] = greatest();
        rest[half] = greatest();
      }
    }
    // Σ p s, Σ p and ‖a‖² = pᵀGp, by lanes.
    float products[2] = {}, totals[2] = {}, squares[2] = {};
    const bool kept = gradients || may_cancel || unit.count > at_once;
    for (int first = 0; first < unit.count; first += at_once) {
      Operands operands;
#pragma unroll
      for (int i = 0; i < most_steps; ++i) {
        const int begin = first + i * Fine::rows;
        if (begin >= unit.count) break;
        float p[2][Fine::of_lane];
        const int left = unit.count - begin;
        const bool half_step = Fine::rows > 8 && left <= 8;  // the item's last contexts fill one group of columns
        if (left >= Fine::rows) {
          weigh<Fine::of_lane, true>(unit, begin, shift, rest, p, products, totals);
        } else if (half_step) {
          weigh<Fine::of_lane / 2, false>(unit, begin, shift, rest, p, products, totals);
        } else {
          weigh<Fine::of_lane, false>(unit, begin, shift, rest, p, products, totals);
        }
        if (kept) {
#pragma unroll
          for (int k = 0; k < Fine::of_lane; ++k) {
            const int c = begin + 4 * k + unit.t;
            if (c < unit.count) unit.weights(0)[c] = p[0][k], unit.weights(1)[c] = p[1][k];
          }
        }
        Fine::weights([&](int half, int k) { return p[half][k]; }, operands.heads[i], operands.rests[i]);
        if (gradients) continue;
        if (half_step) {
          add_triangle<1>(unit, first, i, operands, p, squares);
        } else {
          add_triangle<Fine::rows / 8>(unit, first, i, operands, p, squares);
        }
      }
      if (gradients || first > 0) add_rectangle(unit, first, operands, squares);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      products[half] = sum_of_row(products[half]), totals[half] = sum_of_row(totals[half]);
      squares[half] = sum_of_row(squares[half]);
    }
    if (may_cancel) mend(unit, first_row, products, squares);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = unit.rows[half], at = row * kRelevancePitch + item;
      const Relevance relevance =
          Relevance::of(floats(at_.row_lengths)[row], products[half], totals[half], squares[half]);
      if (unit.t == 0) floats(at_.relevances)[at] = relevance.value;
      if (!gradients) continue;
      // The mean that the softmax takes out of ∂r/∂p. It is zero but for rounding, which λ and long features would
      // magnify: it is computed from the same rounded numbers.
      float sum = 0.0f;
      const Shared<float> of_row = floats(at_.weighted) + (row * at_.pitch + unit.first_column);
      for (int c = unit.t; c < unit.count; c += 4) {
        const float s = unit.cells[half][c], p = unit.weights(half)[c];
        sum = fmaf(p, weight_derivative(relevance.of_products, s, relevance.of_squares, of_row[c]), sum);
      }
      const float mean = sum_of_row(sum) / fmaxf(totals[half], kTiny);
      if (unit.t != 0) continue;
      derivatives()[at] = RowDerivatives{relevance.of_products, relevance.of_squares, mean, 0.0f};
    }
  }

  CROSSRET_DEVICE float context_length(int column) const {
    const float norm = load(problem_.contexts.norms, ints(at_.column_sources)[column]);
    return norm > 0.0f ? (options_.normalize ? 1.0f : norm) : 0.0f;
  }

  // A lane's weights of the step from context `begin` on, `whole` or the item's last, with Σ p s and Σ p. Places behind
  // `places` have none.
  template <int places, bool whole>
  CROSSRET_DEVICE void weigh(const Unit& unit, int begin, const float (&shift)[2], const float (&rest)[2],
                             float (&p)[2][Fine::of_lane], float (&products)[2], float (&totals)[2]) const {
    float s[2][places], exponents[2][places];
#pragma unroll
    for (int k = 0; k < places; ++k) {
      const int c = begin + 4 * k + unit.t;
      const bool there = whole || c < unit.count;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s[half][k] = there ? static_cast<float>(unit.cells[half][c]) : 0.0f;
        exponents[half][k] = there ? logit(s[half][k], unit.factors[half] + c, shift[half]) : -INFINITY;
        if (shifted()) exponents[half][k] = fminf(exponents[half][k] - rest[half], 0.0f);
      }
    }
#pragma unroll
    for (int k = 0; k < places; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        p[half][k] = approx_exp2(exponents[half][k]);  // 0 where there is no context
        products[half] = fmaf(p[half][k], s[half][k], products[half]);
        totals[half] += p[half][k];
      }
    }
#pragma unroll
    for (int k = places; k < Fine::of_lane; ++k) p[0][k] = p[1][k] = 0.0f;
  }

  // Adds the product of weights and a fragment of G, rows of step i by a group of 8 columns.
  CROSSRET_DEVICE static void add_product(const Operands& operands, int i, const Chunk& g, float (&sums)[4]) {
    const uint32_t head[2] = {g.words[0], g.words[1]}, rest[2] = {g.words[2], g.words[3]};
    multiply<typename Fine::Factor>(sums, operands.heads[i], rest);
    multiply<typename Fine::Factor>(sums, operands.rests[i], head);
    multiply<typename Fine::Factor>(sums, operands.heads[i], head);
  }

  // The lane's part of the fragments of a group of columns, from context `first` on.
  CROSSRET_DEVICE static Global<const Chunk> fragments(const Unit& unit, int group, int first) {
    return unit.gram + (group * fragment_rows<Arithmetic>(unit.count) + first / Fine::rows) * kWarp;
  }

  // Adds a lane's part of pᵀGp: of step i with itself and twice with those before it, from context `first` on, in
  // groups of eight columns.
  template <int groups>
  CROSSRET_DEVICE void add_triangle(const Unit& unit, int first, int i, const Operands& operands,
                                    const float (&p)[2][Fine::of_lane], float (&squares)[2]) const {
    const int column = first + i * Fine::rows;
    Chunk g[groups][most_steps];
#pragma unroll
    for (int j = 0; j < groups; ++j) {
#pragma unroll
      for (int before = 0; before <= i; ++before) {
        g[j][before] = column + 8 * j < unit.count
                           ? load(fragments(unit, column / 8 + j, first), int64_t{before} * kWarp)
                           : Chunk{};
      }
    }
    sync_warp();
    float sums[groups][4] = {};
#pragma unroll
    for (int before = 0; before <= i; ++before) {
#pragma unroll
      for (int j = 0; j < groups; ++j) {
#pragma unroll
        for (int e = 0; before > 0 && before == i && e < 4; ++e) sums[j][e] += sums[j][e];
        add_product(operands, before, g[j][before], sums[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < groups; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) squares[e / 2] = fmaf(sums[j][e], p[e / 2][2 * j + e % 2], squares[e / 2]);
    }
  }

  // Adds a lane's part of pᵀGp: of all steps from context `first` on, twice with the contexts before. For gradients
  // with one another, too, and Gp is stored.
  CROSSRET_DEVICE void add_rectangle(const Unit& unit, int first, const Operands& operands, float (&squares)[2]) const {
    sync_warp();
    const int groups = gradients ? fragment_columns(unit.count) : first / 8;
#pragma unroll 1
    for (int group = 0; group < groups; ++group) {
      float sums[4] = {};
#pragma unroll
      for (int i = 0; i < most_steps; ++i) {
        if (first + i * Fine::rows >= unit.count) continue;
        add_product(operands, i, load(fragments(unit, group, first), int64_t{i} * kWarp), sums);
      }
      const float times = 8 * group < first ? 2.0f : 8 * group < first + at_once ? 1.0f : 0.0f;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = 8 * group + 4 * e + unit.t;
        if (c >= unit.count) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float weighted = sums[2 * half + e];
          if (times > 0.0f) squares[half] = fmaf(times * weighted, unit.weights(half)[c], squares[half]);
          if (!gradients) continue;
          Shared<float> to = floats(at_.weighted) + (unit.rows[half] * at_.pitch + unit.first_column);
          to[c] = first > 0 ? to[c] + weighted : weighted;
        }
      }
    }
  }

  // Computes q·a and ‖a‖² of rows whose weighted contexts cancel from the vectors a = Σ p c themselves.
  CROSSRET_DEVICE void mend(const Unit& unit, int first_row, float (&products)[2], float (&squares)[2]) const {
    const int lane = thread_index() % kWarp;
    sync_warp();  // weights of all lanes
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float orthogonal = 0.0f;  // Σ p² ‖c‖², which ‖a‖² would be of orthogonal contexts
      for (int c = unit.t; c < unit.count; c += 4) {
        const float length = unit.weights(half)[c] * context_length(unit.first_column + c);
        orthogonal = fmaf(length, length, orthogonal);
      }
      orthogonal = sum_of_row(orthogonal);
      uint32_t wanted = ballot(lane % 4 == 0 && squares[half] < orthogonal * kCancelled);
      while (wanted != 0) {
        const int owner = first_one(wanted), row = first_row + owner / 4 + 8 * half;
        wanted &= wanted - 1;
        const int source = ints(at_.row_sources)[row];
        if (source < 0) continue;
        const Global<const Element> queries = Global<const Element>(problem_.queries.rows);
        const Global<const Element> contexts = Global<const Element>(problem_.contexts.rows);
        const Shared<float> weights = floats(at_.weights) + (row * at_.pitch + unit.first_column);
        float product = 0.0f, square = 0.0f;
        for (int d = lane; d < problem_.dim; d += kWarp) {
          float attended = 0.0f;
          int64_t at = int64_t{ints(at_.column_sources)[unit.first_column]} * problem_.dim + d;
          for (int c = 0; c < unit.count; ++c, at += problem_.dim) {
            const float scale = floats(at_.column_scales)[unit.first_column + c];
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

  // Pools the piece's relevances, each pair by kPoolingLanes threads, and calls take(query, context, pooled) by one of
  // them for every pair of which it was the last piece. `kept` is for the next one: a job in pieces has few pairs.
  template <class Take>
  CROSSRET_DEVICE void pool(const Job& job, int begin, Pooled& kept, const Take& take) const {
    constexpr int pairs_at_once = Shape::threads / kPoolingLanes;
    static_assert(pairs_at_once >= kMostContexts, "a job in pieces has one item of queries");
    const int thread = thread_index(), lane = thread % kPoolingLanes, pairs = job.n_queries * job.n_contexts;
    for (int first = 0; first < pairs; first += pairs_at_once) {
      const int pair = first + thread / kPoolingLanes;
      const int query = pair < pairs ? pair / job.n_contexts : 0, context = pair - query * job.n_contexts;
      const int top = ints(at_.query_begins)[query] - begin, last = ints(at_.query_begins)[query + 1] - begin;
      const int to = last < Shape::rows ? last : Shape::rows;
      if (begin == 0) kept = Pooled{};
      if (pair < pairs) {
        kept.add(options_, begin, (top > 0 ? top : 0) + lane, to, kPoolingLanes,
                 [&](int row) -> float { return floats(at_.relevances)[row * kRelevancePitch + context]; });
      }
      if (begin + Shape::rows < job.n_rows) continue;
#pragma unroll
      for (int mask = 1; mask < kPoolingLanes; mask *= 2) {
        kept.add(options_,
                 {shuffle_xor(kept.sum, mask), shuffle_xor(kept.greatest, mask), shuffle_xor(kept.detail, mask)});
      }
      if (pair < pairs && lane == 0) take(query, context, kept);
    }
  }

 protected:
  using Base::problem_, Base::options_, Base::at_;
};

}  // namespace gpu
}  // namespace crossret
