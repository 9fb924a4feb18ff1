// Attention pooling: gradients of an item's values and logits in one more pass over the values.
namespace crossret {
namespace CROSSRET_ISA {

// Rows of a block, with ∂L/∂pooled (heads, dim; row stride `step`) of their item.
struct PoolGradientBlock {
  PoolRows* rows;
  char* const* out;  // of the values' gradient
  int64_t count, heads, dim, step;
  const float* grads;
  const float* weights;  // (count, ld)
  float* dots;           // (count, ld), to which ⟨∂L/∂pooled, value⟩ are added
  int64_t ld;
};

// Of the values: R rows of Σ weight · ∂L/∂pooled over heads, C vectors of columns.
template <Dtype dtype, int R, int C>
static inline __attribute__((always_inline)) void pool_value_tile(const PoolGradientBlock& block, int64_t row,
                                                                  int64_t column, int64_t left) {
  F sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) sums[r][j] = V::zero();
  }
  const float* grads = block.grads + column;
  const float* const weights = block.weights + row * block.ld;
  for (int64_t h = 0; h < block.heads; ++h, grads += block.step) {
    F grad[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) grad[j] = V::load(grads + j * V::width, left - j * V::width);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F weight = V::set(weights[r * block.ld + h]);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) sums[r][j] = V::fma(weight, grad[j], sums[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) {
      store_features(block.out[row + r], dtype, column + j * V::width, sums[r][j], left - j * V::width);
    }
  }
}

// All columns of `rows` rows, up to R.
template <Dtype dtype, int R>
static __attribute__((noinline)) void pool_value_rows(const PoolGradientBlock& block, int64_t row, int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return pool_value_rows<dtype, R - 1>(block, row, rows);
  }
  constexpr int C = kPoolRegisters == 32 ? 4 : 2;
  int64_t column = 0;
  for (; column + C * V::width <= block.dim; column += C * V::width) {
    pool_value_tile<dtype, R, C>(block, row, column, C * V::width);
  }
  for (; column < block.dim; column += V::width) {
    pool_value_tile<dtype, R, 1>(block, row, column, block.dim - column);
  }
}

template <Dtype dtype, int H, int R>
static inline __attribute__((always_inline)) void pool_dots_step(const float* grads, int64_t step,
                                                                 const char* const (&rows)[R], int64_t column,
                                                                 int64_t left, F (&sums)[H][R]) {
  F x[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) x[r] = load_features(rows[r], dtype, column, left);
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
    const F grad = V::load(grads + i * step + column, left);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sums[i][r] = V::fma(grad, x[r], sums[i][r]);
  }
}

// Adds the products of columns [column, end) of R rows with H heads from h on.
template <Dtype dtype, int H, int R>
static __attribute__((noinline)) void pool_dots_tile(const PoolGradientBlock& block, int64_t row, int64_t h,
                                                     int64_t column, int64_t end) {
  F sums[H][R];
  const char* rows[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    rows[r] = block.rows->own[row + r];
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i) sums[i][r] = V::zero();
  }
  const float* const grads = block.grads + h * block.step;
  for (; column + V::width <= end; column += V::width) {
    constexpr int64_t bytes = dtype == Dtype::float32 ? 4 : 2;
    for (int64_t at = 0; h == 0 && at < R * V::width * bytes; at += PoolRows::kLine) block.rows->fetch();
    pool_dots_step<dtype, H, R>(grads, block.step, rows, column, V::width, sums);
  }
  if (column < end) pool_dots_step<dtype, H, R>(grads, block.step, rows, column, end - column, sums);
  // Unrolled, or the sums would be written to memory at every step.
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < H; i += V::width) {
      F parts[V::width];
#pragma GCC unroll 16
      for (int k = 0; k < V::width; ++k) parts[k] = i + k < H ? sums[i + k < H ? i + k : 0][r] : V::zero();
      float* const to = block.dots + (row + r) * block.ld + h + i;
      V::store(to, V::add(V::load(to, H - i), sum_rows(parts)), H - i);
    }
  }
}

// All rows, so many at a time as registers hold beside `heads` heads, up to H.
template <Dtype dtype, int H>
static void pool_dots_heads(const PoolGradientBlock& block, int64_t h, int64_t heads, int64_t column, int64_t end) {
  if constexpr (H > 1) {
    if (heads < H) return pool_dots_heads<dtype, H - 1>(block, h, heads, column, end);
  }
  constexpr int beside = dtype == Dtype::float32 || kPoolRegisters == 32 ? 5 : 9;  // halves are widened in some of 16
  constexpr int R = H * 4 + beside <= kPoolRegisters ? 4 : H * 2 + 3 <= kPoolRegisters ? 2 : 1;
  int64_t row = 0;
  for (; row + R <= block.count; row += R) pool_dots_tile<dtype, H, R>(block, row, h, column, end);
  for (; row < block.count; ++row) pool_dots_tile<dtype, H, 1>(block, row, h, column, end);
}

template <Dtype dtype>
static void pool_gradient_block(const AttentionPoolCall& call, const PoolGradientBlock& block, bool of_logits) {
  const int64_t most = pool_columns(call);
  for (int64_t column = 0; of_logits && column < block.dim; column += most) {
    const int64_t end = column + most < block.dim ? column + most : block.dim;
    each_pool_heads(block.heads, [&](int64_t h, int64_t height) {
      pool_dots_heads<dtype, V::tile_rows>(block, h, height, column, end);
    });
  }
  constexpr int64_t rows = 6;
  for (int64_t row = 0; block.out != nullptr && row < block.count; row += rows) {
    pool_value_rows<dtype, rows>(block, row, rows < block.count - row ? rows : block.count - row);
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
  const int64_t step = pad_row(side.dim);
  for (int64_t h = 0; h < heads; ++h) {
    const float* const grads = gradients.pooled + (item * heads + h) * side.dim;
    for (int64_t c = 0; c < side.dim; c += V::width) {
      V::store(scratch.grads + h * step + c, V::load(grads + c, side.dim - c), side.dim - c);
    }
  }
  pool_maxima(call, item, scratch.maxima);
  pool_clear(scratch.sums, ld);
  pool_clear(scratch.along, ld);
  pool_exponentials(call, item, 0, length, scratch.maxima,
                    [&](int64_t, int64_t h, F e) { V::store(scratch.sums + h, V::add(V::load(scratch.sums + h), e)); });
  pool_invert(scratch.sums, heads);
  const int64_t rows = pool_rows(call, length), row_bytes = side.dim * side.element_bytes();
  char* out[kMostPoolRows];
  for (int64_t first = 0; first < length; first += rows) {
    const int64_t count = rows < length - first ? rows : length - first;
    for (int64_t r = 0; gradients.values != nullptr && r < count; ++r) {
      out[r] = gradients.values + side.gradient_row(item, first + r) * row_bytes;
    }
    pool_exponentials(call, item, first, count, scratch.maxima, [&](int64_t r, int64_t h, F e) {
      V::store(scratch.weights + r * ld + h, V::mul(e, V::load(scratch.sums + h)));
    });
    pool_clear(scratch.dots, count * ld);
    PoolRows own(side, item, first, count);
    PoolGradientBlock block{};
    block.rows = &own;
    block.out = gradients.values ? out : nullptr;
    block.count = count;
    block.heads = heads;
    block.dim = side.dim;
    block.step = step;
    block.grads = scratch.grads;
    block.weights = scratch.weights;
    block.dots = scratch.dots;
    block.ld = ld;
    const bool of_logits = gradients.logits != nullptr;
    switch (side.dtype) {
      case Dtype::bfloat16:
        pool_gradient_block<Dtype::bfloat16>(call, block, of_logits);
        break;
      case Dtype::float16:
        pool_gradient_block<Dtype::float16>(call, block, of_logits);
        break;
      default:
        pool_gradient_block<Dtype::float32>(call, block, of_logits);
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
