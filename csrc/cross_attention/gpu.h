// Stacked cross attention on a GPU, over plain pointers to its memory.
#pragma once
#include <cstdint>
#include <string>

#include "cross_attention/problem.h"
#include "cuda/stream.h"

namespace crossret {
namespace gpu {

// Successive items of a side: rows once packed, and those that an item has at most. `slots` are those that each takes,
// so that nothing has to be known of lengths, or 0 where tables say where items begin.
struct Part {
  int first, n_items, n_rows, longest, slots;
};

// Rows up to a multiple of eight, behind a part's own zeros: cuBLAS has kernels for Hopper where sides whose elements
// follow one another, and strides, are of whole 16 bytes, and takes those of earlier cards elsewhere.
constexpr int64_t in_eights(int count) { return (count + int64_t{7}) / 8 * 8; }

// Where features of a part lie.
struct RaggedPart {
  Part part;
  Dtype dtype;
  int64_t elements;                 // that may be read from where features begin
  int64_t item_stride, row_stride;  // elements; of packed features the first is 0
  bool packed;                      // items follow one another; else each begins at the first stride
  int dim;
  int64_t all_items, most;  // items of the side, rows that an item may have
  const int64_t* extents;   // packed: offsets (all items + 1), else lengths (all items); null: all have `most`
  const int64_t* places;    // (all items, most): where in its item a row lies, of a mask; else null
  const int32_t* starts;    // (all items + 1): where items begin once packed; null with slots
};

// What a call computes with.
struct AttentionChoices {
  CrossAttentionOptions options;
  bool normalize;
  bool tfloat32;  // whether products of float32 may be made so
  float empty_score;
};

// A part's rows packed, in this dtype; see `pack.cuh`.
struct PackedPart {
  Part part;
  Dtype dtype;
  int dim;
  void* rows;  // `in_eights`
  float *norms, *powers;
  void* items;
  void* grams;  // of contexts, else null; `flags` is what is told of their items
  int32_t* flags;
};

// (jobs + 1) items at which a part's jobs begin, counted from its first; of no use with slots.
struct JobTable {
  const int32_t* begins;
  int count;
};

struct AttentionCall {
  PackedPart contexts, queries;
  JobTable context_jobs, query_jobs;
  AttentionChoices choices;
  int64_t context_stride, query_stride;  // of scores of all pairs
};

struct OrderedPairs {
  const int64_t *items, *order;  // (count, 2) items of contexts and queries, and their places by contexts
  int64_t count;                 // 0 for all pairs
};

// Of packed rows: features rounded up to what products take at a time.
int packed_dim(int dim, Dtype dtype);

int64_t packed_item_bytes();

// Of the Gram matrices of contexts.
int64_t gram_bytes(const Part& part, Dtype packed, bool tfloat32);

// Fills the packed part, Gram matrices included.
void pack(const RaggedPart& side, const void* features, const AttentionChoices& choices, const PackedPart& out,
          const Stream& stream);

// What host code cuts calls up by, a line each: a name and its values.
std::string attention_constants();

// What jobs of a pass have at most, beside items of contexts of up to `longest` rows: as the largest tile that fits so
// much shared memory has them.
struct JobSizes {
  int query_rows, context_rows, most_queries, most_contexts;
};
JobSizes job_sizes(Dtype packed, bool tfloat32, bool softmax, int longest, bool gradients, int most_shared);

// Of an item of contexts, whatever the call computes with.
int most_attended_rows(bool gradients, int most_shared);

// Fills the scores: (contexts, queries) by their strides, of listed pairs one after the other.
void score_attention(const AttentionCall& call, const OrderedPairs& pairs, float* scores, int64_t n_scores,
                     const Stream& stream);

// Between rows of what a Gram matrix pulls on, where eight columns are a sector, and its numbers.
constexpr int64_t gram_pitch(int longest) { return in_eights(longest); }
constexpr int64_t numbers_of_gram(int longest) { return longest * gram_pitch(longest); }

// What similarities and Gram matrices pull on, of all pairs; see `backward.cuh`.
struct GradientsOfAttention {
  const float* grad_scores;
  int64_t n_scores;
  void* of_similarities;  // (rows of queries, pitch), bfloat16 of such features, else float32
  int64_t pitch;
  float* own;       // (jobs of contexts, rows of queries)
  float* of_grams;  // (shares, contexts' items, rows of the longest, gram_pitch of them)
  int shares;
};

// How many jobs of contexts there are, and in how many shares of jobs of queries gradients of Gram matrices are to be
// made.
struct GradientParts {
  int context_jobs, shares;
};
GradientParts gradient_parts(const AttentionCall& call, const Stream& stream);

void differentiate_attention(const AttentionCall& call, const GradientsOfAttention& made, const Stream& stream);

// Stores gradients of features, given what their packed rows have summed up (rows, dim), to which the Gram matrices'
// part is added first where there is one. `own` has so many parts.
void finish_gradients(const RaggedPart& side, const PackedPart& packed, bool normalize, float* sums, const float* own,
                      int own_parts, const float* of_grams, int shares, void* out, const Stream& stream);

}  // namespace gpu
}  // namespace crossret
