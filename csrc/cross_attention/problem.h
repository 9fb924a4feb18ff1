// Calls of stacked cross attention and the entry points of its kernels under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// ε of the published code: added to norms after the root, and the cosine's least denominator.
constexpr float kEps = 1e-8f;

// Part of its mean by which a focal weight may be below it, as rounding puts equal ones.
constexpr float kFocalSlack = 1.0f / 16384.0f;

enum class Norm : int { none, softmax, l2, l1, minmax };

struct CrossAttentionOptions {
  Norm norm;
  float clip_slope;  // 1 where the mode does not clip
  float lambda_softmax;
  Pooling pooling;
  float lambda_lse;
  bool projects = false;  // a query's length counts as 1 in its relevance
  bool focal = false;     // weights that are not above a query's mean are zero
  float threshold = -1;   // of minmax, below which weights are zero; negative: 1 / contexts

  bool along_queries() const { return norm == Norm::softmax || norm == Norm::l2 || norm == Norm::l1; }
};

// Attention of listed pairs, by slot, or its gradients: a row for each place of a query, zeros at places without one.
template <class Float>
struct AttentionOf {
  int64_t query_places, context_places;
  Float* attended;    // (pairs, query places, dim); null where attended vectors are not wanted
  Float* weights;     // (pairs, query places, context places)
  Float* relevances;  // (pairs, query places)

  bool there() const { return relevances != nullptr; }
};

struct CrossAttentionCall : Operands {
  CrossAttentionOptions options;
  float* scores;                     // by slot
  bool averages;                     // whether a score becomes the mean of its own and what is there
  bool both_ways;                    // whether scores are the mean of both directions'
  float turned_lambda_softmax;       // of the other direction
  const CrossAttentionCall* turned;  // of both directions the other, whose similarities are the transpose; else null
  const float* query_norms;          // of the turned call, of all rows
  AttentionOf<float> made;           // results of a forward pass; all null where scores alone are wanted
  AttentionOf<const float> given;    // their gradients in a backward pass, by the pairs' places in the caller's list
};

// The backward pass of some of the pairs. `similarity_grads` holds ∂L/∂s of each pair, (contexts × queries) with row
// stride gram_row(queries), at similarity_offsets[slot]; `query_coefs` the factor of each query's own row in its
// gradient, at query_offsets[slot]; `gram_grads` the (contexts × contexts) matrix whose product with the contexts
// completes their gradient, summed over the pairs of the attended item, at gram_offsets[slot] of any of them.
struct CrossAttentionGradients {
  const float* grad_scores;  // by slot
  float* similarity_grads;
  const int64_t* similarity_offsets;
  float* query_coefs;
  const int64_t* query_offsets;
  float* gram_grads;
  const int64_t* gram_offsets;
  // Gradients of the other direction where scores are the mean of both, else null. They have no `similarity_grads` of
  // their own, and a Gram matrix for each pair: zeros but for one pair of those that a task takes of an item.
  const CrossAttentionGradients* turned;
  // Where more than scores has gradients:
  const int64_t* places;  // by slot, in the caller's list
  float* weights;         // laid out as similarity_grads
  RaggedView attended;    // gradients of attended vectors, an item for each slot; without items where there are none
};

struct CrossAttentionKernels {
  void (*forward)(const CrossAttentionCall&, const Rectangle&, const ContextGroup&, const QueryBlock&, Workspace&);
  // Takes the blocks of a group in turn: it adds to the group's Gram gradients.
  void (*backward)(const CrossAttentionCall&, const CrossAttentionGradients&, const Rectangle&, const ContextGroup&,
                   const QueryBlock&, Workspace&);
  void (*feature_gradients)(const CrossAttentionCall&, const CrossAttentionGradients&, bool of_contexts,
                            const ItemPairs&, const JobGroup&, int64_t column, Workspace&);
  // The triangular factor of one item's Gram matrix, as `Operands` keeps it, and its rows' norms unless null.
  void (*keep_factor)(const RaggedView&, int64_t item, int64_t longest, int64_t ld, float* out, float* norms,
                      Workspace&);
  // Workspace that each takes, counted.
  void (*forward_memory)(const CrossAttentionCall&, Workspace&);
  void (*backward_memory)(const CrossAttentionCall&, Workspace&);
  void (*feature_memory)(const CrossAttentionCall&, Workspace&);
};

}  // namespace crossret
