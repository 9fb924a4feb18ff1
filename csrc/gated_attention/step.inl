// Gated attention: a block's products with W, what own items make of their columns, and the scores of pairs.
namespace crossret {
namespace CROSSRET_ISA {

static inline int64_t gated_row(const GatedAttentionCall& call) { return pad_row(call.dim); }

// Successive columns of a block that are one item's own, in one panel.
struct GatedSegment {
  int64_t item, first, count;

  // Of its first column, in panels so deep.
  int64_t at(int64_t rows) const { return first / kPanel * rows * kPanel + first % kPanel; }
  int64_t vectors() const { return count > V::width ? 2 : 1; }
};

template <class Use>
static inline void each_gated_segment(const GatedPair* pairs, int64_t count, int64_t side, const Use& use) {
  for (int64_t first = 0; first < count;) {
    const int64_t item = pairs[first].items[side], end = first / kPanel * kPanel + kPanel;
    int64_t next = first + 1;
    while (next < count && next < end && pairs[next].items[side] == item) ++next;
    use(GatedSegment{item, first, next - first});
    first = next;
  }
}

// What a task holds. Vectors of a segment's columns reach beyond them, and so beyond a panel's end.
struct GatedScratch {
  int32_t* places;                // of an item's rows that are there …
  int64_t item = -1, length = 0;  // … so many
  float *keys, *values;           // these rows
  float *opened, *rounded;        // o, a row for every column, and as products have it where they take bfloat16
  float* gates;                   // as the right-hand side of the product with W
  float *hidden, *attention;      // h, panels, and the weights of a segment
  float* rows;                    // of a segment's columns: the attended vector, then its gradient
  float *attended, *logits;       // their gradients, a panel
  float *turned, *slopes;         // that of logits transposed; ∂L/∂(W o + b), panels, …
  float *packed, *openings;       // … as a product with Wᵀ reads them, and this product
  float *key_sums, *value_sums;   // gradients of keys, transposed, and of values

  GatedScratch(const GatedAttentionCall& call, bool gradients, Workspace& workspace) {
    const auto larger = [](int64_t a, int64_t b) { return a > b ? a : b; };
    const GatedSide *const v = call.sides, *const t = call.sides + 1;
    const int64_t longest = larger(v->length, t->length), hiddens = larger(v->hidden, t->hidden);
    const Layout of_gate = product_layout(call.bfloat16, call.gate), of_hidden = product_layout(call.bfloat16, hiddens);
    constexpr int64_t columns = kGatedColumns;
    static_assert(columns % kPanel == 0, "a block is whole panels");
    places = reinterpret_cast<int32_t*>(workspace.floats(longest));
    keys = workspace.floats(longest * pad_row(hiddens));
    values = workspace.floats(longest * gated_row(call));
    opened = workspace.floats(columns * pad_row(call.gate));
    rounded = workspace.floats(call.bfloat16 ? columns * of_gate.ld : 0);
    gates = workspace.floats(columns * of_gate.depth);
    hidden = workspace.floats(columns * hiddens + kPanel);
    attention = workspace.floats(kPanel * longest);
    rows = workspace.floats(kPanel * gated_row(call));
    if (!gradients) return;
    attended = workspace.floats(kPanel * call.dim);
    logits = workspace.floats(kPanel * longest);
    turned = workspace.floats(kPanel * round_up(longest, kPanel));
    slopes = workspace.floats(columns * hiddens + kPanel);
    packed = workspace.floats(call.bfloat16 ? columns * of_hidden.depth : 0);
    openings = workspace.floats(columns * call.gate);
    key_sums = workspace.floats(hiddens * pad_row(longest));
    value_sums = workspace.floats(longest * gated_row(call));
  }

  // Copies the rows of an item that are there, zeros behind each.
  void hold(const GatedAttentionCall& call, int64_t side, int64_t wanted) {
    if (item == wanted) return;
    const GatedSide& of = call.sides[side];
    const int64_t keys_row = pad_row(of.hidden), values_row = gated_row(call);
    const bool* const mask = of.mask + wanted * of.length;
    const auto copy = [](const float* row, int64_t width, float* out, int64_t end) {
      for (int64_t k = 0; k < end; k += V::width) {
        V::store(out + k, k < width ? V::load(row + k, width - k) : V::zero());
      }
    };
    item = wanted;
    length = 0;
    for (int64_t r = 0; r < of.length; ++r) {
      if (!mask[r]) continue;
      const int64_t n = length++, row = wanted * of.length + r;
      places[n] = static_cast<int32_t>(r);
      copy(of.keys + row * of.hidden, of.hidden, keys + n * keys_row, keys_row);
      copy(of.values + row * call.dim, call.dim, values + n * values_row, values_row);
    }
  }
};

static void gated_scratch(const GatedAttentionCall& call, bool gradients, Workspace& workspace) {
  GatedScratch(call, gradients, workspace);
}

// o = σ(α own memory + (1 − α) other memory) of every column, Eq. 12, and as the product with W reads it. Of an odd
// number of columns one more is zero.
static void gated_gates(const GatedAttentionCall& call, const GatedPair* pairs, int64_t count, int64_t side,
                        const GatedScratch& scratch) {
  const Layout layout = product_layout(call.bfloat16, call.gate);
  const int64_t row = pad_row(call.gate);
  const F own_share = V::set(call.shares[0]), other_share = V::set(call.shares[1]);
  for (int64_t c = 0; c < round_up(count, 2); ++c) {
    float *const to = scratch.opened + c * row, *const rounded = scratch.rounded + c * layout.ld;
    if (layout.pairs()) __builtin_memset(rounded, 0, static_cast<size_t>(layout.depth) * sizeof(float));
    if (c == count) {
      __builtin_memset(to, 0, static_cast<size_t>(row) * sizeof(float));
      if (call.bfloat16) __builtin_memset(rounded, 0, static_cast<size_t>(layout.depth) * sizeof(float));
      break;
    }
    const float* const own = call.sides[side].memory + pairs[c].items[side] * call.gate;
    const float* const other = call.sides[1 - side].memory + pairs[c].items[1 - side] * call.gate;
    for (int64_t k = 0; k < call.gate; k += V::width) {
      const int64_t left = call.gate - k;
      const F mine = V::mul(own_share, V::load(own + k, left));
      const F o = sigmoid(V::fma(other_share, V::load(other + k, left), mine));
      V::store(to + k, o);
      if (call.bfloat16) gated_store(call, layout, rounded, k, o, left);
    }
  }
  transpose_to_panels(call.bfloat16 ? scratch.rounded : scratch.opened, layout.ld, count, layout.depth, scratch.gates);
}

// Epilogue: h = tanh(sum + bias) as panels `rows` deep.
struct GatedTanh {
  float* panels;
  int64_t rows;
  const float* bias;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
    float* const out = panels + n * rows + m * kPanel;
    // Stored first: tanh beside a whole tile would not fit the registers.
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) V::store(out + i * kPanel + j * V::width, sums[i][j]);
    }
    for (int i = 0; i < MR; ++i) {
      const F more = V::set(bias[m + i]);
      for (int j = 0; j < NV; ++j) {
        float* const at = out + i * kPanel + j * V::width;
        V::store(at, tanh(V::add(V::load(at), more)));
      }
    }
  }
};

// h of a block, panels; its gates are kept.
static void gated_hidden(const GatedAttentionCall& call, const GatedWeights& weights, const GatedPair* pairs,
                         int64_t count, int64_t side, const GatedScratch& scratch, float* hidden) {
  const GatedSide& own = call.sides[side];
  gated_gates(call, pairs, count, side, scratch);
  gated_multiply(product_layout(call.bfloat16, call.gate), own.hidden, count, weights.weights[side], scratch.gates,
                 GatedTanh{hidden, own.hidden, own.bias});
}

// Logits of n rows, a panel, become the softmax over them.
static void gated_softmax(float* panel, int64_t n, int64_t vectors) {
  for (int64_t j = 0; j < vectors * V::width && n > 0; j += V::width) {
    F most = V::load(panel + j), sum = V::zero();
    for (int64_t r = 1; r < n; ++r) most = V::max(V::load(panel + r * kPanel + j), most);
    for (int64_t r = 0; r < n; ++r) {
      const F e = exp(V::sub(V::load(panel + r * kPanel + j), most));
      V::store(panel + r * kPanel + j, e);
      sum = V::add(sum, e);
    }
    const F scale = V::div(V::set(1.0f), sum);
    for (int64_t r = 0; r < n; ++r) V::store(panel + r * kPanel + j, V::mul(V::load(panel + r * kPanel + j), scale));
  }
}

// Eqs. 13 and 14, or 16 and 17: the weights of the item that is held in a segment's columns, and Σ weight · value as
// rows.
static void gated_attend(const GatedAttentionCall& call, int64_t side, const GatedSegment& segment,
                         const GatedScratch& scratch, const float* hidden, float* rows) {
  const int64_t depth = call.sides[side].hidden, n = scratch.length, row = gated_row(call);
  multiply(n, segment.count, AllOf{depth}, Left{scratch.keys, pad_row(depth), 1},
           Right{hidden + segment.at(depth), 0, kPanel}, Store{scratch.attention, kPanel, false});
  gated_softmax(scratch.attention, n, segment.vectors());
  multiply(segment.count, call.dim, AllOf{n}, Left{scratch.attention, 1, kPanel}, Right{scratch.values, kPanel, row},
           Store{rows, row, false});
}

static void gated_attend_regions(const GatedAttentionCall& call, const GatedWeights& weights, const GatedChunk& chunk,
                                 int64_t block, Workspace& workspace) {
  [[maybe_unused]] const Tiles tiles;
  GatedScratch scratch(call, false, workspace);
  const GatedBlock& of = chunk.orders[0].blocks[block];
  const GatedPair* const pairs = chunk.orders[0].pairs + of.first;
  const int64_t length = call.sides[0].length, row = gated_row(call);
  float* const hidden = chunk.hidden ? chunk.hidden + of.column * call.sides[0].hidden : scratch.hidden;
  gated_hidden(call, weights, pairs, of.count, 0, scratch, hidden);
  each_gated_segment(pairs, of.count, 0, [&](const GatedSegment& segment) {
    float* const rows = chunk.rows + pairs[segment.first].slot * row;
    scratch.hold(call, 0, segment.item);
    gated_attend(call, 0, segment, scratch, hidden, rows);
    for (int64_t k = 0; k < call.dim; k += V::width) {
      const F bias = V::load(call.embedding_bias + k, call.dim - k);
      for (int64_t c = 0; c < segment.count; ++c) {
        V::store(rows + c * row + k, tanh(V::add(V::load(rows + c * row + k), bias)));
      }
    }
    if (chunk.attention == nullptr) return;
    float* const kept = chunk.attention + of.column * length + segment.at(length);
    for (int64_t r = 0; r < scratch.length; ++r) {
      for (int64_t j = 0; j < segment.count; j += V::width) {
        V::store(kept + r * kPanel + j, V::load(scratch.attention + r * kPanel + j), segment.count - j);
      }
    }
  });
}

// Eq. 19: v · t and what it is divided by; 1 / ‖v‖² and 1 / ‖t‖² are zero where the division is by EPS, or by nothing.
struct GatedCosine {
  float product, scale, inverse_v, inverse_t;

  GatedCosine(const float* v, const float* t, int64_t dim) {
    constexpr float eps = 1e-8f;
    F sums[3] = {V::zero(), V::zero(), V::zero()};
    for (int64_t k = 0; k < dim; k += V::width) {
      const F a = V::load(v + k, dim - k), b = V::load(t + k, dim - k);
      sums[0] = V::fma(a, b, sums[0]);
      sums[1] = V::fma(a, a, sums[1]);
      sums[2] = V::fma(b, b, sums[2]);
    }
    product = V::reduce_add(sums[0]);
    const float squares_v = V::reduce_add(sums[1]), squares_t = V::reduce_add(sums[2]);
    const float lengths = __builtin_sqrtf(squares_v) * __builtin_sqrtf(squares_t);
    scale = lengths == 0.0f ? 0.0f : 1.0f / (lengths < eps ? eps : lengths);
    inverse_v = lengths < eps ? 0.0f : 1.0f / squares_v;
    inverse_t = lengths < eps ? 0.0f : 1.0f / squares_t;
  }
  float value() const { return product * scale; }
};

static void gated_attend_words(const GatedAttentionCall& call, const GatedWeights& weights, const GatedChunk& chunk,
                               float* scores, int64_t block, Workspace& workspace) {
  [[maybe_unused]] const Tiles tiles;
  GatedScratch scratch(call, false, workspace);
  const GatedBlock& of = chunk.orders[1].blocks[block];
  const GatedPair* const pairs = chunk.orders[1].pairs + of.first;
  const int64_t row = gated_row(call);
  gated_hidden(call, weights, pairs, of.count, 1, scratch, scratch.hidden);
  each_gated_segment(pairs, of.count, 1, [&](const GatedSegment& segment) {
    scratch.hold(call, 1, segment.item);
    gated_attend(call, 1, segment, scratch, scratch.hidden, scratch.rows);
    for (int64_t c = 0; c < segment.count; ++c) {
      const GatedPair& pair = pairs[segment.first + c];
      scores[pair.place] = GatedCosine(chunk.rows + pair.slot * row, scratch.rows + c * row, call.dim).value();
    }
  });
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
