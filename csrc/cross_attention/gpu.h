// Stacked cross attention on a GPU, over plain pointers to its memory.
#pragma once
#include <cstdint>
#include <string>

#include "cross_attention/problem.h"
#include "cuda/stream.h"

namespace crossret {
namespace gpu {

// Successive items of a side, cut so that its packed rows are bounded.
struct Part {
  int first, n_items;
  int n_rows;   // packed
  int longest;  // rows of an item, at most
  int slots;  // packed rows of every item, for which no lengths have to be known; 0 where tables say where items begin
  bool full;  // whether no slot is empty
};

// Rows rounded up to eights, with zeros behind a part's own: cuBLAS uses its kernels for Hopper only where sizes and
// strides are multiples of 16 bytes.
constexpr int64_t in_eights(int count) { return (count + int64_t{7}) / 8 * 8; }

// The features of a part, n items of rows, as tensors over the boundary hold them.
struct RaggedPart {
  Part part;
  Dtype dtype;
  int64_t elements;                 // in memory, from the first feature on
  int64_t item_stride, row_stride;  // elements; 0 and row stride of features with offsets
  bool packed;                      // whether features have offsets; else they are padded
  int dim;
  int64_t all_items, most;  // items of the side, rows of an item at most
  const int64_t* extents;   // offsets (all items + 1) or lengths (all items); null where all items have `most` rows
  const int64_t* places;    // (all items, most): rows of an item that a mask leaves; else null
  const int32_t* starts;    // (all items + 1): first packed rows of items; null with slots
};

// Options of a call.
struct AttentionChoices {
  CrossAttentionOptions options;
  bool normalize;
  bool warpgroups;  // whether warpgroups multiply on compute capability 9.0
  float empty_score;
};

// A part's packed rows, of this dtype, and what `pack.cuh` stores beside them.
struct PackedPart {
  Part part;
  Dtype dtype;
  int dim;
  void* rows;  // (in_eights(part.n_rows), dim)
  float *norms, *powers;
  void* items;
  void* grams;  // Gram matrices of contexts; null for queries, as `flags`
  int32_t* flags;
};

// First items of a part's jobs, counted from its first item (jobs + 1); empty with slots.
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
  const int64_t *items, *order;  // (count, 2) items of contexts and queries; places of the pairs sorted by contexts
  int64_t count;                 // 0 for all pairs
};

// Elements of packed rows: features rounded up to what products take at a time.
int packed_dim(int dim, Dtype dtype);

int64_t packed_item_bytes();

// Bytes of the Gram matrices of contexts.
int64_t gram_bytes(const Part& part, Dtype packed);

// Fills the packed part, and its Gram matrices where it has them.
void pack(const RaggedPart& side, const void* features, const AttentionChoices& choices, const PackedPart& out,
          const Stream& stream);

// Constants of the planner in Python, a line each: a name and its values.
std::string attention_constants();

// Bounds of a job: rows and items of either side.
struct JobSizes {
  int query_rows, context_rows, most_queries, most_contexts;
};
// Bounds for the largest tile that fits in `most_shared` bytes of shared memory, with contexts of up to `longest` rows.
JobSizes job_sizes(Dtype packed, bool softmax, int longest, bool gradients, int most_shared);

// Rows of an item of contexts that fit in `most_shared` bytes of shared memory, whatever the options.
int most_attended_rows(bool gradients, int most_shared);

// Fills the scores: (contexts, queries) by their strides, or (pairs).
void score_attention(const AttentionCall& call, const OrderedPairs& pairs, float* scores, int64_t n_scores,
                     const Stream& stream);

// Row stride and size of a Gram matrix's gradients: eight columns are one sector of memory.
constexpr int64_t gram_pitch(int longest) { return in_eights(longest); }
constexpr int64_t numbers_of_gram(int longest) { return longest * gram_pitch(longest); }

// Gradients of similarities and Gram matrices of all pairs; see `backward.cuh`.
struct GradientsOfAttention {
  const float* grad_scores;
  int64_t n_scores;
  void* of_similarities;  // (rows of queries, pitch), bfloat16 for bfloat16 features, else float32
  int64_t pitch;
  float* own;       // (jobs of contexts, rows of queries)
  float* of_grams;  // (shares, items of contexts, longest, gram_pitch(longest))
  int shares;
};

// Jobs of contexts, and shares of the jobs of queries in which gradients of Gram matrices are summed.
struct GradientParts {
  int context_jobs, shares;
};
GradientParts gradient_parts(const AttentionCall& call, const Stream& stream);

void differentiate_attention(const AttentionCall& call, const GradientsOfAttention& made, const Stream& stream);

// Stores gradients of features from `sums` (rows, dim) of their packed rows, to which the Gram matrices' part is added
// first unless it is null. `own` is (own_parts, rows).
void finish_gradients(const RaggedPart& side, const PackedPart& packed, bool normalize, float* sums, const float* own,
                      int own_parts, const float* of_grams, int shares, void* out, const Stream& stream);

}  // namespace gpu
}  // namespace crossret
