"""What launches Sum-Max's CUDA kernels (csrc/maxsim/launches.h): operations over memory that they are given.

Their sizes travel as one tensor on the CPU, int64: lists of numbers are taken apart one by one, tensors are kept.
"""

from __future__ import annotations

from crossret_kernels.operations import define

norms = define("maxsim_norms_cuda", (), "Tensor features, Tensor(a!) scales, Tensor sizes", made="()")
search = define(
    "maxsim_search_cuda",
    (),
    "Tensor queries, Tensor contexts, Tensor? query_scales, Tensor? context_scales, Tensor? query_extents, "
    "Tensor? context_extents, Tensor? groups, Tensor? items, Tensor? starts, Tensor(a!)? scores, "
    "Tensor(b!)? maxima, Tensor(c!)? indices, Tensor[] listed, Tensor sizes",
    made="()",
)
gradients = define(
    "maxsim_gradients_cuda",
    (),
    "Tensor own, Tensor others, Tensor? own_scales, Tensor? other_scales, Tensor? own_extents, "
    "Tensor? other_extents, Tensor? starts, Tensor? holders, Tensor grads, Tensor indices, Tensor maxima, "
    "Tensor[] listed, Tensor(a!) out, Tensor sizes",
    made="()",
)
