// What gated attention's kernels are given, how they hold a chunk of pairs, and their entry points under one
// instruction set.
//
//   chunk  so many images and so many captions, whose pairs are held together
//   block  columns of a step: one item of a side is its own side's rows, the pairs with items of the other are columns
#pragma once
#include "pairs/side.h"
#include "pairs/workspace.h"

namespace crossret {

// One modality, of what is made of its items alone: a row's logit is its key times h = tanh(W o + b).
struct GatedSide {
  const float *keys, *values, *memory;  // (count, length, hidden), (count, length, dim), (count, gate)
  const bool* mask;                     // (count, length)
  const float *weight, *bias;           // W (hidden, gate) and b of this side's step
  int64_t count, length, hidden;
};

// The last level of SMAN (Eqs. 12–20): the cosine of v² and t² of all pairs.
struct GatedAttentionCall {
  GatedSide sides[2];  // regions, words
  const float* embedding_bias;
  int64_t gate, dim;
  float shares[2];  // of the own and of the other memory: α, 1 − α
  bool bfloat16;    // whether products with W take bfloat16
};

// Where gradients go, and null where they are not wanted; all are zero to begin with.
struct GatedSideGradients {
  float *keys, *values, *memory, *weight, *bias;
};
struct GatedAttentionGradients {
  const float* scores;  // ∂L/∂scores (images, captions)
  GatedSideGradients sides[2];
  float* embedding_bias;
};

// A chunk of pairs and its memory. A pair has a place in `rows`, image by image; panels are those of products.
struct GatedChunk {
  int64_t first[2], count[2];  // items of either side
  float* weights[2];           // W as the left-hand side of products, and …
  float* turned[2];            // … transposed, of gradients alone
  float* memories[2];          // the other share of the items' memories, as the columns of panels
  float* rows;                 // v² of every pair; then ∂L/∂ what the regions' tanh was taken of

  // Of gradients alone: of regions from one phase to the next, …
  float *hidden, *attention;  // h and the weights of every image, panels
  // … and of the side whose items are the own ones at the time.
  float* slopes;     // ∂L/∂(W o + b): a row of all pairs for each hidden unit
  float* gates;      // o, as the right-hand side of the product with these rows
  float* openings;   // ∂L/∂ what the gate's sigmoid was taken of: panels of every own item
  float* biases;     // Σ of every own item's slopes
  float* embedding;  // … and of its rows

  int64_t pairs() const { return count[0] * count[1]; }
};

struct GatedAttentionKernels {
  // Lays out a chunk as large as `count` says; `scratch` is what a task takes.
  void (*lay_out)(const GatedAttentionCall&, bool gradients, GatedChunk&, Workspace&);
  void (*scratch)(const GatedAttentionCall&, bool gradients, const GatedChunk&, Workspace&);
  // Once a call: some rows of either W.
  void (*copy_weights)(const GatedAttentionCall&, const GatedChunk&, int64_t side, int64_t part);
  // Phases of a chunk, a task each.
  void (*prepare)(const GatedAttentionCall&, const GatedChunk&, int64_t side);
  void (*attend_regions)(const GatedAttentionCall&, const GatedChunk&, int64_t image, int64_t block, Workspace&);
  void (*attend_words)(const GatedAttentionCall&, const GatedChunk&, float* scores, int64_t caption, int64_t block,
                       Workspace&);
  void (*differentiate_words)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedChunk&,
                              int64_t caption, Workspace&);
  void (*differentiate_regions)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedChunk&,
                                int64_t image, Workspace&);
  void (*add_to_weights)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedChunk&, int64_t side,
                         int64_t part);
  void (*add_to_memories)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedChunk&, int64_t side,
                          int64_t part);
};

constexpr int64_t kGatedColumns = 64;  // of a block
constexpr int64_t kGatedRows = 64;     // of W, that a task copies or gives gradients to; units of the gate likewise

}  // namespace crossret
