// Top-k merging on a GPU, over plain pointers to its memory.
#pragma once
#include <cstdint>

#include "cuda/stream.h"

namespace crossret {
namespace gpu {

constexpr int kMostTopk = 8192;  // lists of as many fit the shared memory of a block, on every GPU

// A block of scores, of items start to start + n_columns; of every row the best of all earlier items, `held`, in
// memory for `most` ≤ kMostTopk and held + n_columns, which it has then.
struct TopkCall {
  const float* scores;
  int64_t row_stride, column_stride;  // elements
  int n_rows, n_columns, held, most;
  int64_t start;
  float* values;     // (n_rows, most), best first
  int64_t* indices;  // the same
};

// Words of 32 bits that merging needs room for.
int64_t topk_scratch(const TopkCall& call);

void merge_topk(const TopkCall& call, const Stream& stream, void* scratch);

}  // namespace gpu
}  // namespace crossret
