// Attention pooling: an item's rows are read once, a block at a time, and add to all heads.
namespace crossret {
namespace CROSSRET_ISA {

struct PoolBlock {
  const char* const* rows;
  PoolRows* ahead;
  int64_t count, dim;
  const float* weights;  // (count, ld)
  int64_t ld;
  const float* scales;  // of every head, of the item's last block; else null
  bool first;
};

// (H heads, C vectors of columns) += weights · rows, `left` columns of which are there. A cell is one chain of
// multiply-adds over an item's rows in order, whatever the tile's shape.
template <Dtype dtype, int H, int C>
static inline __attribute__((always_inline)) void pool_tile(const PoolBlock& block, int64_t h, int64_t column,
                                                            int64_t left, float* pooled) {
  constexpr int64_t bytes = dtype == Dtype::float32 ? 4 : 2;
  float* const out = pooled + h * block.dim + column;
  F sums[H][C];
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      sums[i][j] = block.first ? V::zero() : V::load(out + i * block.dim + j * V::width, left - j * V::width);
    }
  }
  const float* weights = block.weights + h;
  for (int64_t r = 0; r < block.count; ++r, weights += block.ld) {
    if (h == 0 && C > 1) {  // the loops of the last columns have no registers to spare
#pragma GCC unroll 8
      for (int64_t at = 0; at < C * V::width * bytes; at += PoolRows::kLine) block.ahead->fetch();
    }
    F x[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      x[j] = load_features(block.rows[r], dtype, column + j * V::width, left - j * V::width);
    }
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i) {
      const F weight = V::set(weights[i]);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) sums[i][j] = V::fma(weight, x[j], sums[i][j]);
    }
  }
  if (block.scales != nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i) {
      const F scale = V::set(block.scales[h + i]);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) sums[i][j] = V::mul(sums[i][j], scale);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) V::store(out + i * block.dim + j * V::width, sums[i][j], left - j * V::width);
  }
}

// The last columns, fewer than a vector. Halves are widened first: a load of some of them calls a function, around
// which no sum would stay in its register.
template <Dtype dtype, int H>
static void pool_last(const PoolBlock& block, int64_t h, int64_t column, float* pooled) {
  const int64_t left = block.dim - column;
  if constexpr (dtype == Dtype::float32) {
    pool_tile<dtype, H, 1>(block, h, column, left, pooled);
  } else {
    alignas(64) float widened[kMostPoolRows * V::width];
    const char* rows[kMostPoolRows];
    for (int64_t r = 0; r < block.count; ++r) {
      float* const row = widened + r * V::width;
      V::store(row, load_features(block.rows[r], dtype, column, left));
      rows[r] = reinterpret_cast<const char*>(row);
    }
    PoolBlock last = block;
    last.rows = rows;
    pool_tile<Dtype::float32, H, 1>(last, h, 0, left, pooled + column);
  }
}

// All columns of `heads` heads, up to H.
template <Dtype dtype, int H>
static __attribute__((noinline)) void pool_heads(const PoolBlock& block, int64_t h, int64_t heads, float* pooled) {
  if constexpr (H > 1) {
    if (heads < H) return pool_heads<dtype, H - 1>(block, h, heads, pooled);
  }
  constexpr int fit = (V::tile_rows * 2) / H, C = fit >= 8 ? 8 : fit >= 4 ? 4 : 2;
  int64_t column = 0;
  for (; column + C * V::width <= block.dim; column += C * V::width) {
    pool_tile<dtype, H, C>(block, h, column, C * V::width, pooled);
  }
  for (; column + V::width <= block.dim; column += V::width) {
    pool_tile<dtype, H, 1>(block, h, column, V::width, pooled);
  }
  if (column < block.dim) pool_last<dtype, H>(block, h, column, pooled);
}

template <Dtype dtype>
static void pool_block(const PoolBlock& block, int64_t heads, float* pooled) {
  each_pool_heads(heads, [&](int64_t h, int64_t height) { pool_heads<dtype, V::tile_rows>(block, h, height, pooled); });
}

static void pool_item(const AttentionPoolCall& call, const AttentionPoolResults& results, int64_t item,
                      Workspace& workspace) {
  const Side& side = call.values;
  const int64_t length = side.length(item), heads = call.heads, ld = pool_row(heads);
  const PoolScratch scratch(call, workspace);
  float* const pooled = results.pooled + item * heads * side.dim;
  float* const weights = results.weights ? results.weights + item * heads * call.width : nullptr;
  if (weights != nullptr) pool_clear(weights, heads * call.width);
  const int32_t* const places = side.items[item].places;
  const auto place = [&](int64_t r) { return places ? places[r] : r; };
  pool_maxima(call, item, scratch.maxima);
  pool_clear(scratch.sums, ld);
  const int64_t rows = pool_rows(call, length);
  for (int64_t first = 0; first < length; first += rows) {
    const int64_t count = rows < length - first ? rows : length - first;
    pool_exponentials(call, item, first, count, scratch.maxima, [&](int64_t r, int64_t h, F e) {
      V::store(scratch.weights + r * ld + h, e);
      V::store(scratch.sums + h, V::add(V::load(scratch.sums + h), e));
    });
    for (int64_t r = 0; weights != nullptr && r < count; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        weights[h * call.width + place(first + r)] = scratch.weights[r * ld + h];
      }
    }
    const bool last = first + count == length;
    if (last) pool_invert(scratch.sums, heads);
    PoolRows own(side, item, first, count);
    const PoolBlock block{own.own,   &own, count, side.dim, scratch.weights, ld, last ? scratch.sums : nullptr,
                          first == 0};
    switch (side.dtype) {
      case Dtype::bfloat16:
        pool_block<Dtype::bfloat16>(block, heads, pooled);
        break;
      case Dtype::float16:
        pool_block<Dtype::float16>(block, heads, pooled);
        break;
      default:
        pool_block<Dtype::float32>(block, heads, pooled);
    }
  }
  for (int64_t h = 0; weights != nullptr && h < heads; ++h) {
    float* const row = weights + h * call.width;
    const F scale = V::set(scratch.sums[h]);
    if (places != nullptr) {
      for (int64_t r = 0; r < length; ++r) row[places[r]] *= scratch.sums[h];
      continue;
    }
    for (int64_t r = 0; r < length; r += V::width) {
      V::store(row + r, V::mul(V::load(row + r, length - r), scale), length - r);
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
