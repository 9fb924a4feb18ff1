// One tile of products by warpgroups, for a GPU of compute capability 9.0 to show what its instructions do.
#pragma once
#include <cstdint>

#include "cuda/stream.h"
#include "pairs/operands.h"

namespace crossret {
namespace gpu {

struct OneTileSizes {
  int queries, contexts, copied_bytes;
};
OneTileSizes one_tile_sizes();

// Rows of `row_bytes` bytes, of queries and contexts by their sizes, multiplied into `sums` (queries, contexts); and
// the first stage as it lies in the shared memory of both blocks. Memory for both is filled with zeros.
void copy_and_multiply(const void* queries, const void* contexts, int64_t row_bytes, Dtype dtype, void* copies,
                       float* sums, const Stream& stream);

}  // namespace gpu
}  // namespace crossret
