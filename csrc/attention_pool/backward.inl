// Attention pooling: gradients of an item's values and logits in one more pass over the values.
namespace crossret {
namespace CROSSRET_ISA {

// Columns [column, column + columns) of some rows and heads.
struct PoolGradientTile {
  const float* grads;  // (heads, dim): ∂L/∂pooled of the first head
  int64_t dim;
  const char* const* rows;
  char* const* out;      // rows of the values' gradient; null where it is not wanted
  const float* weights;  // (rows, ld)
  float* dots;           // (rows, ld), to which ⟨∂L/∂pooled, value⟩ are added
  int64_t ld;
  float* sums;  // (rows, columns): of the gradient so far, where heads come in several tiles
  int64_t column, columns;
  bool first, last;  // whether these are the first heads, the last
};

// A vector of columns of R rows. Where `whole`, all heads are in the tile and the values' gradient is wanted: without
// further ways through it the sums stay in registers.
template <Dtype dtype, bool whole, int H, int R>
static inline __attribute__((always_inline)) void pool_gradient_step(const PoolGradientTile& tile,
                                                                     const char* const (&rows)[R],
                                                                     char* const (&out)[R],
                                                                     const float (&weights)[R][H], int64_t c,
                                                                     int64_t left, F (&dots)[H][R]) {
  F x[R], made[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    x[r] = load_features(rows[r], dtype, c, left);
    made[r] = whole || tile.first ? V::zero() : V::load(tile.sums + r * tile.columns + c - tile.column, left);
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
    const F grad = V::load(tile.grads + i * tile.dim + c, left);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      dots[i][r] = V::fma(grad, x[r], dots[i][r]);
      made[r] = V::fma(V::set(weights[r][i]), grad, made[r]);
    }
  }
  if (!whole && tile.out == nullptr) return;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    if (whole || tile.last) {
      store_features(out[r], dtype, c, made[r], left);
    } else {
      V::store(tile.sums + r * tile.columns + c - tile.column, made[r], left);
    }
  }
}

template <Dtype dtype, bool whole, int H, int R>
static __attribute__((noinline)) void pool_gradient_tile(const PoolGradientTile& given) {
  const PoolGradientTile tile = given;
  F dots[H][R];
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) dots[i][r] = V::zero();
  }
  float weights[R][H];  // at places that the compiler knows
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < H; ++i) weights[r][i] = tile.weights[r * tile.ld + i];
  }
  const char* rows[R];
  char* out[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) rows[r] = tile.rows[r], out[r] = whole || tile.out ? tile.out[r] : nullptr;
  const int64_t end = tile.column + tile.columns;
  int64_t c = tile.column;
  for (; c + V::width <= end; c += V::width) {
    pool_gradient_step<dtype, whole, H, R>(tile, rows, out, weights, c, V::width, dots);
  }
  if (c < end) pool_gradient_step<dtype, whole, H, R>(tile, rows, out, weights, c, end - c, dots);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int h = 0; h < H; h += V::width) {
      F parts[V::width];
#pragma GCC unroll 16
      for (int i = 0; i < V::width; ++i) parts[i] = h + i < H ? dots[h + i < H ? h + i : 0][r] : V::zero();
      float* const to = tile.dots + r * tile.ld + h;
      V::store(to, V::add(V::load(to, H - h), sum_rows(parts)), H - h);
    }
  }
}

// Rows [0, count) of `heads` heads, up to H, and so many rows at a time as registers hold.
template <Dtype dtype, int H>
static void pool_gradient_rows(PoolGradientTile tile, int64_t heads, int64_t count) {
  if constexpr (H > 1) {
    if (heads < H) return pool_gradient_rows<dtype, H - 1>(tile, heads, count);
  }
  constexpr int R = H * 4 + 9 <= kPoolRegisters ? 4 : H * 2 + 5 <= kPoolRegisters ? 2 : 1;
  const auto next = [&](int64_t rows) {
    tile.rows += rows;
    if (tile.out != nullptr) tile.out += rows;
    tile.weights += rows * tile.ld;
    tile.dots += rows * tile.ld;
    tile.sums += rows * tile.columns;
    count -= rows;
  };
  const bool whole = tile.first && tile.last && tile.out != nullptr;
  for (; whole && count >= R; next(R)) pool_gradient_tile<dtype, true, H, R>(tile);
  for (; count > 0; next(1)) pool_gradient_tile<dtype, false, H, 1>(tile);
}

// A block of rows, a slice of columns at a time.
template <Dtype dtype>
static void pool_gradient_block(const AttentionPoolCall& call, PoolGradientTile tile, int64_t count) {
  for (tile.column = 0; tile.column < call.values.dim; tile.column += tile.columns) {
    const int64_t most = pool_columns(call), left = call.values.dim - tile.column;
    tile.columns = most < left ? most : left;
    each_pool_heads(call.heads, [&](int64_t h, int64_t height) {
      PoolGradientTile own = tile;
      own.grads += h * tile.dim;
      own.weights += h;
      own.dots += h;
      own.first = h == 0;
      own.last = h + height == call.heads;
      pool_gradient_rows<dtype, V::tile_rows>(own, height, count);
    });
  }
}

// Of the logits: weight · (t − Σ weight · t), where t = ⟨∂L/∂pooled, value⟩ + ∂L/∂weight; t lies there until its sum
// over the item's rows is known.
static void pool_gradients(const AttentionPoolCall& call, const AttentionPoolGradients& gradients, int64_t item,
                           Workspace& workspace) {
  const Side& side = call.values;
  const int64_t length = side.length(item), heads = call.heads, ld = pool_row(heads);
  const PoolScratch scratch(call, workspace);
  const int32_t* const places = side.items[item].places;
  const float* const of_weights = gradients.weights ? gradients.weights + item * heads * call.width : nullptr;
  const auto logits = [&](int64_t r) { return gradients.logits + side.gradient_row(item, r) * heads; };
  pool_maxima(call, item, scratch.maxima);
  pool_clear(scratch.sums, ld);
  pool_clear(scratch.along, ld);
  pool_exponentials(call, item, 0, length, scratch.maxima,
                    [&](int64_t, int64_t h, F e) { V::store(scratch.sums + h, V::add(V::load(scratch.sums + h), e)); });
  pool_invert(scratch.sums, heads);
  const int64_t rows = pool_rows(call, length), row_bytes = side.dim * side.element_bytes();
  const char* own[kMostPoolRows];
  char* out[kMostPoolRows];
  for (int64_t first = 0; first < length; first += rows) {
    const int64_t count = rows < length - first ? rows : length - first;
    for (int64_t r = 0; r < count; ++r) {
      own[r] = static_cast<const char*>(side.row(item, first + r));
      if (gradients.values) out[r] = gradients.values + side.gradient_row(item, first + r) * row_bytes;
    }
    pool_exponentials(call, item, first, count, scratch.maxima, [&](int64_t r, int64_t h, F e) {
      V::store(scratch.weights + r * ld + h, V::mul(e, V::load(scratch.sums + h)));
    });
    pool_clear(scratch.dots, count * ld);
    PoolGradientTile tile{};
    tile.grads = gradients.pooled + item * heads * side.dim;
    tile.dim = side.dim;
    tile.rows = own;
    tile.out = gradients.values ? out : nullptr;
    tile.weights = scratch.weights;
    tile.dots = scratch.dots;
    tile.ld = ld;
    tile.sums = scratch.partial;
    switch (side.dtype) {
      case Dtype::bfloat16:
        pool_gradient_block<Dtype::bfloat16>(call, tile, count);
        break;
      case Dtype::float16:
        pool_gradient_block<Dtype::float16>(call, tile, count);
        break;
      default:
        pool_gradient_block<Dtype::float32>(call, tile, count);
    }
    for (int64_t r = 0; gradients.logits != nullptr && r < count; ++r) {
      float* const dots = scratch.dots + r * ld;
      for (int64_t h = 0; of_weights != nullptr && h < heads; ++h) {
        dots[h] += of_weights[h * call.width + (places ? places[first + r] : first + r)];
      }
      for (int64_t h = 0; h < heads; h += V::width) {
        const F dot = V::load(dots + h);
        V::store(scratch.along + h, V::fma(V::load(scratch.weights + r * ld + h), dot, V::load(scratch.along + h)));
        V::store(logits(first + r) + h, dot, heads - h);
      }
    }
  }
  if (gradients.logits == nullptr) return;
  pool_exponentials(call, item, 0, length, scratch.maxima, [&](int64_t r, int64_t h, F e) {
    float* const to = logits(r) + h;
    const F weight = V::mul(e, V::load(scratch.sums + h));
    V::store(to, V::mul(weight, V::sub(V::load(to, heads - h), V::load(scratch.along + h))), heads - h);
  });
}

extern const AttentionPoolKernels attention_pool_kernels;
const AttentionPoolKernels attention_pool_kernels = {pool_item, pool_gradients, pool_scratch};

}  // namespace CROSSRET_ISA
}  // namespace crossret
