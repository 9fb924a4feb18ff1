// Calls of Sum-Max and the entry points of its kernels under one instruction set.
#pragma once
#include "pairs/operands.h"
#include "pairs/workspace.h"

namespace crossret {

struct MaxSimOptions {
  Pooling pooling;
  float clip_slope;  // of maxima below 0; 1 where none is clipped
  float lambda_lse;
  int64_t top;        // maxima that "topk" adds up
  float temperature;  // of soft maxima; 0 of maxima

  bool soft() const { return temperature > 0.0f; }
  // Whether each query's share of the score is known without the maxima.
  bool even() const { return !soft() && clip_slope == 1.0f && (pooling == Pooling::sum || pooling == Pooling::avg); }
};

struct MaxSimCall : Operands {
  MaxSimOptions options;
  // Results, null where they are not wanted.
  float* scores;         // by slot
  float* turned_scores;  // by slot, in the other direction: every context takes its best query; null of one direction
  int64_t* argmax;       // (slots, argmax_row): the best context of each query place, −1 without a query
  int64_t argmax_row;
  int32_t* kept;  // (context items, queries): the best valid context, of all pairs, kept for the backward pass

  int32_t* kept_of(int64_t context, int64_t query) const {
    return kept + context * queries.rows + queries.items[query].first;
  }
};

// For each row of one side of a pair, at offsets[slot], the best row of the other side and their similarity's gradient.
struct BestRows {
  const float* grad_scores;  // by slot
  int32_t* best;
  float* coefs;
  const int64_t* offsets;
};

// The backward pass of some pairs: best contexts of queries and, of scores in both directions, best queries of
// contexts.
// Gradients of all similarities of soft maxima, in which each has a part: (contexts × queries) of each pair, row stride
// gram_row(queries), at similarity_offsets[slot].
struct MaxSimGradients {
  BestRows queries;
  BestRows contexts;  // all null of one direction
  float* similarity_grads;
  const int64_t* similarity_offsets;
};

struct MaxSimKernels {
  // The best of a group's contexts for every query of a block, and its number in the group.
  void (*best)(const MaxSimCall&, const Partial&, const Rectangle&, const ContextGroup&, const QueryBlock&);
  // Results of one context item, whose groups are `parts`, with query items [first, last), whose columns begin at
  // `column`; with gradients, best contexts and coefficients instead. `scratch` holds three arrays as long as the
  // longest query item.
  void (*finish)(const MaxSimCall&, const MaxSimGradients*, const Partial&, const Rectangle&, const ContextGroup* parts,
                 int64_t n_parts, int64_t first, int64_t last, int64_t column, float* scratch);
  // Scores of whole items, in both directions or of soft maxima; with gradients best rows and coefficients, or
  // gradients of similarities instead. And the workspace.
  void (*whole_items)(const MaxSimCall&, const MaxSimGradients*, const Rectangle&, const ContextGroup&,
                      const QueryBlock&, Workspace&);
  void (*whole_items_memory)(const Operands&, Workspace&);
  void (*soft_feature_gradients)(const MaxSimCall&, const MaxSimGradients&, bool of_contexts, const ItemPairs&,
                                 const JobGroup&, int64_t column, Workspace&);
  void (*feature_memory)(const MaxSimCall&, Workspace&);
  void (*feature_gradients)(const MaxSimCall&, const MaxSimGradients&, bool of_contexts, const ItemPairs&,
                            const JobGroup&, int64_t column, Workspace&);
};

}  // namespace crossret
