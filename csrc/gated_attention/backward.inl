// Gated attention: gradients of a chunk. Words first, whose scores' gradients make those of all attended vectors; then
// regions, from these. Each side in three phases that no two tasks write one result in: what belongs to one of its
// items, then its weights, whose sum is over all pairs, and the other side's memories.
namespace crossret {
namespace CROSSRET_ISA {

constexpr int64_t kGatedHigh = 32;  // rows that tiles read at once, there or not

// Rows of slopes, which the panels of gates meet.
static Layout gated_slopes(const GatedAttentionCall& call, const GatedGroup& group) {
  return product_layout(call.bfloat16, group.slopes);
}

static void gated_lay_out_weights(const GatedAttentionCall& call, bool gradients, GatedWeights& of,
                                  Workspace& workspace) {
  for (int64_t side = 0; side < 2; ++side) {
    const int64_t hidden = call.sides[side].hidden;
    of.weights[side] = workspace.floats(round_up(hidden, kGatedHigh) * product_layout(call.bfloat16, call.gate).ld);
    of.turned[side] = gradients
                          ? workspace.floats(round_up(call.gate, kGatedHigh) * product_layout(call.bfloat16, hidden).ld)
                          : nullptr;
  }
}

static void gated_lay_out(const GatedAttentionCall& call, bool gradients, GatedChunk& chunk, Workspace& workspace) {
  const auto larger = [](int64_t a, int64_t b) { return a > b ? a : b; };
  chunk.rows = workspace.floats(chunk.pairs * gated_row(call));
  chunk.hidden = chunk.attention = nullptr;
  if (!gradients) return;
  const GatedOrder& images = chunk.orders[0];
  chunk.hidden = workspace.floats(images.columns * call.sides[0].hidden + kPanel);
  chunk.attention = workspace.floats(images.columns * call.sides[0].length + kPanel);
  int64_t rows = 0, depth = 0, biases = 0;
  for (int64_t side = 0; side < 2; ++side) {
    const Layout layout = product_layout(call.bfloat16, chunk.orders[side].most_slopes);
    rows = larger(rows, round_up(call.sides[side].hidden, kGatedHigh) * layout.ld);
    depth = larger(depth, layout.depth);
    biases = larger(biases, chunk.orders[side].n_tasks * pad_row(call.sides[side].hidden));
  }
  chunk.slopes = workspace.floats(rows);
  chunk.gates = workspace.floats(round_up(call.gate, kPanel) * depth);
  chunk.openings = workspace.floats(chunk.pairs * pad_row(call.gate));
  chunk.biases = workspace.floats(biases);
  chunk.embedding = workspace.floats(images.n_tasks * gated_row(call));
}

// Epilogue: ∂L/∂(W o + b) = ∂L/∂h (1 − h²), panels. Nothing behind the columns is touched.
struct GatedSlope {
  float* slopes;
  const float* hidden;
  int64_t columns;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        const int64_t at = (m + i) * kPanel + n + j * V::width;
        const F h = V::load(hidden + at);
        V::store(slopes + at, V::mul(sums[i][j], V::sub(V::set(1.0f), V::mul(h, h))), columns - n - j * V::width);
      }
    }
  }
};

// Epilogue: panels `rows` deep.
struct GatedPanels {
  float* panels;
  int64_t rows;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) V::store(panels + n * rows + (m + i) * kPanel + j * V::width, sums[i][j]);
    }
  }
};

// Epilogue: so many columns of rows gain the product.
struct GatedAdd {
  float* out;
  int64_t row, columns;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        float* const at = out + (m + i) * row + n + j * V::width;
        const int64_t left = columns - n - j * V::width;
        V::store(at, V::add(V::load(at, left), sums[i][j]), left);
      }
    }
  }
};

// out[r] += Σ over columns of row r of panels.
static void gated_row_sums(const float* panels, int64_t rows, int64_t columns, float* out) {
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
    V::store(out + r, V::add(sum_rows(sums), V::load(out + r, rows - r)), rows - r);
  }
}

// From weights and their gradients, panels of n rows, to those of logits.
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

// Of a segment, from the gradients of attended vectors, rows: what its item gains, and ∂L/∂(W o + b).
static void gated_segment_gradients(const GatedAttentionCall& call, int64_t side, const GatedSegment& segment,
                                    const float* grads, const float* hidden, const float* weights,
                                    const GatedScratch& scratch) {
  const GatedSide& own = call.sides[side];
  const int64_t n = scratch.length, columns = segment.count, row = gated_row(call), keys_row = pad_row(own.hidden),
                sums_row = pad_row(own.length), at = segment.at(own.hidden);
  float *const attended = scratch.attended, *const logits = scratch.logits;
  transpose_to_panels(grads, row, columns, call.dim, attended);
  multiply(n, columns, AllOf{call.dim}, Left{scratch.values, row, 1}, Right{attended, 0, kPanel},
           Store{logits, kPanel, false});
  multiply(n, call.dim, AllOf{columns}, Left{weights, kPanel, 1}, Right{grads, kPanel, row},
           Store{scratch.value_sums, row, true});
  gated_softmax_gradients(weights, logits, n, segment.vectors());
  transpose_to_panels(logits, kPanel, n, columns, scratch.turned);
  multiply(own.hidden, n, AllOf{columns}, Left{hidden + at, kPanel, 1}, Right{scratch.turned, columns * kPanel, kPanel},
           Store{scratch.key_sums, sums_row, true});
  multiply(own.hidden, columns, AllOf{n}, Left{scratch.keys, 1, keys_row}, Right{logits, 0, kPanel},
           GatedSlope{scratch.slopes + at, hidden + at, columns});
}

// A block's slopes and gates, as the product over a group's pairs reads them.
static void gated_keep(const GatedAttentionCall& call, const GatedChunk& chunk, const GatedGroup& group,
                       const GatedBlock& block, int64_t side, const GatedScratch& scratch) {
  const int64_t hidden = call.sides[side].hidden, there = round_up(block.count, 2);
  const Layout layout = gated_slopes(call, group), of_gate = product_layout(call.bfloat16, call.gate);
  each_gated_panel(there, [&](int64_t p, int64_t, int64_t columns) {
    const float* const slopes = scratch.slopes + p * hidden * kPanel;
    for (int64_t r = 0; r < hidden; ++r) {
      for (int64_t j = 0; j < columns; j += V::width) {
        gated_store(call, layout, chunk.slopes + r * layout.ld, block.slope + p * kPanel + j,
                    V::load(slopes + r * kPanel + j), columns - j);
      }
    }
  });
  const int64_t row = pad_row(call.gate);
  for (int64_t g = 0; g < call.gate; g += kPanel) {
    float* const to = chunk.gates + g * layout.depth;
    const int64_t units = call.gate - g < kPanel ? call.gate - g : kPanel;
    for (int64_t c = 0; layout.pairs() && c < there; c += 2) {
      const float* const at = scratch.opened + c * row + g;
      for (int64_t j = 0; j < units; j += V::width) {
        V::store(to + (block.slope + c) / 2 * kPanel + j, pair_of(V::load(at + j), V::load(at + row + j)));
      }
    }
    if (layout.pairs()) continue;
    const float* const from = call.bfloat16 ? scratch.rounded : scratch.opened;
    for (int64_t c = 0; c < there; ++c) {
      for (int64_t j = 0; j < units; j += V::width) {
        V::store(to + (block.slope + c) * kPanel + j, V::load(from + c * of_gate.ld + g + j, units - j));
      }
    }
  }
}

// ∂L/∂ what the gates are sigmoids of, ∂L/∂o · o (1 − o), by slot, and what of it the own items' memories gain.
static void gated_open(const GatedAttentionCall& call, const GatedWeights& weights, const GatedChunk& chunk,
                       const GatedPair* pairs, int64_t count, int64_t side, float* memory,
                       const GatedScratch& scratch) {
  const int64_t hidden = call.sides[side].hidden, row = pad_row(call.gate);
  const Layout layout = product_layout(call.bfloat16, hidden);
  const float* const slopes = gated_operand(call, layout, scratch.slopes, hidden, count, scratch.packed);
  gated_multiply(layout, call.gate, count, weights.turned[side], slopes, GatedPanels{scratch.openings, call.gate});
  const F one = V::set(1.0f);
  for (int64_t c = 0; c < count; c += V::width) {
    const float* const from = scratch.openings + c / kPanel * call.gate * kPanel + c % kPanel;
    for (int64_t g = 0; g < call.gate; g += V::width) {
      F square[V::width];
      for (int64_t i = 0; i < V::width; ++i) {
        square[i] = g + i < call.gate ? V::load(from + (g + i) * kPanel) : V::zero();
      }
      V::transpose(square);
      for (int64_t i = 0; i < V::width && c + i < count; ++i) {
        const F o = V::load(scratch.opened + (c + i) * row + g);
        V::store(chunk.openings + pairs[c + i].slot * row + g, V::mul(square[i], V::mul(o, V::sub(one, o))));
      }
    }
  }
  if (memory == nullptr) return;
  const F share = V::set(call.shares[0]);
  each_gated_segment(pairs, count, side, [&](const GatedSegment& segment) {
    float* const to = memory + segment.item * call.gate;
    for (int64_t g = 0; g < call.gate; g += V::width) {
      F sum = V::zero();
      for (int64_t c = segment.first; c < segment.first + segment.count; ++c) {
        sum = V::add(sum, V::load(chunk.openings + pairs[c].slot * row + g));
      }
      V::store(to + g, V::fma(share, sum, V::load(to + g, call.gate - g)), call.gate - g);
    }
  });
}

static void gated_begin(const GatedAttentionCall& call, int64_t side, int64_t item, GatedScratch& scratch) {
  scratch.hold(call, side, item);
  gated_clear(scratch.key_sums, call.sides[side].hidden * pad_row(call.sides[side].length));
  gated_clear(scratch.value_sums, scratch.length * gated_row(call));
}

// Adds the sums of the item that is held to the gradients of the rows that it has.
static void gated_finish(const GatedAttentionCall& call, const GatedSideGradients& gradients, int64_t side,
                         const GatedScratch& scratch) {
  const GatedSide& of = call.sides[side];
  const int64_t n = scratch.length, first = scratch.item * of.length, sums_row = pad_row(of.length);
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
}

// From a word segment's attended vectors, rows, and v² to their gradients, of which v²'s is that of what its tanh was
// taken of.
static void gated_score_gradients(const GatedAttentionCall& call, const float* scores, const GatedChunk& chunk,
                                  const GatedPair* pairs, int64_t count, float* rows) {
  const int64_t row = gated_row(call);
  for (int64_t c = 0; c < count; ++c) {
    float *const v = chunk.rows + pairs[c].slot * row, *const t = rows + c * row;
    const GatedCosine cosine(v, t, call.dim);
    const F factor = V::set(scores[pairs[c].place] * cosine.scale), one = V::set(1.0f);
    const F of_v = V::set(-cosine.product * cosine.inverse_v), of_t = V::set(-cosine.product * cosine.inverse_t);
    for (int64_t k = 0; k < call.dim; k += V::width) {
      const F a = V::load(v + k), b = V::load(t + k);
      V::store(t + k, V::mul(factor, V::fma(of_t, b, a)));
      V::store(v + k, V::mul(V::mul(factor, V::fma(of_v, a, b)), V::sub(one, V::mul(a, a))));
    }
  }
}

// A task's blocks. Of regions h and the weights are there, and the gradients of what they attended to.
static void gated_differentiate(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                const GatedWeights& weights, const GatedChunk& chunk, int64_t side,
                                const GatedGroup& group, int64_t task, Workspace& workspace) {
  [[maybe_unused]] const Tiles tiles;
  GatedScratch scratch(call, true, workspace);
  const GatedSide& own = call.sides[side];
  const GatedSideGradients& to = gradients.sides[side];
  const GatedTask& blocks = chunk.orders[side].tasks[task];
  const int64_t row = gated_row(call);
  float *const biases = chunk.biases + task * pad_row(own.hidden), *const embedding = chunk.embedding + task * row;
  gated_clear(biases, pad_row(own.hidden));
  if (side == 0) gated_clear(embedding, row);
  for (int64_t at = blocks.first; at < blocks.first + blocks.count; ++at) {
    const GatedBlock& block = chunk.orders[side].blocks[at];
    const GatedPair* const pairs = chunk.orders[side].pairs + block.first;
    const float *hidden = scratch.hidden, *attention = scratch.attention;
    if (side == 0) {
      hidden = chunk.hidden + block.column * own.hidden;
      gated_gates(call, pairs, block.count, side, scratch);
    } else {
      gated_hidden(call, weights, pairs, block.count, side, scratch, scratch.hidden);
    }
    each_gated_segment(pairs, block.count, side, [&](const GatedSegment& segment) {
      if (segment.item != scratch.item) {
        if (scratch.item >= 0) gated_finish(call, to, side, scratch);
        gated_begin(call, side, segment.item, scratch);
      }
      const GatedPair* const of = pairs + segment.first;
      float* rows = scratch.rows;
      if (side == 0) {
        rows = chunk.rows + of->slot * row;
        attention = chunk.attention + block.column * own.length + segment.at(own.length);
        for (int64_t c = 0; c < segment.count; ++c) {
          for (int64_t k = 0; k < call.dim; k += V::width) {
            V::store(embedding + k, V::add(V::load(embedding + k), V::load(rows + c * row + k)));
          }
        }
      } else {
        gated_attend(call, side, segment, scratch, hidden, rows);
        gated_score_gradients(call, gradients.scores, chunk, of, segment.count, rows);
      }
      gated_segment_gradients(call, side, segment, rows, hidden, attention, scratch);
    });
    if (block.count % V::width != 0) {
      const int64_t last = block.count / V::width * V::width, left = block.count - last;
      float* const slopes = scratch.slopes + last / kPanel * own.hidden * kPanel + last % kPanel;
      for (int64_t r = 0; r < own.hidden; ++r) {
        V::store(slopes + r * kPanel, V::keep_first(V::load(slopes + r * kPanel), left));
      }
    }
    if (to.bias != nullptr) gated_row_sums(scratch.slopes, own.hidden, block.count, biases);
    if (to.weight != nullptr) gated_keep(call, chunk, group, block, side, scratch);
    if (gradients.sides[0].memory != nullptr || gradients.sides[1].memory != nullptr) {
      gated_open(call, weights, chunk, pairs, block.count, side, to.memory, scratch);
    }
  }
  gated_finish(call, to, side, scratch);
}

// Products of pairs are whole tiles deep: zeros behind the last.
static void gated_fill_up(const GatedAttentionCall& call, const GatedChunk& chunk, int64_t side,
                          const GatedGroup& group) {
  const Layout layout = gated_slopes(call, group);
  const int64_t used = group.slopes / 2, left = layout.depth - used;
  if (!layout.pairs() || left == 0) return;
  for (int64_t r = 0; r < call.sides[side].hidden; ++r) gated_clear(chunk.slopes + r * layout.ld + used, left);
  for (int64_t g = 0; g < call.gate; g += kPanel) {
    gated_clear(chunk.gates + g * layout.depth + used * kPanel, left * kPanel);
  }
}

// Some rows of ∂L/∂W = Σ slope · oᵀ, over a group's pairs: of a slice of them, whose panel the first cache holds, a
// panel after the other, each fetched during the one before.
static void gated_add_to_weights(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                 const GatedChunk& chunk, int64_t side, const GatedGroup& group, int64_t part) {
  [[maybe_unused]] const Tiles tiles;
  constexpr int64_t deep = 256;
  float* const to = gradients.sides[side].weight;
  if (to == nullptr) return;
  const int64_t hidden = call.sides[side].hidden, first = part * kGatedRows, left = hidden - first;
  const int64_t rows = left < kGatedRows ? left : kGatedRows;
  const Layout layout = gated_slopes(call, group);
  const float* const slopes = chunk.slopes + first * layout.ld;
  for (int64_t k = 0; k < layout.depth; k += deep) {
    const int64_t depth = layout.depth - k < deep ? layout.depth - k : deep;
    for (int64_t g = 0; g < call.gate; g += kPanel) {
      const int64_t columns = call.gate - g < kPanel ? call.gate - g : kPanel;
      const float* const panel = chunk.gates + g * layout.depth;
      const bool last = g + kPanel >= call.gate;
      const float* const next = last ? chunk.gates + (k + depth) * kPanel : panel + (layout.depth + k) * kPanel;
      const int64_t more = !last ? depth : layout.depth - k - depth < depth ? layout.depth - k - depth : depth;
      multiply_rows(layout, k, depth, rows, columns, slopes, layout.ld, panel,
                    {reinterpret_cast<const char*>(next), more * kPanel * static_cast<int64_t>(sizeof(float))},
                    GatedAdd{to + first * call.gate + g, call.gate, columns});
    }
  }
}

// Of W o + b, and of what is added to attended regions.
static void gated_add_to_biases(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                const GatedChunk& chunk, int64_t side) {
  const auto add = [&](const float* from, int64_t row, int64_t n, float* out) {
    for (int64_t k = 0; k < n && out != nullptr; k += V::width) {
      F sum = V::load(out + k, n - k);
      for (int64_t task = 0; task < chunk.orders[side].n_tasks; ++task) {
        sum = V::add(sum, V::load(from + task * row + k));
      }
      V::store(out + k, sum, n - k);
    }
  };
  add(chunk.biases, pad_row(call.sides[side].hidden), call.sides[side].hidden, gradients.sides[side].bias);
  if (side == 0) add(chunk.embedding, gated_row(call), call.dim, gradients.embedding_bias);
}

// Some units of the gate, of the other side's memories: Σ of openings over each item's pairs.
static void gated_add_to_memories(const GatedAttentionCall& call, const GatedAttentionGradients& gradients,
                                  const GatedChunk& chunk, int64_t side, int64_t part) {
  const int64_t other = 1 - side, row = pad_row(call.gate), first = part * kGatedRows;
  float* const memories = gradients.sides[other].memory;
  if (memories == nullptr) return;
  const int64_t end = first + kGatedRows < call.gate ? first + kGatedRows : call.gate;
  const F share = V::set(call.shares[1]);
  const GatedPair* const pairs = chunk.orders[other].pairs;
  for (int64_t at = 0, next = 0; at < chunk.pairs; at = next) {
    const int64_t item = pairs[at].items[other];
    while (next < chunk.pairs && pairs[next].items[other] == item) ++next;
    for (int64_t g = first; g < end; g += V::width) {
      F sum = V::zero();
      for (int64_t k = at; k < next; ++k) sum = V::add(sum, V::load(chunk.openings + pairs[k].slot * row + g));
      float* const to = memories + item * call.gate + g;
      V::store(to, V::fma(share, sum, V::load(to, end - g)), end - g);
    }
  }
}

extern const GatedAttentionKernels gated_attention_kernels;
const GatedAttentionKernels gated_attention_kernels = {
    gated_lay_out_weights, gated_lay_out,       gated_scratch,        gated_copy_weights,
    gated_attend_regions,  gated_attend_words,  gated_differentiate,  gated_fill_up,
    gated_add_to_weights,  gated_add_to_biases, gated_add_to_memories};

}  // namespace CROSSRET_ISA
}  // namespace crossret
