// What the stacked cross attention kernels are given, and their entry points under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

// ε of the published code: added to norms after the root, and the cosine's least denominator.
constexpr float kEps = 1e-8f;

enum class Norm : int { none, softmax, l2, l1 };

struct CrossAttentionOptions {
  Norm norm;
  float clip_slope;  // 1 where the mode does not clip
  float lambda_softmax;
  Pooling pooling;
  float lambda_lse;
};

// What is made of listed pairs besides their scores, by slot: a row for each place of a query, zeros where there is
// none.
template <class Float>
struct AttentionOf {
  int64_t query_places, context_places;
  Float* attended;    // (pairs, query places, dim); null where it is not wanted
  Float* weights;     // (pairs, query places, context places)
  Float* relevances;  // (pairs, query places)

  bool there() const { return relevances != nullptr; }
};

struct CrossAttentionCall : Operands {
  CrossAttentionOptions options;
  float* scores;                   // by slot
  AttentionOf<float> made;         // of a forward pass; all null where scores alone are wanted
  AttentionOf<const float> given;  // of a backward pass, by the pairs' places in the caller's list: gradients of these
};

// The backward pass of some of the pairs. `similarity_grads` holds ∂L/∂s of each pair, (contexts × queries) with row
// stride gram_row(queries), at similarity_offsets[slot]; `query_coefs` the factor of each query's own row in its
// gradient, at query_offsets[slot]; `gram_grads` the (contexts × contexts) matrix whose product with the contexts
// completes their gradient, summed over the pairs of the attended item, at gram_offsets[slot] of any of them.
struct CrossAttentionGradients {
  const float* grad_scores;
  float* similarity_grads;
  const int64_t* similarity_offsets;
  float* query_coefs;
  const int64_t* query_offsets;
  float* gram_grads;
  const int64_t* gram_offsets;
  // Where gradients of more than scores are given: the pairs' places in the caller's list, by slot; the attention, laid
  // out as similarity_grads; and the attended vectors' gradients as a side whose items are the slots, without items
  // where there are none.
  const int64_t* places;
  float* weights;
  RaggedView attended;
};

struct CrossAttentionKernels {
  void (*forward)(const CrossAttentionCall&, const Rectangle&, const ContextGroup&, const QueryBlock&, Workspace&);
  // Of one group no two blocks at once: its Gram gradients are summed up.
  void (*backward)(const CrossAttentionCall&, const CrossAttentionGradients&, const Rectangle&, const ContextGroup&,
                   const QueryBlock&, Workspace&);
  void (*feature_gradients)(const CrossAttentionCall&, const CrossAttentionGradients&, bool of_contexts,
                            const ItemPairs&, const JobGroup&, int64_t column, Workspace&);
  // The triangular factor of one item's Gram matrix, as `Operands` has them where they are kept.
  void (*keep_factor)(const RaggedView&, int64_t item, int64_t longest, int64_t ld, float* out, Workspace&);
  // Floats of workspace that each takes are counted by a run without memory.
  void (*forward_memory)(const CrossAttentionCall&, Workspace&);
  void (*backward_memory)(const CrossAttentionCall&, Workspace&);
  void (*feature_memory)(const CrossAttentionCall&, Workspace&);
};

}  // namespace crossret
