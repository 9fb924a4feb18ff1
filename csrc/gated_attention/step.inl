// Gated attention: an item's step with a block of items of the other side, and the scores of pairs.
namespace crossret {
namespace CROSSRET_ISA {

// One item of a side, with columns of the other side's chunk.
struct GatedBlock {
  int64_t side, own;       // of the chunk's items of that side
  int64_t first, columns;  // likewise of the other's
};

static inline int64_t gated_row(const GatedAttentionCall& call) { return pad_row(call.dim); }

static inline int64_t gated_panels(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// What a task holds.
struct GatedScratch {
  int32_t* places;               // of the item's rows that are there …
  int64_t length = 0;            // … so many
  float *keys, *values;          // these rows
  float *gates, *packed;         // o, panels, and as a product with W reads them
  float *hidden, *attention;     // h and the weights, panels
  float* rows;                   // of every column: the attended vector, then its gradient
  float *attended, *logits;      // their gradients, a panel
  float *turned, *slopes;        // that of logits transposed; ∂L/∂(W o + b), panels
  float *key_sums, *value_sums;  // gradients of keys, transposed, and of values

  GatedScratch(const GatedAttentionCall& call, bool gradients, Workspace& workspace) {
    const auto larger = [](int64_t a, int64_t b) { return a > b ? a : b; };
    const GatedSide *const v = call.sides, *const t = call.sides + 1;
    const int64_t longest = larger(v->length, t->length), hiddens = larger(v->hidden, t->hidden);
    const Layout of_gate = gated_layout(call, call.gate), of_hidden = gated_layout(call, hiddens);
    const int64_t columns = round_up(kGatedColumns, kPanel);
    places = reinterpret_cast<int32_t*>(workspace.floats(longest));
    keys = workspace.floats(longest * pad_row(hiddens));
    values = workspace.floats(longest * gated_row(call));
    gates = workspace.floats(columns * call.gate);
    packed = workspace.floats(call.bfloat16 ? columns * larger(of_gate.depth, of_hidden.depth) : 0);
    hidden = workspace.floats(columns * hiddens);
    attention = workspace.floats(columns * longest);
    rows = workspace.floats(columns * gated_row(call));
    if (!gradients) return;
    attended = workspace.floats(kPanel * larger(call.dim, kPanel));
    logits = workspace.floats(kPanel * longest);
    turned = workspace.floats(kPanel * round_up(longest, kPanel));
    slopes = workspace.floats(columns * hiddens);
    key_sums = workspace.floats(hiddens * pad_row(longest));
    value_sums = workspace.floats(longest * gated_row(call));
  }
};

static void gated_scratch(const GatedAttentionCall& call, bool gradients, const GatedChunk&, Workspace& workspace) {
  GatedScratch(call, gradients, workspace);
}

static inline int64_t gated_item(const GatedChunk& chunk, int64_t side, int64_t own) { return chunk.first[side] + own; }

// Memories of a chunk's items, as the columns of panels.
static void gated_prepare(const GatedAttentionCall& call, const GatedChunk& chunk, int64_t side) {
  transpose_to_panels(call.sides[side].memory + chunk.first[side] * call.gate, call.gate, chunk.count[side], call.gate,
                      chunk.memories[side]);
}

// Copies the rows of an item that are there, zeros behind each.
static void gated_copy(const GatedAttentionCall& call, const GatedChunk& chunk, int64_t side, int64_t own,
                       GatedScratch& scratch) {
  const GatedSide& of = call.sides[side];
  const int64_t item = gated_item(chunk, side, own), keys_row = pad_row(of.hidden), values_row = gated_row(call);
  const bool* const mask = of.mask + item * of.length;
  const auto copy = [](const float* row, int64_t width, float* out, int64_t end) {
    for (int64_t k = 0; k < end; k += V::width) V::store(out + k, k < width ? V::load(row + k, width - k) : V::zero());
  };
  scratch.length = 0;
  for (int64_t r = 0; r < of.length; ++r) {
    if (!mask[r]) continue;
    const int64_t n = scratch.length++, row = item * of.length + r;
    scratch.places[n] = static_cast<int32_t>(r);
    copy(of.keys + row * of.hidden, of.hidden, scratch.keys + n * keys_row, keys_row);
    copy(of.values + row * call.dim, call.dim, scratch.values + n * values_row, values_row);
  }
}

// o = σ(α own memory + (1 − α) other memory), Eq. 12.
static void gated_gates(const GatedAttentionCall& call, const GatedChunk& chunk, const GatedBlock& block,
                        float* gates) {
  const float* const own = call.sides[block.side].memory + gated_item(chunk, block.side, block.own) * call.gate;
  const float* const others = chunk.memories[1 - block.side] + block.first * call.gate;
  const F share = V::set(call.shares[1]);
  each_gated_panel(block.columns, [&](int64_t p, int64_t vectors, int64_t) {
    const float* from = others + p * call.gate * kPanel;
    float* to = gates + p * call.gate * kPanel;
    for (int64_t k = 0; k < call.gate; ++k, from += kPanel, to += kPanel) {
      const F mine = V::set(call.shares[0] * own[k]);
      for (int64_t j = 0; j < vectors * V::width; j += V::width) {
        V::store(to + j, sigmoid(V::fma(share, V::load(from + j), mine)));
      }
    }
  });
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

// Eqs. 13 and 14, or 16 and 17: h and the weights, and Σ weight · value as rows, from an item's copied rows.
static void gated_attend(const GatedAttentionCall& call, const GatedChunk& chunk, const GatedBlock& block,
                         const GatedScratch& scratch, float* hidden, float* attention, float* rows) {
  const GatedSide& own = call.sides[block.side];
  const Layout layout = gated_layout(call, call.gate);
  const int64_t n = scratch.length, row = gated_row(call);
  gated_gates(call, chunk, block, scratch.gates);
  const float* const gates = gated_operand(call, layout, scratch.gates, call.gate, block.columns, scratch.packed);
  gated_multiply(layout, own.hidden, block.columns, chunk.weights[block.side], gates,
                 GatedTanh{hidden, own.hidden, own.bias});
  each_gated_panel(block.columns, [&](int64_t p, int64_t vectors, int64_t columns) {
    float* const weights = attention + p * own.length * kPanel;
    multiply(n, columns, AllOf{own.hidden}, Left{scratch.keys, pad_row(own.hidden), 1},
             Right{hidden + p * own.hidden * kPanel, 0, kPanel}, Store{weights, kPanel, false});
    gated_softmax(weights, n, vectors);
    multiply(columns, call.dim, AllOf{n}, Left{weights, 1, kPanel}, Right{scratch.values, kPanel, row},
             Store{rows + p * kPanel * row, row, false});
  });
}

static void gated_attend_regions(const GatedAttentionCall& call, const GatedChunk& chunk, int64_t image, int64_t block,
                                 Workspace& workspace) {
  [[maybe_unused]] const Tiles tiles;
  GatedScratch scratch(call, false, workspace);
  const int64_t first = block * kGatedColumns, left = chunk.count[1] - first, row = gated_row(call);
  const GatedBlock at{0, image, first, left < kGatedColumns ? left : kGatedColumns};
  const int64_t column = image * gated_panels(chunk.count[1]) * kPanel + first;
  float *const hidden = chunk.hidden ? chunk.hidden + column * call.sides[0].hidden : scratch.hidden,
               *const attention = chunk.hidden ? chunk.attention + column * call.sides[0].length : scratch.attention,
               *const rows = chunk.rows + (image * chunk.count[1] + first) * row;
  gated_copy(call, chunk, 0, image, scratch);
  gated_attend(call, chunk, at, scratch, hidden, attention, rows);
  for (int64_t k = 0; k < call.dim; k += V::width) {
    const F bias = V::load(call.embedding_bias + k, call.dim - k);
    for (int64_t c = 0; c < at.columns; ++c)
      V::store(rows + c * row + k, tanh(V::add(V::load(rows + c * row + k), bias)));
  }
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

static void gated_attend_words(const GatedAttentionCall& call, const GatedChunk& chunk, float* scores, int64_t caption,
                               int64_t block, Workspace& workspace) {
  [[maybe_unused]] const Tiles tiles;
  GatedScratch scratch(call, false, workspace);
  const int64_t first = block * kGatedColumns, left = chunk.count[0] - first, row = gated_row(call);
  const GatedBlock at{1, caption, first, left < kGatedColumns ? left : kGatedColumns};
  gated_copy(call, chunk, 1, caption, scratch);
  gated_attend(call, chunk, at, scratch, scratch.hidden, scratch.attention, scratch.rows);
  for (int64_t c = 0; c < at.columns; ++c) {
    const float* const v = chunk.rows + ((first + c) * chunk.count[1] + caption) * row;
    scores[gated_item(chunk, 0, first + c) * call.sides[1].count + gated_item(chunk, 1, caption)] =
        GatedCosine(v, scratch.rows + c * row, call.dim).value();
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
