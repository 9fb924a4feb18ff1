// Calls of Sum-Max and the entry points of its kernels under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

struct MaxSimCall : Operands {
  Pooling pooling;
  // Results, null where they are not wanted.
  float* scores;         // by slot
  float* turned_scores;  // by slot, in the other direction: every context takes its best query
  int64_t* argmax;       // (slots, argmax_row): the best context of each query place, −1 without a query
  int64_t argmax_row;
  int32_t* kept;  // (context items, queries): the best valid context, of all pairs, kept for the backward pass

  int32_t* kept_of(int64_t context, int64_t query) const {
    return kept + context * queries.rows + queries.items[query].first;
  }
};

// The backward pass of some pairs: for each query, at offsets[slot], its best context and their similarity's gradient.
struct MaxSimGradients {
  const float* grad_scores;
  int32_t* best;
  float* coefs;
  const int64_t* offsets;
};

struct MaxSimKernels {
  // The best of a group's contexts for every query of a block, and its number in the group.
  void (*best)(const MaxSimCall&, const Partial&, const Rectangle&, const ContextGroup&, const QueryBlock&);
  // Results of one context item, whose groups are `parts`, with query items [first, last), whose columns begin at
  // `column`; with gradients, best contexts and coefficients instead. `scratch` holds two arrays as long as the longest
  // query item.
  void (*finish)(const MaxSimCall&, const MaxSimGradients*, const Partial&, const Rectangle&, const ContextGroup* parts,
                 int64_t n_parts, int64_t first, int64_t last, int64_t column, float* scratch);
  // Scores of whole items in both directions, and the workspace for these.
  void (*both)(const MaxSimCall&, const Rectangle&, const ContextGroup&, const QueryBlock&, Workspace&);
  void (*both_memory)(const Operands&, Workspace&);
  void (*feature_gradients)(const MaxSimCall&, const MaxSimGradients&, bool of_contexts, const ItemPairs&,
                            const JobGroup&, int64_t column, Workspace&);
};

}  // namespace crossret
