// What the Sum-Max kernels are given, and their entry points under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

struct MaxSimCall : Operands {
  Pooling pooling;
  // Of these what is wanted:
  float* scores;         // by slot
  float* turned_scores;  // besides, the other way round: every context takes its best query
  // By slot, for `argmax_row` queries each: the best context, −1 where there is no such query.
  int64_t* argmax;
  int64_t argmax_row;
  // Of all pairs, for the backward pass: the best of the contexts' valid rows, context item × queries; else null.
  // Written beside the scores, and read with their gradients.
  int32_t* kept;

  int32_t* kept_of(int64_t context, int64_t query) const {
    return kept + context * queries.rows + queries.items[query].first;
  }
};

// The backward pass of some of the pairs: for each query, at offsets[slot], its best context and ∂L/∂ their similarity.
struct MaxSimGradients {
  const float* grad_scores;
  int32_t* best;
  float* coefs;
  const int64_t* offsets;
};

struct MaxSimKernels {
  // The best of a group's contexts for every query of a block, and the number of each within the group.
  void (*best)(const MaxSimCall&, const Partial&, const Rectangle&, const ContextGroup&, const QueryBlock&);
  // Of one context item, whose groups are `parts`, and the query items [first, last), whose columns begin at `column`:
  // the scores or the best contexts, or, with gradients, what their backward pass needs. `scratch` holds two vectors as
  // long as the longest query item.
  void (*finish)(const MaxSimCall&, const MaxSimGradients*, const Partial&, const Rectangle&, const ContextGroup* parts,
                 int64_t n_parts, int64_t first, int64_t last, int64_t column, float* scratch);
  // The scores both ways of whole items, in workspace that the second counts.
  void (*both)(const MaxSimCall&, const Rectangle&, const ContextGroup&, const QueryBlock&, Workspace&);
  void (*both_memory)(const Operands&, Workspace&);
  void (*feature_gradients)(const MaxSimCall&, const MaxSimGradients&, bool of_contexts, const ItemPairs&,
                            const JobGroup&, int64_t column, Workspace&);
};

}  // namespace crossret
