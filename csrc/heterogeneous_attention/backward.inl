// Gradients of the first layer's inputs, in two steps: `image_gradients` takes an image and a block of captions, adds
// to the image's gradients and keeps what the captions' need; `caption_gradients` takes a caption and the images of a
// chunk. Sums have one order whatever thread computes them.
#pragma once
#include "heterogeneous_attention/forward.inl"

namespace crossret {
namespace CROSSRET_ISA {

// Gradients of an image and a block that are kept between the steps.
struct KeptImage {
  float *region_logits, *word_logits;  // ∂L/∂logits, laid out as the weights
  float* word_own;                     // ∂L/∂ the words' own logits, (heads, query_row)
  float *regions, *words;              // ∂L/∂rows ahead of normalisation: (captions, queries) rows; rows

  KeptImage(const HeterogeneousCall& call, const CaptionBlock& block, const LayerScratch& layer, Workspace& kept) {
    const int64_t ld = layered_row(call);
    region_logits = kept.floats(layer.n_queries * call.heads * layer.key_row);
    word_logits = kept.floats(call.images.longest * call.heads * layer.query_row);
    word_own = kept.floats(call.heads * layer.query_row);
    regions = kept.floats(block.count * layer.n_queries * ld);
    words = kept.floats(layer.query_row * ld);
  }
};

// Workspace of `image_gradients`.
struct GradientScratch {
  LayerScratch layer;
  KeptImage kept;
  float *words, *regions, *unit_words, *unit_regions;
  float *word_pairs, *region_pairs;
  float *word_forms, *region_forms;
  RowForm *forms_of_words, *forms_of_regions;
  float* own_dots;     // ∂L/∂ the own weights
  float* value_pairs;  // values of either item as pairs of bfloat16
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

// out[h * step] = row · own value of head h.
static void own_products(const HeterogeneousCall& call, const float* row, const float* own, float* out, int64_t step) {
  for (int64_t h = 0; h < call.heads; ++h, own += call.dim) {
    out[h * step] = sum_along(call.dim, [&](int64_t k, F sum) {
      return V::fma(V::load(row + k, call.dim - k), V::load(own + k, call.dim - k), sum);
    });
  }
}

// out (heads + 1, dim), the gradients of one row's own values, gain Σ weight(i, h) · grad(i) over `count` pairs; the
// residual's weight is 1.
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

// One image's term of a caption's gradients: weightsᵀ · rows.
struct ImageTerm {
  const float* weights;  // (count, heads, row)
  const float* rows;     // (count, ld)
  int64_t count;
};

// Workspace of `caption_gradients`.
struct CaptionScratch {
  PairedFactors factors;  // of all images of a chunk
  const float** rows;     // addresses of their rows

  CaptionScratch(const HeterogeneousCall& call, const CaptionBlock& block, int64_t images, Workspace& memory)
      : factors(call, block.longest, call.dim, depth_of(call, images), memory),
        rows(memory.addresses<const float>(layered_pairs(call) ? 2 * paired_depth(depth_of(call, images)) : 0)) {}

 private:
  static int64_t depth_of(const HeterogeneousCall& call, int64_t images) {
    return images * round_up(call.images.longest, 2);
  }
};

static void count_of_caption(const HeterogeneousCall& call, const CaptionBlock& block, int64_t images,
                             Workspace& memory) {
  CaptionScratch(call, block, images, memory);
}

// out (n, heads, …) gains Σ weightsᵀ · rows over images: each head takes its part of the rows, or with `parts` false
// whole rows. As pairs of bfloat16 this is one product as deep as all images, each beginning with a pair of its own.
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
  struct Terms {
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
  const auto add = [&](int64_t n, int64_t row, bool parts, ImageTerm Terms::* term, float* to) {
    add_of_images(call, n, row, parts, chunk.count, [&](int64_t i) { return of[i].*term; }, to, scratch);
  };
  add(words, key_row, false, &Terms::values, out.captions.values + first * heads * dim);
  add(words, key_row, true, &Terms::keys, out.captions.keys + first * dim);
  add(queries, query_row, true, &Terms::queries, out.captions.queries + first * dim);
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
