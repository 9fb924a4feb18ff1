// InfoNCE: softmax of a tile of logits, along rows and columns at once.
namespace crossret {
namespace CROSSRET_ISA {

constexpr float kLowest = -3.40282347e38f;  // finite number
// Where the greatest logits of a tile's rows and columns are no further apart, one exponential serves both: none that
// counts falls below the normal range.
constexpr float kCentred = 48.0f;

// −∞ where a pair is left out, or beyond a row's end.
static inline F logits_of(const ContrastiveCall& call, F s, int64_t left) {
  const F none = V::set(-__builtin_inff());
  const F z = V::select(V::less(s, V::set(kLowest)), none, V::fma(V::set(call.scale), s, V::set(call.bias)));
  return left < V::width ? V::select(V::lanes(left), z, none) : z;
}

static inline V::Mask is_left_out(F z) { return V::less(z, V::set(kLowest)); }

// 1 of every positive that counts, else 0.
static inline F positives_of(V::Mask negative, F z) {
  return V::select(V::either(negative, is_left_out(z)), V::zero(), V::set(1.0f));
}

// The greatest logits of which something is kept, from which sums are told; of none the lowest number.
static inline void rescale(const SoftmaxStatistics& all, int64_t at, int64_t n, F most) {
  const F before = V::load(all.kind(0, at), n), less = V::sub(before, most);
  V::store(all.kind(0, at), most, n);
  V::store(all.kind(1, at), V::mul(V::load(all.kind(1, at), n), exp(less)), n);
  for (int kind = 2; kind < kSoftmaxKinds; kind += 2) {
    const F count = V::load(all.kind(kind + 1, at), n), moved = V::mul(count, less);
    const F sum = V::add(V::load(all.kind(kind, at), n), V::select(V::nonzero(count), moved, V::zero()));
    V::store(all.kind(kind, at), sum, n);
  }
}

static inline void rescale(const SoftmaxStatistics& all, const float* found, int64_t count) {
  for (int64_t at = 0; at < count; at += V::width) {
    const F before = V::load(all.kind(0, at), count - at);
    rescale(all, at, count - at, greater(before, V::load(found + at, count - at)));
  }
}

template <bool matched>
static void rescale_tile(const ContrastiveCall& call, const Tile& tile, const TileScores& from,
                         const SoftmaxStatistics& rows, const SoftmaxStatistics& columns) {
  float of_columns[kTileColumns], of_rows[kTileRows];
  for (int64_t c = 0; c < tile.columns; c += V::width) V::store(of_columns + c, V::set(kLowest), tile.columns - c);
  each_vector(
      call, tile, from, [&](int64_t) { return V::set(kLowest); },
      [&](F& row, int64_t, int64_t c, int64_t left, F s, V::Mask) __attribute__((always_inline)) {
        const F z = logits_of(call, s, left);
        row = greater(z, row);
        if constexpr (matched) V::store(of_columns + c, greater(z, V::load(of_columns + c, left)), left);
      },
      [&](const F& row, int64_t r) {
        float lanes[V::width];
        V::store(lanes, row);
        of_rows[r] = max_of(lanes, V::width);
      });
  rescale(rows, of_rows, tile.rows);
  if constexpr (matched) rescale(columns, of_columns, tile.columns);
}

// The greatest of what rows and columns have for theirs, if one exponential serves all of them; else NaN.
static float centre_of(const float* rows, int64_t n_rows, const float* columns, int64_t n_columns) {
  F most = V::set(rows[0]), least = most;
  const auto see = [&](const float* values, int64_t n) {
    for (int64_t at = 0; at < n; at += V::width) {
      const F x = n - at < V::width ? V::select(V::lanes(n - at), V::load(values + at, n - at), V::set(rows[0]))
                                    : V::load(values + at);
      most = greater(x, most), least = V::min(least, x);
    }
  };
  see(rows, n_rows), see(columns, n_columns);
  float mosts[V::width], leasts[V::width];
  V::store(mosts, most);
  V::store(leasts, V::sub(V::zero(), least));
  const float centre = max_of(mosts, V::width);
  return centre + max_of(leasts, V::width) <= kCentred ? centre : __builtin_nanf("");
}

// Σ (z − m) of some logits and their number, of a vector of rows or columns.
struct SomeLogits {
  F sum, count;

  void add(F z, F most, F counted) {
    sum = V::add(sum, V::select(V::nonzero(counted), V::sub(z, most), V::zero()));
    count = V::add(count, counted);
  }
  static void add(const SoftmaxStatistics& to, int kind, int64_t at, int64_t n, F z, F most, F counted) {
    SomeLogits kept{V::load(to.kind(kind, at), n), V::load(to.kind(kind + 1, at), n)};
    kept.add(z, most, counted);
    V::store(to.kind(kind, at), kept.sum, n);
    V::store(to.kind(kind + 1, at), kept.count, n);
  }
  void finish(const SoftmaxStatistics& to, int kind, int64_t at) const {
    *to.kind(kind, at) += V::reduce_add(sum);
    *to.kind(kind + 1, at) += V::reduce_add(count);
  }
};

// `together`: powers are told from `centre` until the tile ends.
template <bool matched, bool smoothed, bool together>
static void add_tile(const ContrastiveCall& call, const Tile& tile, const TileScores& from,
                     const SoftmaxStatistics& rows, const SoftmaxStatistics& columns, float centre) {
  float of_rows[kTileRows], of_columns[kTileColumns];
  if constexpr (matched) {
    for (int64_t c = 0; c < tile.columns; c += V::width) V::store(of_columns + c, V::zero(), tile.columns - c);
  }
  struct Row {
    F most, powers;
    SomeLogits positives, all;
  };
  each_vector(
      call, tile, from,
      [&](int64_t r) {
        return Row{V::set(*rows.kind(0, r)), V::zero(), {V::zero(), V::zero()}, {V::zero(), V::zero()}};
      },
      [&](Row& row, int64_t, int64_t c, int64_t left, F s, V::Mask negative) __attribute__((always_inline)) {
        const F z = logits_of(call, s, left), power = exp(V::sub(z, together ? V::set(centre) : row.most));
        row.powers = V::add(row.powers, power);
        if constexpr (matched) {
          const F own = together ? power : exp(V::sub(z, V::load(columns.kind(0, c), left)));
          V::store(of_columns + c, V::add(V::load(of_columns + c, left), own), left);
        }
        const F positive = positives_of(negative, z);
        if (V::any(V::nonzero(positive))) {
          row.positives.add(z, row.most, positive);
          if constexpr (matched) {
            SomeLogits::add(columns, 2, c, left, z, V::load(columns.kind(0, c), left), positive);
          }
        }
        if constexpr (smoothed) {
          const F here = V::select(is_left_out(z), V::zero(), V::set(1.0f));
          row.all.add(z, row.most, here);
          if constexpr (matched) SomeLogits::add(columns, 4, c, left, z, V::load(columns.kind(0, c), left), here);
        }
      },
      [&](const Row& row, int64_t r) {
        of_rows[r] = V::reduce_add(row.powers);
        row.positives.finish(rows, 2, r);
        if constexpr (smoothed) row.all.finish(rows, 4, r);
      });
  const auto add = [&](const SoftmaxStatistics& to, const float* sums, int64_t count) {
    for (int64_t at = 0; at < count; at += V::width) {
      const int64_t n = count - at;
      F sum = V::load(sums + at, n);
      if constexpr (together) sum = V::mul(sum, exp(V::sub(V::set(centre), V::load(to.kind(0, at), n))));
      V::store(to.kind(1, at), V::add(V::load(to.kind(1, at), n), sum), n);
    }
  };
  add(rows, of_rows, tile.rows);
  if constexpr (matched) add(columns, of_columns, tile.columns);
}

template <bool matched, bool smoothed>
static void measure_softmax_tile(const ContrastiveCall& call, const Tile& tile, const SoftmaxStatistics& rows,
                                 const SoftmaxStatistics& columns, float* scratch) {
  const TileScores from = widened(call, tile, scratch);
  rescale_tile<matched>(call, tile, from, rows, columns);
  if constexpr (matched) {
    const float centre = centre_of(rows.kind(0, 0), tile.rows, columns.kind(0, 0), tile.columns);
    if (centre == centre) return add_tile<matched, smoothed, true>(call, tile, from, rows, columns, centre);
  }
  add_tile<matched, smoothed, false>(call, tile, from, rows, columns, 0.0f);
}

static void merge_softmax(const SoftmaxStatistics& sum, const SoftmaxStatistics& later, int64_t count) {
  for (int64_t at = 0; at < count; at += V::width) {
    const int64_t n = count - at;
    const F most = greater(V::load(sum.kind(0, at), n), V::load(later.kind(0, at), n));
    rescale(sum, at, n, most);
    rescale(later, at, n, most);
    for (int kind = 1; kind < kSoftmaxKinds; ++kind) {
      V::store(sum.kind(kind, at), V::add(V::load(sum.kind(kind, at), n), V::load(later.kind(kind, at), n)), n);
    }
  }
}

// Powers of rows or columns as they multiply e^(z − centre).
static void move_powers(const SoftmaxGradients& from, int64_t first, int64_t count, float centre, float* to) {
  for (int64_t at = 0; at < count; at += V::width) {
    const int64_t n = count - at;
    const F moved = exp(V::sub(V::set(centre), V::load(from.most + first + at, n)));
    V::store(to + at, V::mul(V::load(from.powers + first + at, n), moved), n);
  }
}

template <bool matched, bool together>
static void softmax_gradients(const ContrastiveCall& call, const Tile& tile, const SoftmaxGradients& rows,
                              const SoftmaxGradients& columns, char* out, int64_t out_row_bytes, float* scratch,
                              float centre, ContrastiveSums& sums) {
  const TileScores from = widened(call, tile, scratch);
  const int64_t first = tile.column - call.offset;
  float made[kTileColumns], of_rows[kTileRows], of_columns[kTileColumns];
  if constexpr (together) {
    move_powers(rows, tile.row, tile.rows, centre, of_rows);
    move_powers(columns, first, tile.columns, centre, of_columns);
  }
  struct Row {
    float* to;
    F most, powers, positives, all, of_scores;
  };
  each_vector(
      call, tile, from,
      [&](int64_t r) {
        const int64_t i = tile.row + r;
        const bool in_place = out != nullptr && call.dtype == Dtype::float32;
        return Row{in_place ? reinterpret_cast<float*>(out + r * out_row_bytes) : made,
                   V::set(rows.most[i]),
                   V::set(together ? of_rows[r] : rows.powers[i]),
                   V::set(rows.positives[i]),
                   V::set(rows.all[i]),
                   V::zero()};
      },
      [&](Row& row, int64_t, int64_t c, int64_t left, F s, V::Mask negative) __attribute__((always_inline)) {
        const F z = logits_of(call, s, left);
        F gradient;
        if constexpr (together) {
          gradient = V::mul(exp(V::sub(z, V::set(centre))), V::add(row.powers, V::load(of_columns + c, left)));
        } else {
          gradient = V::mul(exp(V::sub(z, row.most)), row.powers);
          if constexpr (matched) {
            const F own = exp(V::sub(z, V::load(columns.most + first + c, left)));
            gradient = V::fma(own, V::load(columns.powers + first + c, left), gradient);
          }
        }
        const F positive = positives_of(negative, z);
        if (V::any(V::nonzero(positive))) {
          const F of_column = matched ? V::load(columns.positives + first + c, left) : V::zero();
          const F target = V::add(row.positives, of_column);
          gradient = V::sub(gradient, V::select(V::nonzero(positive), target, V::zero()));
        }
        if (call.smoothed) {
          const F of_column = matched ? V::load(columns.all + first + c, left) : V::zero();
          gradient = V::sub(gradient, V::add(row.all, of_column));
        }
        const V::Mask out_of_it = is_left_out(z);
        gradient = V::select(out_of_it, V::zero(), gradient);
        row.of_scores = V::fma(V::select(out_of_it, V::zero(), s), gradient, row.of_scores);
        V::store(row.to + c, V::mul(V::set(call.scale), gradient), left);
      },
      [&](const Row& row, int64_t r) {
        sums.scores += static_cast<double>(V::reduce_add(row.of_scores));
        if (out != nullptr) narrow(call, made, tile.columns, out + r * out_row_bytes);
      });
}

static void differentiate_softmax(const ContrastiveCall& call, const Tile& tile, const SoftmaxGradients& rows,
                                  const SoftmaxGradients& columns, char* out, int64_t out_row_bytes, float* scratch,
                                  ContrastiveSums& sums) {
  if (!tile.matched) {
    return softmax_gradients<false, false>(call, tile, rows, columns, out, out_row_bytes, scratch, 0.0f, sums);
  }
  const float* const most = columns.most + tile.column - call.offset;
  const float centre = centre_of(rows.most + tile.row, tile.rows, most, tile.columns);
  const auto run = centre == centre ? softmax_gradients<true, true> : softmax_gradients<true, false>;
  run(call, tile, rows, columns, out, out_row_bytes, scratch, centre, sums);
}

static void measure_softmax(const ContrastiveCall& call, const Tile& tile, const SoftmaxStatistics& rows,
                            const SoftmaxStatistics& columns, float* scratch) {
  const auto run = tile.matched
                       ? (call.smoothed ? measure_softmax_tile<true, true> : measure_softmax_tile<true, false>)
                       : (call.smoothed ? measure_softmax_tile<false, true> : measure_softmax_tile<false, false>);
  run(call, tile, rows, columns, scratch);
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
