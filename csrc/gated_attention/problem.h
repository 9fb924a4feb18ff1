// What gated attention's kernels are given, how they hold a chunk of pairs, and their entry points under one
// instruction set.
//
//   chunk  pairs that are held together
//   block  successive pairs of a side's order, own item by own item, which are the columns of its products with W
//   task   successive blocks that hold all pairs of their own items
//   group  successive tasks whose share of the gradients of W is one product
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

// The last level of SMAN (Eqs. 12–20): the cosine of v² and t², of all pairs or of listed ones.
struct GatedAttentionCall {
  GatedSide sides[2];  // regions, words
  const float* embedding_bias;
  const int64_t* pairs;  // (n_pairs, 2), images and captions; null: all, whose scores are (images, captions)
  int64_t n_pairs;
  int64_t gate, dim;
  float shares[2];  // of the own and of the other memory: α, 1 − α
  bool bfloat16;    // whether products with W take bfloat16
};

// Where gradients go, and null where they are not wanted; all are zero to begin with.
struct GatedSideGradients {
  float *keys, *values, *memory, *weight, *bias;
};
struct GatedAttentionGradients {
  const float* scores;  // ∂L/∂scores
  GatedSideGradients sides[2];
  float* embedding_bias;
};

struct GatedPair {
  int64_t items[2];  // the image and the caption
  int64_t place;     // of its score
  int64_t slot;      // of what a chunk holds of it: the pairs' order by their images
};

struct GatedBlock {
  int64_t first, count;  // of the pairs in its side's order
  int64_t column;        // of the first, in panels: every block begins one
  int64_t slope;         // of the first, in its group's matrix of slopes: even, for pairs of bfloat16
};

struct GatedTask {
  int64_t first, count;  // of blocks
};

struct GatedGroup {
  int64_t first, count;  // of tasks
  int64_t slopes;        // of all their blocks
};

// A side's order of a chunk's pairs.
struct GatedOrder {
  const GatedPair* pairs;
  const GatedBlock* blocks;
  const GatedTask* tasks;
  const GatedGroup* groups;
  int64_t n_blocks, n_tasks, n_groups;
  int64_t columns;      // of all blocks
  int64_t most_slopes;  // of a group
};

// A chunk of pairs and its memory; panels are those of products.
struct GatedChunk {
  GatedOrder orders[2];  // own items are images, captions
  int64_t pairs;
  float* rows;  // by slot: v², then ∂L/∂ what the regions' tanh was taken of

  // Of gradients alone: of regions from one phase to the next, …
  float *hidden, *attention;  // h and the weights, panels
  // … of a group, …
  float* slopes;  // ∂L/∂(W o + b): a row of its pairs for each hidden unit
  float* gates;   // o, as the right-hand side of the product with these rows
  // … and of the side whose items are the own ones at the time.
  float* openings;   // by slot: ∂L/∂ what the gate's sigmoid was taken of
  float* biases;     // Σ of every task's slopes
  float* embedding;  // … and of every task's rows
};

// W of either side, as products have it.
struct GatedWeights {
  float* weights[2];  // the left-hand side, and …
  float* turned[2];   // … transposed, of gradients alone
};

struct GatedAttentionKernels {
  // Lay out W, a chunk of the size that its orders say, and what a task takes.
  void (*lay_out_weights)(const GatedAttentionCall&, bool gradients, GatedWeights&, Workspace&);
  void (*lay_out)(const GatedAttentionCall&, bool gradients, GatedChunk&, Workspace&);
  void (*scratch)(const GatedAttentionCall&, bool gradients, Workspace&);
  // Once a call: some rows of either W.
  void (*copy_weights)(const GatedAttentionCall&, const GatedWeights&, int64_t side, int64_t part);
  // Phases of a chunk: of a block or a task each, of some rows of W, or of some units of the gate.
  void (*attend_regions)(const GatedAttentionCall&, const GatedWeights&, const GatedChunk&, int64_t block, Workspace&);
  void (*attend_words)(const GatedAttentionCall&, const GatedWeights&, const GatedChunk&, float* scores, int64_t block,
                       Workspace&);
  void (*differentiate)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedWeights&,
                        const GatedChunk&, int64_t side, const GatedGroup&, int64_t task, Workspace&);
  void (*fill_up)(const GatedAttentionCall&, const GatedChunk&, int64_t side, const GatedGroup&);
  void (*add_to_weights)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedChunk&, int64_t side,
                         const GatedGroup&, int64_t part);
  void (*add_to_biases)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedChunk&, int64_t side);
  void (*add_to_memories)(const GatedAttentionCall&, const GatedAttentionGradients&, const GatedChunk&, int64_t side,
                          int64_t part);
};

constexpr int64_t kGatedColumns = 64;  // of a block
constexpr int64_t kGatedRows = 64;     // of W, that a task copies or gives gradients to; units of the gate likewise

}  // namespace crossret
