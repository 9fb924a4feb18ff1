// Attention pooling: the rows of an item in blocks, and their softmax weights, heads side by side as logits lie.
namespace crossret {
namespace CROSSRET_ISA {

// Rows of an item that are held at a time: with those fetched behind them in the second cache.
constexpr int64_t kMostPoolRows = 64, kPoolBytes = int64_t{256} << 10;

// As many blocks of nearly one length as hold an item.
static inline int64_t pool_rows(const AttentionPoolCall& call, int64_t length) {
  const int64_t fit = kPoolBytes / (call.values.dim * call.values.element_bytes());
  const int64_t most = fit < 4 ? 4 : fit > kMostPoolRows ? kMostPoolRows : fit;
  const int64_t blocks = (length + most - 1) / most;
  return (length + blocks - 1) / blocks;
}

static inline int64_t pool_row(int64_t heads) { return round_up(heads, V::width); }

// Columns of the gradient of all heads that stay in the first cache.
static inline int64_t pool_columns(const AttentionPoolCall& call) {
  constexpr int64_t cached = 4608, unit = 4 * V::width;
  const int64_t fit = cached / call.heads / unit * unit, most = fit < unit ? unit : fit;
  return most < call.values.dim ? most : call.values.dim;
}

struct PoolScratch {
  float *maxima, *sums, *along;  // of every head
  float *weights, *dots;         // of a block's rows
  float* grads;                  // ∂L/∂pooled, copied to rows that do not share the sets of the first cache

  PoolScratch(const AttentionPoolCall& call, Workspace& workspace)
      : maxima(workspace.floats(pool_row(call.heads))),
        sums(workspace.floats(pool_row(call.heads))),
        along(workspace.floats(pool_row(call.heads))),
        weights(workspace.floats(kMostPoolRows * pool_row(call.heads))),
        dots(workspace.floats(kMostPoolRows * pool_row(call.heads))),
        grads(workspace.floats(call.heads * pad_row(call.values.dim))) {}
};

static void pool_scratch(const AttentionPoolCall& call, Workspace& workspace) { PoolScratch(call, workspace); }

static inline const float* pool_logits(const AttentionPoolCall& call, int64_t item, int64_t r) {
  return call.logits + call.values.gradient_row(item, r) * call.heads;
}

// A block's rows, and as many that are read after them: of the item and then of the one that its thread most likely
// takes next. Tiles take some columns of all rows after the others, which the processor does not foresee; fetched one
// whole row after the other, most lines are on their way already when they are asked for.
class PoolRows {
 public:
  static constexpr int64_t kLine = 64;

  PoolRows(const Side& side, int64_t item, int64_t first, int64_t count) : bytes_(side.dim * side.element_bytes()) {
    const int64_t length = side.length(item), end = first + 2 * count;
    const auto row = [&](int64_t of, int64_t r) { return static_cast<const char*>(side.row(of, r)); };
    for (int64_t r = 0; r < count; ++r) own[r] = row(item, first + r);
    last_ = ahead_;
    for (int64_t r = first + count; r < end && r < length; ++r) *last_++ = row(item, r);
    const int64_t next = item + 1 < side.count ? side.length(item + 1) : 0, left = count - (last_ - ahead_);
    for (int64_t r = 0; r < left && r < next; ++r) *last_++ = row(item + 1, r);
    *last_ = own[0];  // what is there, from now on
    next_ = ahead_;
    at_ = row_end_ = nullptr;
  }

  // No call and little else: beside their sums, the loops that fetch have few registers to spare.
  void fetch() {
    if (at_ >= row_end_) {
      at_ = *next_;
      row_end_ = at_ + bytes_;
      next_ += next_ != last_;
    }
    __builtin_prefetch(at_, 0, 2);
    at_ += kLine;
  }

  const char* own[kMostPoolRows];

 private:
  const char* ahead_[kMostPoolRows + 1];
  const char **last_, **next_;
  const char *at_, *row_end_;
  int64_t bytes_;
};

// The greatest logit of every head; a NaN shows in its exponential.
static void pool_maxima(const AttentionPoolCall& call, int64_t item, float* maxima) {
  for (int64_t h = 0; h < call.heads; h += V::width) {
    const int64_t left = call.heads - h;
    F most = V::load(pool_logits(call, item, 0) + h, left);
    for (int64_t r = 1; r < call.values.length(item); ++r) {
      most = V::max(V::load(pool_logits(call, item, r) + h, left), most);
    }
    V::store(maxima + h, most);
  }
}

// exp(logit − greatest) of so many rows; calls use(r, h, exponentials) for every vector of heads h of a row r.
template <class Use>
static inline void pool_exponentials(const AttentionPoolCall& call, int64_t item, int64_t first, int64_t rows,
                                     const float* maxima, const Use& use) {
  for (int64_t h = 0; h < call.heads; h += V::width) {
    const F most = V::load(maxima + h);
    for (int64_t r = 0; r < rows; ++r) {
      use(r, h, exp(V::sub(V::load(pool_logits(call, item, first + r) + h, call.heads - h), most)));
    }
  }
}

static inline void pool_clear(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += V::width) V::store(x + i, V::zero(), count - i);
}

static inline void pool_invert(float* sums, int64_t heads) {
  for (int64_t h = 0; h < heads; h += V::width) V::store(sums + h, V::div(V::set(1.0f), V::load(sums + h)));
}

// Tiles of so many heads as registers hold, all of nearly one height; calls run(first, heads).
template <class Run>
static inline void each_pool_heads(int64_t heads, const Run& run) {
  int64_t h = 0;
  for (int64_t tiles = (heads + V::tile_rows - 1) / V::tile_rows; tiles > 0; --tiles) {
    const int64_t height = (heads - h + tiles - 1) / tiles;
    run(h, height);
    h += height;
  }
}

constexpr int kPoolRegisters = V::tile_rows > 6 ? 32 : 16;

}  // namespace CROSSRET_ISA
}  // namespace crossret
