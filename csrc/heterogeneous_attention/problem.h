// Calls of heterogeneous attention and the entry points of its kernels under one instruction set.
#pragma once
#include "cross_attention/problem.h"
#include "pairs/workspace.h"

namespace crossret {

// One side's items as the first layer meets them in every pair (kernels.md §3): `width` rows each, the first
// lengths[item] of them valid.
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
  bool local;         // whether rows are matched; else the first row of either item
  bool words_attend;  // direction of the local matching
  CrossAttentionOptions matching;
  bool bfloat16;  // whether products take pairs of bfloat16, where the processor has them
  float* scores;  // (images, captions)
};

// Successive captions whose words are packed as columns of one block.
struct CaptionBlock {
  int64_t first, count;  // captions
  int64_t words;         // of all of them
  int64_t longest;       // words of the longest
  void* memory;          // packed rows
};

// Gradients of one side's items, laid out as `FirstLayer`. Kernels add to them.
struct FirstLayerGradients {
  float *queries, *keys, *values, *own_logits, *own_values;
};

struct HeterogeneousGradients {
  const float* scores;
  FirstLayerGradients images, captions;
};

constexpr int64_t kChunkImages = 16;

// Up to kChunkImages images whose pairs with a block are differentiated together.
struct ImageChunk {
  const int64_t* images;
  int64_t count;
  char* kept;      // what captions' gradients need of every image
  int64_t stride;  // bytes from image to image
  float* norms;    // gradients of the normalisation's weight and bias, (count, 2, dim)
};

struct HeterogeneousKernels {
  // Packs a block of captions; counts bytes where the workspace has no memory.
  void (*pack)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  // Scores of one image with a block.
  void (*forward)(const HeterogeneousCall&, const CaptionBlock&, int64_t image, Workspace&);
  // Gradients of the k-th image of a chunk; then of the k-th caption of a block.
  void (*image_gradients)(const HeterogeneousCall&, const CaptionBlock&, const HeterogeneousGradients&,
                          const ImageChunk&, int64_t k, Workspace&);
  void (*caption_gradients)(const HeterogeneousCall&, const CaptionBlock&, const HeterogeneousGradients&,
                            const ImageChunk&, int64_t k, Workspace&);
  // Workspace that each takes, counted.
  void (*forward_memory)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  void (*gradient_memory)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  void (*kept_memory)(const HeterogeneousCall&, const CaptionBlock&, Workspace&);
  void (*caption_memory)(const HeterogeneousCall&, const CaptionBlock&, int64_t images, Workspace&);
};

}  // namespace crossret
