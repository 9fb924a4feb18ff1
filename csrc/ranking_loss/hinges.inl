// Ranking losses (SCAN Eqs. 11 and 12, HAN Eq. 4): hinges of a tile of scores, for rows and columns at once.
namespace crossret {
namespace CROSSRET_ISA {

// x ∈ [0, 1] to a power ≥ 0, by products of squares and square roots: exact to a few roundings whatever the exponent.
static inline F power(F x, const Exponent& exponent) {
  if (exponent.whole == 7 && exponent.fraction == 0) {  // HAN's, without the loop
    const F square = V::mul(x, x);
    return V::mul(V::mul(square, square), V::mul(square, x));
  }
  F result = V::set(1.0f), square = x, root = x;
  for (int64_t whole = exponent.whole; whole != 0; whole >>= 1) {
    if ((whole & 1) != 0) result = V::mul(result, square);
    square = V::mul(square, square);
  }
  for (uint32_t fraction = exponent.fraction; fraction != 0; fraction <<= 1) {
    root = V::sqrt(root);
    if ((fraction >> 31) != 0) result = V::mul(result, root);
  }
  return result;
}

// h / scale, which must be 1 of equals where the exponent is so large that a rounded 1 / scale would show in the power.
static inline F ratio_of(F hinge, F scale, F inverse, const Exponent& exponent) {
  return exponent.whole < 64 ? V::mul(hinge, inverse) : V::div(hinge, scale);
}

// 1 / scale; hinges below the normal range are beside nothing.
static inline F inverse_of(F scale) {
  const F least = V::set(1.17549435e-38f);
  return V::div(V::set(1.0f), V::select(V::less(scale, least), least, scale));
}

static inline F lane_numbers() {
  float numbers[V::width];
  for (int i = 0; i < V::width; ++i) numbers[i] = static_cast<float>(i);
  return V::load(numbers);
}

// The greater, NaN where either is.
static inline F greater(F a, F b) { return V::select(V::is_nan(a), a, V::max(a, b)); }

// Statistics of a vector of rows or columns, of which hinges are added one vector after the other.
template <Negatives negatives>
struct Hinges;

template <>
struct Hinges<Negatives::hardest> {
  F best, place;

  static Hinges none(float) { return {V::zero(), V::set(-1.0f)}; }
  static Hinges load(const HingeStatistics& from, int64_t at, int64_t n) {
    return {V::load(from.kind(0, at), n), V::load(from.kind(1, at), n)};
  }
  void store(const HingeStatistics& to, int64_t at, int64_t n) const {
    V::store(to.kind(0, at), best, n);
    V::store(to.kind(1, at), place, n);
  }
  // The first of equals stays, or the first NaN.
  void add(F hinge, F own, const Exponent&) { merge({hinge, own}); }
  void merge(const Hinges& later) {
    const V::Mask known = V::is_nan(best);
    const V::Mask larger = V::either(V::less(best, later.best), V::is_nan(later.best));
    place = V::select(known, place, V::select(larger, later.place, place));
    best = V::select(larger, later.best, best);
  }
  void merge(const Hinges& later, const Exponent&) { merge(later); }
  // Of all lanes, to the row at `at`, which saw earlier columns.
  void finish(const HingeStatistics& to, int64_t at) const {
    float bests[V::width], places[V::width];
    V::store(bests, best);
    V::store(places, place);
    float found = 0.0f, where = -1.0f;
    for (int i = 0; i < V::width; ++i) {
      const bool first = bests[i] == found && places[i] < where;
      const bool nan = bests[i] != bests[i] && (found == found || places[i] < where);
      if (bests[i] > found || first || nan) found = bests[i], where = places[i];
    }
    float &value = *to.kind(0, at), &number = *to.kind(1, at);
    if (found > value || (found != found && value == value)) value = found, number = where;
  }
};

template <>
struct Hinges<Negatives::sum> {
  F sum, count;

  static Hinges none(float) { return {V::zero(), V::zero()}; }
  static Hinges load(const HingeStatistics& from, int64_t at, int64_t n) {
    return {V::load(from.kind(0, at), n), V::load(from.kind(1, at), n)};
  }
  void store(const HingeStatistics& to, int64_t at, int64_t n) const {
    V::store(to.kind(0, at), sum, n);
    V::store(to.kind(1, at), count, n);
  }
  void add(F hinge, F, const Exponent&) {
    sum = V::add(sum, hinge);
    count = V::add(count, V::select(V::nonzero(hinge), V::set(1.0f), V::zero()));
  }
  void merge(const Hinges& later, const Exponent&) {
    sum = V::add(sum, later.sum);
    count = V::add(count, later.count);
  }
  void finish(const HingeStatistics& to, int64_t at) const {
    *to.kind(0, at) += V::reduce_add(sum);
    *to.kind(1, at) += V::reduce_add(count);
  }
};

template <>
struct Hinges<Negatives::softmax> {
  F most, powers, slopes, inverse;

  static Hinges none(float scale) { return {V::set(scale), V::zero(), V::zero(), inverse_of(V::set(scale))}; }
  static Hinges load(const HingeStatistics& from, int64_t at, int64_t n) {
    return {V::load(from.kind(0, at), n), V::load(from.kind(1, at), n), V::load(from.kind(2, at), n), V::zero()};
  }
  void store(const HingeStatistics& to, int64_t at, int64_t n) const {
    V::store(to.kind(0, at), most, n);
    V::store(to.kind(1, at), powers, n);
    V::store(to.kind(2, at), slopes, n);
  }
  // The scale is the greatest of all that is added: no power overflows, and they underflow only beside a 1.
  void add(F hinge, F, const Exponent& exponent) {
    const F ratio = V::select(V::nonzero(hinge), ratio_of(hinge, most, inverse, exponent), V::zero());
    const F slope = V::select(V::nonzero(hinge), power(ratio, exponent), V::zero());
    powers = V::fma(slope, ratio, powers);
    slopes = V::add(slopes, slope);
  }
  // To a greater scale.
  void rescale(F scale, const Exponent& exponent) {
    const F ratio = V::select(V::nonzero(most), V::div(most, scale), V::zero()), slope = power(ratio, exponent);
    powers = V::mul(powers, V::mul(slope, ratio));
    slopes = V::mul(slopes, slope);
    most = scale;
  }
  void merge(Hinges later, const Exponent& exponent) {
    const F scale = greater(most, later.most);
    rescale(scale, exponent);
    later.rescale(scale, exponent);
    powers = V::add(powers, later.powers);
    slopes = V::add(slopes, later.slopes);
  }
  void finish(const HingeStatistics& to, int64_t at) const {
    *to.kind(1, at) += V::reduce_add(powers);
    *to.kind(2, at) += V::reduce_add(slopes);
  }
};

// Calls step(row, r, c, left, hinges of the row, hinges of the columns) for every vector of a tile of scores, then
// done(row, r) for every row. `row` is whatever start(r) returned.
template <class Start, class Step, class Done>
static inline __attribute__((always_inline)) void each_hinge(const RankingLossCall& call, const Tile& tile,
                                                             const TileScores& from, const Start& start,
                                                             const Step& step, const Done& done) {
  using Own = decltype(start(0));
  struct Row {
    Own own;
    F threshold;
  };
  const float* const thresholds = call.thresholds + (tile.matched ? tile.column - call.offset : 0);
  each_vector(
      call, tile, from, [&](int64_t r) { return Row{start(r), V::set(call.thresholds[tile.row + r])}; },
      [&](Row& row, int64_t r, int64_t c, int64_t left, F s, V::Mask negative) __attribute__((always_inline)) {
        const auto hinge = [&](F alpha) __attribute__((always_inline)) {
          // max keeps a NaN in its second operand.
          const F positive = V::max(V::zero(), V::add(alpha, s));
          return V::keep_first(V::select(negative, positive, V::zero()), left);
        };
        step(row.own, r, c, left, hinge(row.threshold), [&] { return hinge(V::load(thresholds + c, left)); });
      },
      [&](Row& row, int64_t r) { done(row.own, r); });
}

// The greatest hinges of rows and columns, to which their statistics are rescaled.
template <bool matched>
static void rescale(const RankingLossCall& call, const Tile& tile, const TileScores& from, const HingeStatistics& rows,
                    const HingeStatistics& columns) {
  using Kept = Hinges<Negatives::softmax>;
  float of_columns[kTileColumns], of_rows[kTileRows];
  for (int64_t c = 0; c < tile.columns; c += V::width) V::store(of_columns + c, V::zero(), tile.columns - c);
  each_hinge(
      call, tile, from, [&](int64_t) { return V::zero(); },
      [&](F& row, int64_t, int64_t c, int64_t left, F hinge, const auto& of_column) __attribute__((always_inline)) {
        row = greater(hinge, row);
        if constexpr (matched) V::store(of_columns + c, greater(of_column(), V::load(of_columns + c, left)), left);
      },
      [&](const F& row, int64_t r) {
        float lanes[V::width];
        V::store(lanes, row);
        of_rows[r] = max_of(lanes, V::width);
      });
  const auto update = [&](const HingeStatistics& all, const float* found, int64_t count) {
    for (int64_t at = 0; at < count; at += V::width) {
      Kept kept = Kept::load(all, at, count - at);
      kept.rescale(greater(kept.most, V::load(found + at, count - at)), call.slope);
      kept.store(all, at, count - at);
    }
  };
  update(rows, of_rows, tile.rows);
  if constexpr (matched) update(columns, of_columns, tile.columns);
}

template <Negatives negatives, bool matched>
static void measure_tile(const RankingLossCall& call, const Tile& tile, const HingeStatistics& rows,
                         const HingeStatistics& columns, float* scratch) {
  using Kept = Hinges<negatives>;
  const TileScores from = widened(call, tile, scratch);
  float inverses[kTileColumns];
  if constexpr (negatives == Negatives::softmax) {
    rescale<matched>(call, tile, from, rows, columns);
    for (int64_t c = 0; matched && c < tile.columns; c += V::width) {
      V::store(inverses + c, inverse_of(V::load(columns.kind(0, c), tile.columns - c)), tile.columns - c);
    }
  }
  const F lanes = lane_numbers();
  each_hinge(
      call, tile, from, [&](int64_t r) { return Kept::none(*rows.kind(0, r)); },
      [&](Kept& row, int64_t r, int64_t c, int64_t left, F hinge, const auto& of_column)
          __attribute__((always_inline)) {
            const F number = V::add(lanes, V::set(static_cast<float>(tile.column + c)));
            row.add(hinge, number, call.slope);
            if constexpr (matched) {
              Kept column = Kept::load(columns, c, left);
              if constexpr (negatives == Negatives::softmax) column.inverse = V::load(inverses + c, left);
              column.add(of_column(), V::set(static_cast<float>(tile.row + r)), call.slope);
              column.store(columns, c, left);
            }
          },
      [&](const Kept& row, int64_t r) { row.finish(rows, r); });
}

// Of a vector of rows or columns, as `HingeGradients` has them; of softmax's keys the inverses too.
struct Pulls {
  F grads, keys, inverses;
};

// ∂loss/∂hinge times a gradient; of no hinge 0, whatever the gradient.
template <Negatives negatives>
static inline F pull(F hinge, F number, const Pulls& of, const Exponent& slope) {
  if constexpr (negatives == Negatives::hardest) {
    return V::select(V::nonzero(V::sub(number, of.keys)), V::zero(), of.grads);
  }
  F grads = of.grads;
  if constexpr (negatives == Negatives::softmax) {
    // loss / M is a norm of hinges / M, so that M cancels: (h / loss)ᵖ⁻¹, with h ≤ loss but for rounding.
    const F ratio = ratio_of(hinge, of.keys, of.inverses, slope);
    grads = V::mul(grads, power(V::min(V::set(1.0f), ratio), slope));
  }
  return V::select(V::nonzero(hinge), grads, V::zero());
}

template <Negatives negatives, bool matched>
static void differentiate_tile(const RankingLossCall& call, const Tile& tile, const HingeGradients& rows,
                               const HingeGradients& columns, char* out, int64_t out_row_bytes, float* scratch) {
  const bool read = negatives != Negatives::hardest;  // of the hardest the places are known
  const TileScores from = read ? widened(call, tile, scratch) : TileScores{scratch, kTileColumns};
  float made[kTileColumns], inverses[kTileColumns];
  const int64_t first = tile.column - call.offset;
  if constexpr (negatives == Negatives::softmax) {
    for (int64_t c = 0; matched && c < tile.columns; c += V::width) {
      V::store(inverses + c, inverse_of(V::load(columns.keys + first + c, tile.columns - c)), tile.columns - c);
    }
  }
  const F lanes = lane_numbers();
  struct Row {
    float* to;
    F number;
    Pulls pulls;
  };
  each_hinge(
      call, tile, from,
      [&](int64_t r) {
        const int64_t i = tile.row + r;
        float* const to = call.dtype == Dtype::float32 ? reinterpret_cast<float*>(out + r * out_row_bytes) : made;
        const F key = V::set(rows.keys[i]);
        return Row{to, V::set(static_cast<float>(i)), {V::set(rows.grads[i]), key, inverse_of(key)}};
      },
      [&](const Row& row, int64_t, int64_t c, int64_t left, F hinge, const auto& of_column)
          __attribute__((always_inline)) {
            const F column = V::add(lanes, V::set(static_cast<float>(tile.column + c)));
            F sum = pull<negatives>(hinge, column, row.pulls, call.slope);
            if constexpr (matched) {
              Pulls pulls{V::load(columns.grads + first + c, left), V::load(columns.keys + first + c, left), V::zero()};
              if constexpr (negatives == Negatives::softmax) pulls.inverses = V::load(inverses + c, left);
              sum = V::add(sum, pull<negatives>(of_column(), row.number, pulls, call.slope));
            }
            V::store(row.to + c, sum, left);
          },
      [&](const Row& row, int64_t r) {
        const int64_t i = tile.row + r, at = i - first;
        const float total = rows.totals[i] + columns.totals[i];
        if (matched && at >= 0 && at < tile.columns) row.to[at] = total != 0.0f ? 0.0f - rows.grads[i] * total : 0.0f;
        narrow(call, made, tile.columns, out + r * out_row_bytes);
      });
}

template <Negatives negatives>
static void merge_columns(const RankingLossCall& call, const HingeStatistics& sum, const HingeStatistics& later,
                          int64_t count) {
  for (int64_t at = 0; at < count; at += V::width) {
    auto kept = Hinges<negatives>::load(sum, at, count - at);
    kept.merge(Hinges<negatives>::load(later, at, count - at), call.slope);
    kept.store(sum, at, count - at);
  }
}

// Calls run<negatives, matched>.
#define CROSSRET_OF_NEGATIVES(run, negatives, matched, ...)                                                      \
  switch (negatives) {                                                                                           \
    case Negatives::hardest:                                                                                     \
      return matched ? run<Negatives::hardest, true>(__VA_ARGS__) : run<Negatives::hardest, false>(__VA_ARGS__); \
    case Negatives::sum:                                                                                         \
      return matched ? run<Negatives::sum, true>(__VA_ARGS__) : run<Negatives::sum, false>(__VA_ARGS__);         \
    case Negatives::softmax:                                                                                     \
      return matched ? run<Negatives::softmax, true>(__VA_ARGS__) : run<Negatives::softmax, false>(__VA_ARGS__); \
  }

static void ranking_measure(const RankingLossCall& call, const Tile& tile, const HingeStatistics& rows,
                            const HingeStatistics& columns, float* scratch) {
  CROSSRET_OF_NEGATIVES(measure_tile, call.negatives, tile.matched, call, tile, rows, columns, scratch)
}

static void ranking_differentiate(const RankingLossCall& call, const Tile& tile, const HingeGradients& rows,
                                  const HingeGradients& columns, char* out, int64_t out_row_bytes, float* scratch) {
  CROSSRET_OF_NEGATIVES(differentiate_tile, call.negatives, tile.matched, call, tile, rows, columns, out, out_row_bytes,
                        scratch)
}
#undef CROSSRET_OF_NEGATIVES

static void ranking_merge(const RankingLossCall& call, const HingeStatistics& sum, const HingeStatistics& later,
                          int64_t count) {
  switch (call.negatives) {
    case Negatives::hardest:
      return merge_columns<Negatives::hardest>(call, sum, later, count);
    case Negatives::sum:
      return merge_columns<Negatives::sum>(call, sum, later, count);
    case Negatives::softmax:
      return merge_columns<Negatives::softmax>(call, sum, later, count);
  }
}

extern const RankingLossKernels ranking_loss_kernels;
const RankingLossKernels ranking_loss_kernels = {ranking_measure, ranking_merge, ranking_differentiate};

}  // namespace CROSSRET_ISA
}  // namespace crossret
