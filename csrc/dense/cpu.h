// Products of whole matrices on the CPU: what runs on one thread is the kernels', what lies around it is here.
#pragma once
#include "dense/problem.h"
#include "dispatch.h"

namespace crossret {

void multiply_dense(const Kernels& kernels, const DenseCall& call);

// out (columns,) = the sums of a factor's rows, whose elements lie one after the other.
void sum_dense_rows(const Kernels& kernels, const DenseFactor& from, int64_t rows, int64_t columns, float* out);

}  // namespace crossret
