// Sum-Max on a GPU, over plain pointers to its memory.
#pragma once
#include <cstdint>
#include <string>

#include "cuda/stream.h"
#include "pairs/side.h"

namespace crossret {
namespace gpu {
namespace maxsim {

// A side whose rows are numbered through all items' rows as the features hold them, padding included: those of padded
// items lie `slots` apart, of packed ones, where that is 0, offsets tell. Strides are in elements.
struct SideCall {
  const void* features;
  int64_t elements, item_stride, row_stride;  // from the first element to behind the last one; strides
  int64_t slots, most, n_rows, n_items;       // `most` rows in an item
  const float* scales;                        // (n_rows), 1 / ‖x‖; null where similarities are none of cosines
  const int64_t* extents;  // offsets (n_items + 1), or lengths (n_items); null where all have `most` rows
  int dim;
  Dtype dtype;
};

// Listed pairs (P, 2) of (image, caption), and their order by items of contexts; null where they are taken as they
// come. In order: rows of queries up to each pair's end. Of items of contexts: rows, and tiles, of all up to its end.
struct PairsCall {
  const int64_t *pairs, *order, *row_ends, *item_rows, *item_tiles;
  int64_t count, n_contexts;
  int context_column;
};

// Which tiles a search goes by: kTileRows of these.
enum class Tiles : int { usual, wide };
constexpr int kTileRows[] = {128, 256};

// What host code cuts calls up by, a line each: a name and its values, of both kinds of tiles where they differ.
std::string constants();

// A search for the best contexts of tiles of queries among groups of contexts, see `Search` in problem.cuh.
struct SearchCall {
  SideCall queries, contexts;
  Tiles tiles;
  bool tf32, index, normalize;
  Pooling pooling;
  // (n_tiles, kTileRows), (n_groups_in_all, 1 << bits), (queries' items); null where successive items are taken.
  const int *items, *groups, *starts;
  int64_t n_groups_in_all;
  PairsCall listed;              // pairs are null where all are searched
  int64_t tiles_of_pair, pitch;  // of listed pairs without an order; from pair to pair of what is found
  float *scores, *maxima;        // what is not wanted is null
  int* indices;
  int64_t* wide_indices;
  int64_t n_scores, n_found;  // elements of scores; of the three others
  int64_t score_context, score_query, index_context, query_stride;
  int64_t first_item, count, first_group, n_groups, run_groups, bits;  // `count` items of contexts
  int64_t n_tiles, tile_items, n_runs;
  int64_t resident_rows;
};

// Bytes of memory that a search needs besides; it begins at a multiple of 16 bytes.
int64_t search_scratch(const SearchCall& call);
void search_best_contexts(const SearchCall& call, const Stream& stream, void* scratch);

// 1 / ‖x‖ of all rows.
void invert_norms(const SideCall& side, const Stream& stream, float* scales);

constexpr int kMostBlockRows = 64, kGradientColumns = 128;  // of features, of a block

// Gradients of some rows of one side, see `GradientProblem` in gradients.cuh.
struct GradientCall {
  SideCall own, others;
  bool of_contexts, normalize, average, add;
  int64_t first_own, item_blocks, n_blocks, block_rows;  // the first block's item; blocks of an item, and of all
  const float* grads;
  int64_t n_grads, grad_context, grad_query;
  const int* indices;
  const float* maxima;
  int64_t n_found, index_context, first_item, n_items;
  const int *starts, *holders;  // of what is found: (queries' items), (n_queries); null where items have query_slots
  int64_t n_queries, query_slots;
  PairsCall listed;  // `order` is by own items
  const int64_t* begins;
  int64_t longest;  // of queries' items
  void* out;        // (own.n_rows, dim)
  int64_t n_runs;
};

// Numbers of memory that gradients need besides.
int64_t gradient_scratch(const GradientCall& call);
void add_gradients(const GradientCall& call, const Stream& stream, float* scratch);

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
