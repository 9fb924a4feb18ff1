// Gated attention: gradients of a chunk. Words first, whose scores' gradients make those of all attended vectors; then
// regions, from these. Each side in three phases that no two tasks write one result in: what belongs to one of its
// items, then its weights, whose sum is over all pairs, and the other side's memories.
namespace crossret {
namespace CROSSRET_ISA {

// Columns of the matrix of slopes: of every own item an even number, for pairs of bfloat16.
static inline int64_t gated_stride(const GatedChunk& chunk, int64_t side) { return round_up(chunk.count[1 - side], 2); }

static Layout gated_slopes(const GatedAttentionCall& call, const GatedChunk& chunk, int64_t side) {
  return gated_layout(call, chunk.count[side] * gated_stride(chunk, side));
}

static inline int64_t gated_columns(const GatedChunk& chunk, int64_t side) {
  return gated_panels(chunk.count[1 - side]) * kPanel;
}

static void gated_lay_out(const GatedAttentionCall& call, bool gradients, GatedChunk& chunk, Workspace& workspace) {
  const auto larger = [](int64_t a, int64_t b) { return a > b ? a : b; };
  constexpr int64_t high = 32;  // rows that tiles read at once, there or not
  for (int64_t side = 0; side < 2; ++side) {
    const int64_t hidden = call.sides[side].hidden;
    chunk.weights[side] = workspace.floats(round_up(hidden, high) * gated_layout(call, call.gate).ld);
    chunk.turned[side] =
        gradients ? workspace.floats(round_up(call.gate, high) * gated_layout(call, hidden).ld) : nullptr;
    chunk.memories[side] = workspace.floats(round_up(chunk.count[side], kPanel) * call.gate);
  }
  chunk.rows = workspace.floats(chunk.pairs() * gated_row(call));
  chunk.hidden = nullptr;
  if (!gradients) return;
  const int64_t images = chunk.count[0] * gated_columns(chunk, 0), captions = chunk.count[1] * gated_columns(chunk, 1);
  chunk.hidden = workspace.floats(images * call.sides[0].hidden);
  chunk.attention = workspace.floats(images * call.sides[0].length);
  int64_t rows = 0, depth = 0;
  for (int64_t side = 0; side < 2; ++side) {
    const Layout layout = gated_slopes(call, chunk, side);
    rows = larger(rows, round_up(call.sides[side].hidden, high) * layout.ld);
    depth = larger(depth, layout.depth);
  }
  chunk.slopes = workspace.floats(rows);
  chunk.gates = workspace.floats(round_up(call.gate, kPanel) * depth);
  chunk.openings = workspace.floats(larger(images, captions) * call.gate);
  chunk.biases = workspace.floats(
      larger(chunk.count[0] * pad_row(call.sides[0].hidden), chunk.count[1] * pad_row(call.sides[1].hidden)));
  chunk.embedding = workspace.floats(chunk.count[0] * gated_row(call));
}

// Epilogue: ∂L/∂(W o + b) = ∂L/∂h (1 − h²), panels.
struct GatedSlope {
  float* slopes;
  const float* hidden;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        const int64_t at = (m + i) * kPanel + n + j * V::width;
        const F h = V::load(hidden + at);
        V::store(slopes + at, V::mul(sums[i][j], V::sub(V::set(1.0f), V::mul(h, h))));
      }
    }
  }
};

// Epilogue: ∂L/∂ what the gate is a sigmoid of, ∂L/∂o · o (1 − o), panels `rows` deep.
struct GatedOpening {
  float* openings;
  const float* gates;
  int64_t rows;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
    const int64_t first = n * rows + m * kPanel;
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        const int64_t at = first + i * kPanel + j * V::width;
        const F o = V::load(gates + at);
        V::store(openings + at, V::mul(sums[i][j], V::mul(o, V::sub(V::set(1.0f), o))));
      }
    }
  }
};

// Epilogue: rows of `columns` numbers gain the product.
struct GatedAdd {
  float* out;
  int64_t columns;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        float* const at = out + (m + i) * columns + n + j * V::width;
        const int64_t left = columns - n - j * V::width;
        V::store(at, V::add(V::load(at, left), sums[i][j]), left);
      }
    }
  }
};

// out[r] += factor · Σ over columns of row r of panels.
static void gated_row_sums(const float* panels, int64_t rows, int64_t columns, float factor, float* out) {
  for (int64_t r = 0; r < rows; r += V::width) {
    F sums[V::width];
    for (int64_t i = 0; i < V::width; ++i) {
      F sum = V::zero();
      if (r + i < rows) {
        each_gated_panel(columns, [&](int64_t p, int64_t vectors, int64_t) {
          const float* const at = panels + (p * rows + r + i) * kPanel;
          for (int64_t j = 0; j < vectors * V::width; j += V::width) sum = V::add(sum, V::load(at + j));
        });
      }
      sums[i] = sum;
    }
    V::store(out + r, V::fma(V::set(factor), sum_rows(sums), V::load(out + r, rows - r)), rows - r);
  }
}

// From weights and their gradients, panels of n rows, to those of logits; of no column they are zero.
static void gated_softmax_gradients(const float* weights, float* panel, int64_t n, int64_t vectors) {
  for (int64_t j = 0; j < vectors * V::width; j += V::width) {
    F along = V::zero();
    for (int64_t r = 0; r < n; ++r) {
      along = V::fma(V::load(weights + r * kPanel + j), V::load(panel + r * kPanel + j), along);
    }
    for (int64_t r = 0; r < n; ++r) {
      float* const at = panel + r * kPanel + j;
      V::store(at, V::mul(V::load(weights + r * kPanel + j), V::sub(V::load(at), along)));
    }
  }
}

static void gated_clear(float* x, int64_t count) { __builtin_memset(x, 0, static_cast<size_t>(count) * sizeof(float)); }

// Of a block, from the gradients of attended vectors, rows: what its item gains, and what the phases behind need.
// `scratch.gates` are those of the block.
static void gated_gradients(const GatedAttentionCall& call, const GatedSideGradients& gradients,
                            const GatedChunk& chunk, const GatedBlock& block, const float* rows, const float* hidden,
                            const float* attention, const GatedScratch& scratch) {
  const GatedSide& own = call.sides[block.side];
  const Layout of_hidden = gated_layout(call, own.hidden), of_slopes = gated_slopes(call, chunk, block.side);
  const int64_t n = scratch.length, row = gated_row(call), keys_row = pad_row(own.hidden),
                sums_row = pad_row(own.length);
  const int64_t stride = gated_stride(chunk, block.side), slot = block.own * stride + block.first;
  float* const biases = chunk.biases + block.own * keys_row;
  if (block.first == 0) gated_clear(biases, keys_row);
  each_gated_panel(block.columns, [&](int64_t p, int64_t vectors, int64_t columns) {
    const float *const grads = rows + p * kPanel * row, *const weights = attention + p * own.length * kPanel,
                       *const h = hidden + p * own.hidden * kPanel;
    float *const attended = scratch.attended, *const logits = scratch.logits,
                 *const slopes = scratch.slopes + p * own.hidden * kPanel;
    transpose_to_panels(grads, row, columns, call.dim, attended);
    multiply(n, columns, AllOf{call.dim}, Left{scratch.values, row, 1}, Right{attended, 0, kPanel},
             Store{logits, kPanel, false});
    multiply(n, call.dim, AllOf{columns}, Left{weights, kPanel, 1}, Right{grads, kPanel, row},
             Store{scratch.value_sums, row, true});
    gated_softmax_gradients(weights, logits, n, vectors);
    transpose_to_panels(logits, kPanel, n, columns, scratch.turned);
    multiply(own.hidden, n, AllOf{columns}, Left{h, kPanel, 1}, Right{scratch.turned, columns * kPanel, kPanel},
             Store{scratch.key_sums, sums_row, true});
    multiply(own.hidden, columns, AllOf{n}, Left{scratch.keys, 1, keys_row}, Right{logits, 0, kPanel},
             GatedSlope{slopes, h});
    // As the right-hand side of Σ slope · oᵀ, and its left-hand side.
    const int64_t at = slot + p * kPanel, left = stride - block.first - p * kPanel;
    const int64_t there = left < kPanel ? left : kPanel;
    for (int64_t r = 0; r < own.hidden; ++r) {
      for (int64_t j = 0; j < vectors * V::width && j < there; j += V::width) {
        gated_store(call, of_slopes, chunk.slopes + r * of_slopes.ld, at + j, V::load(slopes + r * kPanel + j),
                    there - j);
      }
    }
    for (int64_t g = 0; g < call.gate; g += kPanel) {
      const float* const from = scratch.gates + (p * call.gate + g) * kPanel;
      float* const to = chunk.gates + g * of_slopes.depth;
      const int64_t units = call.gate - g < kPanel ? call.gate - g : kPanel;
      if (!of_slopes.pairs()) {
        transpose_to_panels(from, kPanel, units, there, to + at * kPanel);
        if (call.bfloat16) gated_round(call, to + at * kPanel, there, units > V::width ? 2 : 1, to + at * kPanel);
      } else {
        transpose_to_panels(from, kPanel, units, there, attended);
        pair_rows(attended, kPanel, there, units, there / 2, to + at / 2 * kPanel);
      }
    }
  });
  gated_row_sums(scratch.slopes, own.hidden, block.columns, 1.0f, biases);
  float* const openings = chunk.openings + (block.own * gated_columns(chunk, block.side) + block.first) * call.gate;
  const float* const slopes = gated_operand(call, of_hidden, scratch.slopes, own.hidden, block.columns, scratch.packed);
  gated_multiply(of_hidden, call.gate, block.columns, chunk.turned[block.side], slopes,
                 GatedOpening{openings, scratch.gates, call.gate});
  if (gradients.memory != nullptr) {
    gated_row_sums(openings, call.gate, block.columns, call.shares[0],
                   gradients.memory + gated_item(chunk, block.side, block.own) * call.gate);
  }
}

static void gated_begin(const GatedAttentionCall& call, const GatedChunk& chunk, int64_t side, int64_t own,
                        GatedScratch& scratch) {
  gated_copy(call, chunk, side, own, scratch);
  gated_clear(scratch.key_sums, call.sides[side].hidden * pad_row(call.sides[side].length));
  gated_clear(scratch.value_sums, scratch.length * gated_row(call));
}

// Adds the item's sums to the gradients of the rows that it has.
static void gated_finish(const GatedAttentionCall& call, const GatedSideGradients& gradients, const GatedChunk& chunk,
                         int64_t side, int64_t own, const GatedScratch& scratch) {
  const GatedSide& of = call.sides[side];
  const int64_t n = scratch.length, first = gated_item(chunk, side, own) * of.length, sums_row = pad_row(of.length);
  const auto add = [](float* to, F x, int64_t left) { V::store(to, V::add(V::load(to, left), x), left); };
  for (int64_t r = 0; r < n && gradients.values != nullptr; ++r) {
    float* const to = gradients.values + (first + scratch.places[r]) * call.dim;
    for (int64_t k = 0; k < call.dim; k += V::width) {
      add(to + k, V::load(scratch.value_sums + r * gated_row(call) + k), call.dim - k);
    }
  }
  for (int64_t r = 0; r < n && gradients.keys != nullptr; r += V::width) {
    for (int64_t k = 0; k < of.hidden; k += V::width) {
      F square[V::width];
      for (int64_t i = 0; i < V::width; ++i) {
        square[i] = k + i < of.hidden ? V::load(scratch.key_sums + (k + i) * sums_row + r) : V::zero();
      }
      V::transpose(square);
      for (int64_t i = 0; i < V::width && r + i < n; ++i) {
        add(gradients.keys + (first + scratch.places[r + i]) * of.hidden + k, square[i], of.hidden - k);
      }
    }
  }
  // Products of pairs are whole tiles deep.
  const Layout layout = gated_slopes(call, chunk, side);
  const int64_t used = chunk.count[side] * gated_stride(chunk, side), end = layout.pairs() ? 2 * layout.depth : used;
  if (own + 1 < chunk.count[side] || used == end) return;
  for (int64_t r = 0; r < of.hidden; ++r) {
    for (int64_t k = used; k < end; k += V::width) {
      gated_store(call, layout, chunk.slopes + r * layout.ld, k, V::zero(), end - k);
    }
  }
  for (int64_t g = 0; g < call.gate; g += kPanel) {
    gated_clear(chunk.gates + g * layout.depth + used / 2 * kPanel, (layout.depth - used / 2) * kPanel);
  }
}

static void gated_differentiate_words(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                      const GatedChunk& chunk, int64_t caption, Workspace& workspace) {
  [[maybe_unused]] const Tiles tiles;
  GatedScratch scratch(call, true, workspace);
  const int64_t row = gated_row(call);
  gated_begin(call, chunk, 1, caption, scratch);
  for (int64_t first = 0; first < chunk.count[0]; first += kGatedColumns) {
    const int64_t left = chunk.count[0] - first;
    const GatedBlock block{1, caption, first, left < kGatedColumns ? left : kGatedColumns};
    gated_attend(call, chunk, block, scratch, scratch.hidden, scratch.attention, scratch.rows);
    for (int64_t c = 0; c < block.columns; ++c) {
      float *const v = chunk.rows + ((first + c) * chunk.count[1] + caption) * row, *const t = scratch.rows + c * row;
      const GatedCosine cosine(v, t, call.dim);
      const float grad =
          gradients.scores[gated_item(chunk, 0, first + c) * call.sides[1].count + gated_item(chunk, 1, caption)];
      const F factor = V::set(grad * cosine.scale), one = V::set(1.0f);
      const F of_v = V::set(-cosine.product * cosine.inverse_v), of_t = V::set(-cosine.product * cosine.inverse_t);
      for (int64_t k = 0; k < call.dim; k += V::width) {
        const F a = V::load(v + k), b = V::load(t + k);
        V::store(t + k, V::mul(factor, V::fma(of_t, b, a)));
        V::store(v + k, V::mul(V::mul(factor, V::fma(of_v, a, b)), V::sub(one, V::mul(a, a))));
      }
    }
    gated_gradients(call, gradients.sides[1], chunk, block, scratch.rows, scratch.hidden, scratch.attention, scratch);
  }
  gated_finish(call, gradients.sides[1], chunk, 1, caption, scratch);
}

static void gated_differentiate_regions(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                        const GatedChunk& chunk, int64_t image, Workspace& workspace) {
  [[maybe_unused]] const Tiles tiles;
  GatedScratch scratch(call, true, workspace);
  const int64_t row = gated_row(call), captions = chunk.count[1];
  gated_begin(call, chunk, 0, image, scratch);
  float* const embedding = chunk.embedding + image * row;
  gated_clear(embedding, row);
  for (int64_t first = 0; first < captions; first += kGatedColumns) {
    const GatedBlock block{0, image, first, captions - first < kGatedColumns ? captions - first : kGatedColumns};
    const float* const rows = chunk.rows + (image * captions + first) * row;
    for (int64_t c = 0; c < block.columns; ++c) {
      for (int64_t k = 0; k < call.dim; k += V::width) {
        V::store(embedding + k, V::add(V::load(embedding + k), V::load(rows + c * row + k)));
      }
    }
    const int64_t column = image * gated_columns(chunk, 0) + first;
    gated_gates(call, chunk, block, scratch.gates);
    gated_gradients(call, gradients.sides[0], chunk, block, rows, chunk.hidden + column * call.sides[0].hidden,
                    chunk.attention + column * call.sides[0].length, scratch);
  }
  gated_finish(call, gradients.sides[0], chunk, 0, image, scratch);
}

// Some rows of ∂L/∂W = Σ slope · oᵀ, over all pairs at once, and what lies beside them.
static void gated_add_to_weights(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                 const GatedChunk& chunk, int64_t side, int64_t part) {
  [[maybe_unused]] const Tiles tiles;
  const GatedSideGradients& to = gradients.sides[side];
  const int64_t hidden = call.sides[side].hidden, first = part * kGatedRows, left = hidden - first;
  const int64_t rows = left < kGatedRows ? left : kGatedRows;
  const Layout layout = gated_slopes(call, chunk, side);
  if (to.weight != nullptr) {
    const float* const slopes = chunk.slopes + first * layout.ld;
    multiply_rows(layout, 0, layout.depth, rows, call.gate, slopes, layout.ld, chunk.gates,
                  {reinterpret_cast<const char*>(slopes), 0}, GatedAdd{to.weight + first * call.gate, call.gate});
  }
  const auto add = [&](const float* from, int64_t row, int64_t begin, int64_t end, float* out) {
    for (int64_t k = begin; k < end; k += V::width) {
      F sum = V::load(out + k, end - k);
      for (int64_t own = 0; own < chunk.count[side]; ++own) sum = V::add(sum, V::load(from + own * row + k));
      V::store(out + k, sum, end - k);
    }
  };
  if (to.bias != nullptr) add(chunk.biases, pad_row(hidden), first, first + rows, to.bias);
  if (side == 0 && part == 0 && gradients.embedding_bias != nullptr) {
    add(chunk.embedding, gated_row(call), 0, call.dim, gradients.embedding_bias);
  }
}

// Some units of the gate, of the other side's memories: Σ of openings over the own items.
static void gated_add_to_memories(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                  const GatedChunk& chunk, int64_t side, int64_t part) {
  float* const memories = gradients.sides[1 - side].memory;
  if (memories == nullptr) return;
  const int64_t columns = gated_columns(chunk, side), first = part * kGatedRows;
  const int64_t end = first + kGatedRows < call.gate ? first + kGatedRows : call.gate;
  const F share = V::set(call.shares[1]);
  for (int64_t c = 0; c < chunk.count[1 - side]; c += V::width) {
    for (int64_t g = first; g < end; g += V::width) {
      const float* const from = chunk.openings + c / kPanel * kPanel * call.gate + g * kPanel + c % kPanel;
      F square[V::width];
      for (int64_t i = 0; i < V::width; ++i) {
        F sum = V::zero();
        for (int64_t own = 0; own < chunk.count[side] && g + i < end; ++own) {
          sum = V::add(sum, V::load(from + own * columns * call.gate + i * kPanel));
        }
        square[i] = sum;
      }
      V::transpose(square);
      for (int64_t i = 0; i < V::width && c + i < chunk.count[1 - side]; ++i) {
        float* const to = memories + (gated_item(chunk, 1 - side, c + i)) * call.gate + g;
        V::store(to, V::fma(share, square[i], V::load(to, end - g)), end - g);
      }
    }
  }
}

extern const GatedAttentionKernels gated_attention_kernels;
const GatedAttentionKernels gated_attention_kernels = {
    gated_lay_out,        gated_scratch,        gated_copy_weights,        gated_prepare,
    gated_attend_regions, gated_attend_words,   gated_differentiate_words, gated_differentiate_regions,
    gated_add_to_weights, gated_add_to_memories};

}  // namespace CROSSRET_ISA
}  // namespace crossret
