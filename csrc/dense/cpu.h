// Products of whole matrices on the CPU: threads and workspaces around the kernels.
#pragma once
#include "dense/problem.h"
#include "dispatch.h"

namespace crossret {

void multiply_dense(const Kernels& kernels, const DenseCall& call);

// out (columns,) = the sum of a factor's rows, whose elements are contiguous.
void sum_dense_rows(const Kernels& kernels, const DenseFactor& from, int64_t rows, int64_t columns, float* out);

}  // namespace crossret
