// Gradients of what the first layer has of an image and of captions, in two steps: for an image and a block of captions
// all that either takes is made, and the image's gradients gain their part; for a caption and some images then its own.
// Whoever computes them adds up in one order.
#pragma once
#include "heterogeneous_attention/forward.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Of an image and a block.
struct KeptImage {
  float* region_logits;           // ∂L/∂logits, as `LayerScratch` has weights
  float *word_logits, *word_own;  // the latter of the words' own items
  float *regions, *words;         // ∂L/∂rows ahead of their normalisation: (captions, queries) rows; rows

  KeptImage(const HeterogeneousCall& call, const CaptionBlock& block, const LayerScratch& layer, Workspace& kept) {
    const int64_t ld = layered_row(call);
    region_logits = kept.floats(layer.n_queries * call.heads * layer.key_row);
    word_logits = kept.floats(call.images.longest * call.heads * layer.query_row);
    word_own = kept.floats(call.heads * layer.query_row);
    regions = kept.floats(block.count * layer.n_queries * ld);
    words = kept.floats(layer.query_row * ld);
  }
};

struct GradientScratch {
  LayerScratch layer;
  KeptImage kept;
  float *words, *regions, *unit_words, *unit_regions;
  float *word_pairs, *region_pairs;
  float *word_forms, *region_forms;
  RowForm *forms_of_words, *forms_of_regions;
  float* own_dots;     // ∂L/∂ the weights of queries' own items
  float* value_pairs;  // of either item
  DotScratch dots;
  PairedFactors factors;
  MatchScratch match;

  GradientScratch(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& memory, Workspace& kept_memory)
      : layer(call, block, memory, kept_memory),
        kept(call, block, layer, kept_memory),
        dots(call, call.images.longest * call.heads, layer.key_row, memory),
        factors(call, call.images.longest * call.heads, call.dim, layer.key_row, memory),
        match(call, true, memory) {
    const int64_t ld = layered_row(call), regions_of = layer.n_queries, words_of = layer.query_row;
    words = memory.floats(words_of * ld);
    regions = memory.floats(kTogether * regions_of * ld);
    unit_words = memory.floats(words_of * ld);
    unit_regions = memory.floats(regions_of * ld);
    word_pairs = memory.floats((words_of + Tiles::rows) * unit_pair_row(call));
    region_pairs = memory.floats(read_rows(regions_of) * unit_pair_row(call));
    word_forms = memory.floats(words_of + V::width);
    region_forms = memory.floats(pad_columns(regions_of));
    forms_of_words = reinterpret_cast<RowForm*>(memory.floats(3 * words_of));
    forms_of_regions = reinterpret_cast<RowForm*>(memory.floats(3 * regions_of));
    own_dots = memory.floats(call.heads * (regions_of > words_of ? regions_of : words_of) + V::width);
    const int64_t longest = call.images.longest > block.longest ? call.images.longest : block.longest;
    value_pairs = memory.floats(read_rows(longest * call.heads) * unit_pair_row(call));
  }
};

static void count_gradients(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& memory) {
  Workspace kept;
  GradientScratch(call, block, memory, kept);
}

static void count_kept(const HeterogeneousCall& call, const CaptionBlock& block, Workspace& kept) {
  Workspace memory;
  GradientScratch(call, block, memory, kept);
}

// Epilogue: C, `columns` wide, gains the product times a factor.
struct AddScaled {
  float* c;
  int64_t ld, columns;
  float factor;

  template <int MR, int NV>
  __attribute__((always_inline)) void take(int64_t m, int64_t n, F (&sums)[MR][NV]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) {
        const int64_t left = columns - n - j * V::width;
        float* const out = c + (m + i) * ld + n + j * V::width;
        V::store(out, V::fma(V::set(factor), sums[i][j], V::load(out, left)), left);
      }
    }
  }
};

// Σ A · B over several, each B in place, added up in registers.
struct Term {
  Left a;
  const float* b;
  int64_t k, depth;
};

template <class Find>
struct SumOfProducts {
  int64_t count;
  const Find& find;  // the i-th term
  AddScaled out;

  template <int MR, int NV>
  __attribute__((noinline)) void tile(int64_t m, int64_t n) const {
    F sums[MR][NV];
    clear_tile(sums);
    for (int64_t i = 0; i < count; ++i) {
      const Term term = find(i);
      add_to_tile<Floats, false>(sums, term.depth, {term.a.data + m * term.a.row, term.a.row, term.a.k}, term.b + n,
                                 term.k, {});
    }
    out.take(m, n, sums);
  }
};

template <class Find>
static void add_products(int64_t rows, int64_t columns, int64_t count, const Find& find, const AddScaled& out) {
  for_each_tile(rows, columns, SumOfProducts<Find>{count, find, out});
}

// From ∂L/∂ rows of unit length to those ahead of the normalisation, in place; (2, dim) `norms` gain the gradients of
// its weight and bias.
static void unit_row_gradients(const HeterogeneousCall& call, const float* rows, const float* units,
                               const RowForm* forms, int64_t n, int64_t ld, float* grads, float* norms) {
  const int64_t dim = call.dim;
  const float share = 1.0f / static_cast<float>(dim);
  for (int64_t r = 0; r < n; ++r, rows += ld, units += ld, grads += ld) {
    const float along =
        sum_along(dim, [&](int64_t k, F sum) { return V::fma(V::load(units + k), V::load(grads + k), sum); });
    const F back = V::set(-along), inverse = V::set(forms[r].inverse);
    const F mean = V::set(forms[r].mean), scale = V::set(forms[r].scale);
    F products[2] = {V::zero(), V::zero()};
    const F shift = V::set(share * sum_along(dim, [&](int64_t k, F sum) {
                             const int64_t left = dim - k;
                             const F dy = V::mul(V::fma(V::load(units + k), back, V::load(grads + k)), inverse);
                             const F x = V::mul(V::sub(V::load(rows + k), mean), scale),
                                     dx = V::mul(dy, V::load(call.norm_weight + k, left));
                             V::store(norms + k, V::fma(dy, x, V::load(norms + k, left)), left);
                             V::store(norms + dim + k, V::add(dy, V::load(norms + dim + k, left)), left);
                             products[k / V::width % 2] = V::fma(dx, x, products[k / V::width % 2]);
                             V::store(grads + k, dx);
                             return V::add(sum, dx);
                           }));
    const F tilt = V::set(V::reduce_add(V::add(products[0], products[1])) * share);
    for (int64_t k = 0; k < dim; k += V::width) {
      const F x = V::mul(V::sub(V::load(rows + k), mean), scale);
      V::store(grads + k, V::mul(scale, V::sub(V::sub(V::load(grads + k), shift), V::mul(x, tilt))));
    }
  }
}

// ⟨row, own values⟩ of each head, those `step` apart.
static void own_products(const HeterogeneousCall& call, const float* row, const float* own, float* out, int64_t step) {
  for (int64_t h = 0; h < call.heads; ++h, own += call.dim) {
    out[h * step] = sum_along(call.dim, [&](int64_t k, F sum) {
      return V::fma(V::load(row + k, call.dim - k), V::load(own + k, call.dim - k), sum);
    });
  }
}

// The own values' gradients of one row gain its gradients in `count` pairs, grad(i), by weight(i, h).
template <class Grad, class Weight>
static void add_own_values(const HeterogeneousCall& call, int64_t count, const Grad& grad, const Weight& weight,
                           float* out) {
  for (int64_t k = 0; k < call.dim; k += V::width) {
    const int64_t left = call.dim - k;
    for (int64_t h = 0; h <= call.heads; ++h) {
      float* const at = out + h * call.dim + k;
      F sum = V::load(at, left);
      for (int64_t i = 0; i < count; ++i) {
        sum = V::fma(V::set(h < call.heads ? weight(i, h) : 1.0f), V::load(grad(i) + k, left), sum);
      }
      V::store(at, sum, left);
    }
  }
}

// Of `softmax_across`: ∂L/∂logits in place of ∂L/∂weights; the own logits' gradients gain theirs.
static void softmax_across_gradients(const float* weights, float* grads, int64_t ld, int64_t rows, int64_t n,
                                     const float* own_weights, const float* own_dots, float* own_grads) {
  for (int64_t first = 0; first < rows; first += V::width, weights += V::width * ld, grads += V::width * ld) {
    const int64_t count = rows - first < V::width ? rows - first : V::width;
    F parts[V::width];
#pragma GCC unroll 16
    for (int i = 0; i < V::width; ++i) {
      parts[i] = V::zero();
      if (i >= count) continue;
      for (int64_t j = 0; j < n; j += V::width) {
        parts[i] = V::fma(V::load(weights + i * ld + j, n - j), V::load(grads + i * ld + j, n - j), parts[i]);
      }
    }
    const F own = V::load(own_weights + first, count), own_dot = V::load(own_dots + first, count);
    const F dot = V::fma(own, own_dot, sum_rows(parts));
    const F of_own = V::fma(own, V::sub(own_dot, dot), V::load(own_grads + first, count));
    V::store(own_grads + first, of_own, count);
    alignas(64) float dots[V::width];
    V::store(dots, dot);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < n; j += V::width) {
        float* const at = grads + i * ld + j;
        const F weight = V::load(weights + i * ld + j, n - j);
        V::store(at, V::mul(weight, V::sub(V::load(at, n - j), V::set(dots[i]))), n - j);
      }
    }
  }
}

// The same of `softmax_down`.
static void softmax_down_gradients(const float* weights, float* grads, int64_t step, int64_t n, int64_t columns,
                                   const float* own_weights, const float* own_dots, float* own_grads) {
  for (int64_t j = 0; j < columns; j += V::width) {
    const F own = V::load(own_weights + j), own_dot = V::load(own_dots + j);
    F dot = V::mul(own, own_dot);
    for (int64_t r = 0; r < n; ++r) dot = V::fma(V::load(weights + r * step + j), V::load(grads + r * step + j), dot);
    V::store(own_grads + j, V::mul(own, V::sub(own_dot, dot)));
    for (int64_t r = 0; r < n; ++r) {
      float* const at = grads + r * step + j;
      V::store(at, V::mul(V::load(weights + r * step + j), V::sub(V::load(at), dot)));
    }
  }
}

static void image_gradients(const HeterogeneousCall& call, const CaptionBlock& block, const HeterogeneousGradients& out,
                            const ImageChunk& chunk, int64_t k, Workspace& memory) {
  const Tiles configured;
  const PackedCaptions packed = packed_of(call, block);
  Workspace kept_memory(chunk.kept + k * chunk.stride);
  GradientScratch scratch(call, block, memory, kept_memory);
  const LayerScratch& layer = scratch.layer;
  const KeptImage& kept = scratch.kept;
  const int64_t image = chunk.images[k], first = image * call.images.width, rows = call.images.lengths[image];
  const int64_t heads = call.heads, dim = call.dim, size = head_size(call), ld = packed.ld;
  const int64_t n = call.local ? rows : 1, key_row = layer.key_row, query_row = layer.query_row;
  const int64_t own_of_caption = round_up(layer.n_queries * heads, V::width);
  float* const norms = chunk.norms + k * 2 * dim;
  for (int64_t i = 0; i < 2 * dim; i += V::width) V::store(norms + i, V::zero(), 2 * dim - i);

  weigh_across(call, block, packed, image, layer);
  word_rows(call, packed, image, layer, scratch.words);
  unit_rows(call, scratch.words, packed.n_queries, ld, scratch.unit_words, scratch.word_pairs, scratch.word_forms,
            scratch.forms_of_words);
  each_caption(call, block, [&](int64_t caption, int64_t key, int64_t query, int64_t queries) {
    const int64_t c = caption - block.first, words = call.captions.lengths[caption];
    const float* const values = call.captions.values + caption * call.captions.width * heads * dim;
    float* const regions = kept.regions + c * layer.n_queries * ld;
    const float* const rows_of_regions = region_rows(call, block, packed, image, c, key, layer, scratch.regions);
    unit_rows(call, rows_of_regions, n, ld, scratch.unit_regions, scratch.region_pairs, scratch.region_forms,
              scratch.forms_of_regions);
    match_gradients(call, matched_rows(call, scratch.unit_regions, scratch.region_pairs, scratch.region_forms, 0, n),
                    matched_rows(call, scratch.unit_words, scratch.word_pairs, scratch.word_forms, query, queries),
                    out.scores[image * call.captions.count + caption], regions, kept.words + query * ld, scratch.match);
    unit_row_gradients(call, rows_of_regions, scratch.unit_regions, scratch.forms_of_regions, n, ld, regions, norms);
    for (int64_t r = 0; r < n; ++r) {
      own_products(call, regions + r * ld, layer.region_rows[r], scratch.own_dots + r * heads, 1);
    }
    const MatchedRows of_regions = as_rows(call, regions, n, ld, scratch.region_pairs);
    for (int64_t h = 0; h < heads; ++h) {
      row_dots(call, of_regions, as_rows(call, values + h * dim, words, heads * dim, scratch.value_pairs), scratch.dots,
               kept.region_logits + h * key_row + key, heads * key_row);
    }
    softmax_across_gradients(layer.region_weights + key, kept.region_logits + key, key_row, n * heads, words,
                             layer.region_own + c * own_of_caption, scratch.own_dots,
                             out.images.own_logits + first * heads);
  });

  unit_row_gradients(call, scratch.words, scratch.unit_words, scratch.forms_of_words, packed.n_queries, ld, kept.words,
                     norms);
  for (int64_t q = 0; q < packed.n_queries; ++q) {
    own_products(call, kept.words + q * ld, layer.word_rows[q], scratch.own_dots + q, query_row);
  }
  row_dots(call, as_rows(call, call.images.values + first * heads * dim, rows * heads, dim, scratch.value_pairs),
           as_rows(call, kept.words, packed.n_queries, ld, scratch.word_pairs), scratch.dots, kept.word_logits,
           query_row);
  for (int64_t h = 0; h < heads; ++h) {
    softmax_down_gradients(layer.word_weights + h * query_row, kept.word_logits + h * query_row, heads * query_row,
                           rows, packed.n_queries, layer.word_own + h * query_row, scratch.own_dots + h * query_row,
                           kept.word_own + h * query_row);
    const int64_t own = first * dim + h * size;
    multiply_placed(call, rows, size, packed.n_queries, {kept.word_logits + h * query_row, heads * query_row, 1},
                    packed.queries + h * size, ld, scratch.factors,
                    AddScaled{out.images.keys + own, dim, size, call.lambda_attention});
    multiply_placed(call, n, size, packed.n_keys, {kept.region_logits + h * key_row, heads * key_row, 1},
                    packed.keys + h * size, ld, scratch.factors,
                    AddScaled{out.images.queries + own, dim, size, call.lambda_attention});
  }
  multiply_placed(call, rows * heads, dim, packed.n_queries, {layer.word_weights, query_row, 1}, kept.words, ld,
                  scratch.factors, AddScaled{out.images.values + first * heads * dim, dim, dim, 1.0f});
  for (int64_t r = 0; r < n; ++r) {
    add_own_values(
        call, block.count, [&](int64_t c) { return kept.regions + (c * layer.n_queries + r) * ld; },
        [&](int64_t c, int64_t h) { return layer.region_own[c * own_of_caption + r * heads + h]; },
        out.images.own_values + (first + r) * (heads + 1) * dim);
  }
}

// What a caption's gradients have of one image.
struct ImageTerm {
  const float* weights;  // (count, heads, row)
  const float* rows;     // (count, ld)
  int64_t count;
};

struct CaptionScratch {
  PairedFactors factors;  // of so many images, one behind the other
  const float** rows;

  CaptionScratch(const HeterogeneousCall& call, const CaptionBlock& block, int64_t images, Workspace& memory)
      : factors(call, block.longest, call.dim, depth_of(call, images), memory),
        rows(reinterpret_cast<const float**>(
            memory.floats(layered_pairs(call) ? 4 * paired_depth(depth_of(call, images)) : 0))) {}

 private:
  static int64_t depth_of(const HeterogeneousCall& call, int64_t images) {
    return images * round_up(call.images.longest, 2);
  }
};

static void count_of_caption(const HeterogeneousCall& call, const CaptionBlock& block, int64_t images,
                             Workspace& memory) {
  CaptionScratch(call, block, images, memory);
}

// out (n, heads, …) gains Σ weightsᵀ · rows over images: of every head its part of the rows, or the whole of them. As
// pairs these are one product, whose depth is that of all images, each begun by a pair of its own.
template <class Find>
static void add_of_images(const HeterogeneousCall& call, int64_t n, int64_t row, bool parts, int64_t images,
                          const Find& find, float* out, const CaptionScratch& scratch) {
  const int64_t heads = call.heads, size = parts ? head_size(call) : call.dim, ld = layered_row(call);
  const auto destination = [&](int64_t h) {
    return AddScaled{out + h * size, parts ? call.dim : heads * size, size, 1.0f};
  };
  if (!layered_pairs(call)) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto of_head = [&](int64_t i) {
        const ImageTerm term = find(i);
        const Left weights{term.weights + h * row, 1, heads * row};
        return Term{weights, term.rows + (parts ? h * size : 0), ld, term.count};
      };
      add_products(n, size, images, of_head, destination(h));
    }
    return;
  }
  int64_t depth = 0;
  for (int64_t i = 0; i < images; ++i) {
    const ImageTerm term = find(i);
    for (int64_t r = 0; r < round_up(term.count, 2); ++r) {
      scratch.rows[depth++] = r < term.count ? term.rows + r * ld : nullptr;
    }
  }
  const int64_t places = paired_depth(depth), row_of_pairs = pad_row(places);
  while (depth < 2 * places) scratch.rows[depth++] = nullptr;
  for (int64_t h = 0; h < heads; ++h) {
    int64_t place = 0;
    for (int64_t i = 0; i < images; ++i) {
      const ImageTerm term = find(i);
      const int64_t own = i + 1 < images ? round_up(term.count, 2) / 2 : places - place;
      pair_left({term.weights + h * row, 1, heads * row}, n, term.count, own, scratch.factors.rows + place,
                row_of_pairs);
      place += own;
    }
    const auto part = [&](int64_t k) { return scratch.rows[k] ? scratch.rows[k] + (parts ? h * size : 0) : nullptr; };
    if (parts || h == 0) rows_to_panels(true, part, size, places, scratch.factors.panels);
    multiply_either(true, n, size, places, {scratch.factors.rows, row_of_pairs, 1},
                    {scratch.factors.panels, places * kPanel, kPanel}, destination(h));
  }
}

static void caption_gradients(const HeterogeneousCall& call, const CaptionBlock& block,
                              const HeterogeneousGradients& out, const ImageChunk& chunk, int64_t k,
                              Workspace& caption_memory) {
  const Tiles configured;
  const CaptionScratch scratch(call, block, chunk.count, caption_memory);
  const int64_t heads = call.heads, dim = call.dim, ld = layered_row(call);
  const int64_t caption = block.first + k, first = caption * call.captions.width;
  const int64_t words = call.captions.lengths[caption], queries = call.local ? words : 1;
  int64_t key = 0, query = 0;
  for (int64_t other = block.first; other < caption; ++other) {
    key += call.captions.lengths[other];
    query += call.local ? call.captions.lengths[other] : 1;
  }
  struct {
    ImageTerm values, keys, queries;
    const float *words, *word_own, *own_logits;
  } of[kChunkImages];
  int64_t key_row = 0, query_row = 0;
  for (int64_t i = 0; i < chunk.count; ++i) {
    Workspace memory, kept_memory(chunk.kept + i * chunk.stride);
    const LayerScratch layer(call, block, memory, kept_memory);
    const KeptImage kept(call, block, layer, kept_memory);
    key_row = layer.key_row, query_row = layer.query_row;
    const int64_t rows = call.images.lengths[chunk.images[i]], n = call.local ? rows : 1;
    of[i] = {{layer.region_weights + key, kept.regions + k * layer.n_queries * ld, n},
             {kept.region_logits + key, layer.queries, n},
             {kept.word_logits + query, layer.keys, rows},
             kept.words + query * ld,
             layer.word_own + query,
             kept.word_own + query};
  }
  add_of_images(
      call, words, key_row, false, chunk.count, [&](int64_t i) { return of[i].values; },
      out.captions.values + first * heads * dim, scratch);
  add_of_images(
      call, words, key_row, true, chunk.count, [&](int64_t i) { return of[i].keys; }, out.captions.keys + first * dim,
      scratch);
  add_of_images(
      call, queries, query_row, true, chunk.count, [&](int64_t i) { return of[i].queries; },
      out.captions.queries + first * dim, scratch);
  for (int64_t q = 0; q < queries; ++q) {
    for (int64_t h = 0; h < heads; ++h) {
      float& of_own = out.captions.own_logits[(first + q) * heads + h];
      for (int64_t i = 0; i < chunk.count; ++i) of_own += of[i].own_logits[h * query_row + q];
    }
    add_own_values(
        call, chunk.count, [&](int64_t i) { return of[i].words + q * ld; },
        [&](int64_t i, int64_t h) { return of[i].word_own[h * query_row + q]; },
        out.captions.own_values + (first + q) * (heads + 1) * dim);
  }
}

extern const HeterogeneousKernels heterogeneous_kernels;
const HeterogeneousKernels heterogeneous_kernels = {pack_captions,     heterogeneous_forward, image_gradients,
                                                    caption_gradients, count_forward,         count_gradients,
                                                    count_kept,        count_of_caption};

}  // namespace CROSSRET_ISA
}  // namespace crossret
