// Stacked cross attention on a GPU, over plain pointers to its memory.
#pragma once
#include <cstdint>
#include <string>

#include "cross_attention/problem.h"
#include "cuda/stream.h"

namespace crossret {
namespace gpu {

// Successive items of a side, and where features of theirs lie.
struct SidePart {
  Dtype dtype;
  int64_t elements;                 // that may be read from where features begin
  int64_t item_stride, row_stride;  // elements; of packed features the first is 0
  bool packed;                      // items follow one another; else each begins at the first stride
  int dim;
  const int32_t* starts;  // (all items + 1): where items begin, were the side packed
  const int32_t* places;  // (all rows): where in its item a row lies, of a mask; else null
  int64_t all_items, all_rows;
  int first, n_items, n_rows, longest;
};

// A part's rows packed, in this dtype; see `pack.cuh`.
struct PackedPart {
  void* rows;
  float *norms, *powers;
  void* items;
  Dtype dtype;
  int dim, n_items, n_rows, longest;
};

// Jobs of either side's parts: (n + 1) items at which they begin, counted from the part's first.
struct Jobs {
  const int32_t *contexts, *queries;
  int n_contexts, n_queries;
  int most_columns, most_queries;  // rows of contexts and items of queries in one
};

struct AttentionCall {
  PackedPart contexts, queries;
  Jobs jobs;
  bool tfloat32;               // whether products of float32 may be made so
  const int32_t* gram_starts;  // (contexts' items): where their Gram matrices begin, in fragments
  int64_t n_fragments;
  CrossAttentionOptions options;
  bool normalize;
  float empty_score;
  int64_t context_stride, query_stride;  // of scores of all pairs
};

struct PairList {
  const int64_t *items, *order;  // (count, 2) items of contexts and queries, and their places by contexts
  int64_t count;                 // 0 for all pairs
};

// Of packed rows: features rounded up to what products take at a time.
int packed_dim(int dim, Dtype dtype);

int64_t packed_item_bytes();

void pack(const SidePart& side, const void* features, bool normalize, const PackedPart& out, const Stream& stream);

// What host code cuts calls up by, a line each: a name and its values.
std::string attention_constants();

// Of how many rows the jobs of a pass had best be, beside items of contexts of up to `longest` rows and so many items
// of queries in a job: as the largest tile that fits so much shared memory has them.
struct JobRows {
  int queries, contexts;
};
JobRows job_rows(Dtype packed, bool tfloat32, bool softmax, int longest, int most_queries, bool gradients,
                 int most_shared);

// Bytes of Gram matrices and what is told of their items.
int64_t attention_scratch(const AttentionCall& call);

// Fills the scores: (contexts, queries) by their strides, of listed pairs one after the other.
void score_attention(const AttentionCall& call, const PairList& pairs, float* scores, int64_t n_scores,
                     const Stream& stream, void* scratch);

// What similarities and Gram matrices pull on, of all pairs; see `backward.cuh`.
struct GradientsOfAttention {
  const float* grad_scores;
  int64_t n_scores;
  void* of_similarities;  // (rows of queries, pitch), bfloat16 of such features, else float32
  int64_t pitch;
  float* own;                   // (jobs of contexts, rows of queries)
  float* of_grams;              // (shares, numbers)
  const int32_t* gram_numbers;  // (contexts' items): where those of an item begin
  int64_t numbers;
  int shares;
};

// In how many shares of jobs of queries gradients of Gram matrices are to be made.
int shares_of(const Jobs& jobs, const Stream& stream);

void differentiate_attention(const AttentionCall& call, const GradientsOfAttention& made, const Stream& stream,
                             void* scratch);

// Stores gradients of features, given what their packed rows have summed up (rows, dim), to which the Gram matrices'
// part is added first where there is one. `own` has so many parts.
void finish_gradients(const SidePart& side, const PackedPart& packed, bool normalize, float* sums, const float* own,
                      int own_parts, const GradientsOfAttention* grams, void* out, const Stream& stream);

}  // namespace gpu
}  // namespace crossret
