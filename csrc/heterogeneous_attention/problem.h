// What heterogeneous attention's kernels are given, and their entry points under one instruction set.
#pragma once
#include "cross_attention/problem.h"
#include "pairs/workspace.h"

namespace crossret {

// What the first layer makes of the items of one side by themselves (kernels.md §3), `width` rows of each, the first
// lengths[item] of which are valid.
struct FirstLayer {
  const float *queries, *keys;  // (items, width, dim), heads side by side
  const float* values;          // (items, width, heads, dim)
  const float* own_logits;      // (items, width, heads)
  const float* own_values;      // (items, width, heads + 1, dim)
  const int64_t* lengths;
  int64_t count, width, longest;
};

struct HeterogeneousCall {
  FirstLayer images, captions;
  int64_t heads, dim;
  const float *norm_weight, *norm_bias;
  float lambda_attention;
  bool local;         // else the first row of either item alone is matched
  bool words_attend;  // in the local matching
  CrossAttentionOptions matching;
  bool bfloat16;  // whether products are of it, where the processor has them
  float* scores;  // (images, captions)
};

// Successive captions whose words are packed tight as columns.
struct CaptionBlock {
  int64_t first, count;
  int64_t words;
  int64_t longest;
  void* memory;  // of what is packed
};

// Where gradients of a side's items go, laid out as they are; each gains what the pairs of a task bring.
struct FirstLayerGradients {
  float *queries, *keys, *values, *own_logits, *own_values;
};

struct HeterogeneousGradients {
  const float* scores;
  FirstLayerGradients images, captions;
};

constexpr int64_t kChunkImages = 16;

// At most kChunkImages images whose pairs with a block are differentiated together: what their captions' gradients take
// of each is kept, `stride` bytes for every image.
struct ImageChunk {
  const int64_t* images;
  int64_t count;
  char* kept;
  int64_t stride;
  float* norms;  // gradients of the normalisation's weight and bias, (count, 2, dim)
};

struct HeterogeneousKernels {
  // Packs a block of captions. Each function only counts bytes where the workspace has no memory.
  void (*pack)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  // The scores of one image with a block.
  void (*forward)(const HeterogeneousCall&, const CaptionBlock&, int64_t image, Workspace&);
  // Gradients of the k-th image of a chunk, and what those of its captions take; then of the k-th caption of a block.
  void (*image_gradients)(const HeterogeneousCall&, const CaptionBlock&, const HeterogeneousGradients&,
                          const ImageChunk&, int64_t k, Workspace&);
  void (*caption_gradients)(const HeterogeneousCall&, const CaptionBlock&, const HeterogeneousGradients&,
                            const ImageChunk&, int64_t k, Workspace&);
  void (*forward_memory)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  void (*gradient_memory)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  void (*kept_memory)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  void (*caption_memory)(const HeterogeneousCall&, const CaptionBlock&, int64_t images, Workspace&);
};

}  // namespace crossret
