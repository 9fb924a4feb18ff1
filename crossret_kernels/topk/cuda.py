"""The best k so far and a block of scores merged in CUDA: the operation, and when it serves."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.backends import named_backend, unsupported_reason
from crossret_kernels.operations import define

MOST = 8192  # a row's best in the shared memory of a block, on every GPU

_merge = define(
    "merge_topk_cuda", (), "Tensor(a!) values, Tensor(b!) indices, Tensor scores, SymInt held, SymInt start", made="()"
)


def merges_in_cuda(backend: str | None, scores: Tensor, k: int) -> bool:
    """Whether the caller demands "cuda", or CROSSRET_BACKEND prefers it, and it can merge these.

    float32 scores on a device that the library is built for, and k up to `MOST`; what it cannot, PyTorch operations
    merge. Where no backend is named they do too, as long as "cuda" is not taken for scores either.
    """
    return (
        named_backend(backend) == "cuda"
        and k <= MOST
        and scores.dtype is torch.float32
        and unsupported_reason("cuda", scores.device, scores.dtype) is None
    )


def merge_in_cuda(values: Tensor, indices: Tensor, scores: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """What `topk._merge` returns, of scores of any strides; changes full values and indices in place, as it does."""
    held = values.size(1)
    if held < k:
        shape = (values.size(0), min(k, held + scores.size(1)))
        grown = values.new_empty(shape), indices.new_empty(shape)
        grown[0][:, :held], grown[1][:, :held] = values, indices
        values, indices = grown
    _merge(values, indices, scores, held, start)
    return values, indices
