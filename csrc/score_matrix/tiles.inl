// Tiles of scores as vectors of floats, and their gradients in the scores' dtype.
namespace crossret {
namespace CROSSRET_ISA {

// Floats, `ld` from row to row, of a tile of scores.
struct TileScores {
  const float* scores;
  int64_t ld;
};

static TileScores widened(const ScoreMatrix& matrix, const Tile& tile, float* scratch) {
  const char* const first = matrix.scores + tile.row * matrix.row_bytes;
  if (matrix.dtype == Dtype::float32) {
    return {reinterpret_cast<const float*>(first) + tile.column,
            matrix.row_bytes / static_cast<int64_t>(sizeof(float))};
  }
  for (int64_t r = 0; r < tile.rows; ++r) {
    const auto* const row = reinterpret_cast<const uint16_t*>(first + r * matrix.row_bytes) + tile.column;
    for (int64_t c = 0; c < tile.columns; c += V::width) {
      const int64_t left = tile.columns - c;
      const F s = matrix.dtype == Dtype::bfloat16 ? V::load_bf16(row + c, left) : V::load_f16(row + c, left);
      V::store(scratch + r * kTileColumns + c, s, left);
    }
  }
  return {scratch, kTileColumns};
}

// Writes a row of a tile's gradient, `made`, where it is not float32 and has been made in its place.
static void narrow(const ScoreMatrix& matrix, const float* made, int64_t columns, char* to) {
  if (matrix.dtype == Dtype::float32) return;
  auto* const halves = reinterpret_cast<uint16_t*>(to);
  for (int64_t c = 0; c < columns; c += V::width) {
    const F gradient = V::load(made + c, columns - c);
    if (matrix.dtype == Dtype::bfloat16) {
      V::store_bf16(halves + c, gradient, columns - c);
    } else {
      V::store_f16(halves + c, gradient, columns - c);
    }
  }
}

// Calls step(row, r, c, left, scores, which pairs are negatives) for every vector of a tile of scores, then
// done(row, r) for every row. `row` is whatever start(r) returned.
template <class Start, class Step, class Done>
static inline __attribute__((always_inline)) void each_vector(const ScoreMatrix& matrix, const Tile& tile,
                                                              const TileScores& from, const Start& start,
                                                              const Step& step, const Done& done) {
  const float *const labels = matrix.labels[0] + tile.column, *const others = matrix.labels[1] + tile.column;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t positive = tile.row + r + matrix.offset;
    const F label = V::set(matrix.labels[0][positive]), other = V::set(matrix.labels[1][positive]);
    auto row = start(r);
    const auto at = [&](int64_t c, int64_t left) __attribute__((always_inline)) {
      const V::Mask negative =
          V::nonzero(V::mul(V::sub(V::load(labels + c, left), label), V::sub(V::load(others + c, left), other)));
      step(row, r, c, left, V::load(from.scores + r * from.ld + c, left), negative);
    };
    int64_t c = 0;
    for (; c + V::width <= tile.columns; c += V::width) at(c, V::width);
    if (c < tile.columns) at(c, tile.columns - c);
    done(row, r);
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
