"""Rows and scores that go from rank to rank, as differentiable operations with exact gradients.

The gradient of what a rank has sent is the sum over all ranks of what they make of it. All ranks must go backward
through the same operations: each waits for the others there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from crossret.distributed.group import Group


def gathered_rows(tensor: Tensor, group: Group, counts: Sequence[int]) -> Tensor:
    """The rows of all ranks in their order: (counts[rank], …) to (sum of counts, …), alike but in the first size."""
    if group.size == 1:
        return tensor
    rows: Tensor = cast(Any, _Gathered).apply(tensor, group, tuple(counts))
    return rows


def exchanged_scores(scores: Tensor, group: Group, counts: Sequence[int]) -> Tensor:
    """This rank's columns (N, n) of a square matrix by its rows (n, N); n = counts[rank], N the sum of counts."""
    if group.size == 1:
        return scores
    columns: Tensor = cast(Any, _Exchanged).apply(scores, group, tuple(counts))
    return columns


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group, counts: tuple[int, ...]) -> Tensor:
        ctx.group, ctx.counts = group, counts
        longest = max(counts)  # NCCL and Gloo agree on messages of one size alone
        own = tensor.new_zeros(longest, *tensor.shape[1:])
        own[: len(tensor)] = tensor
        of_all = tensor.new_empty(group.size, *own.shape)
        with group.talking("exchange of rows"):
            dist.all_gather(list(of_all.unbind()), own)
        return torch.cat([rows[:count] for rows, count in zip(of_all, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        own = ctx.counts[ctx.group.rank]
        of_all = gradient.new_empty(ctx.group.size, own, *gradient.shape[1:])
        _exchange(list(gradient.split(ctx.counts)), list(of_all), ctx.group)
        return of_all.sum(0), None, None


class _Exchanged(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, group: Group, counts: tuple[int, ...]) -> Tensor:
        ctx.group, ctx.counts = group, counts
        columns = scores.new_empty(scores.shape[::-1])
        _exchange(list(scores.split(counts, 1)), list(columns.split(counts)), group)
        return columns

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        rows = gradient.new_empty(gradient.shape[::-1])
        _exchange(list(gradient.split(ctx.counts)), list(rows.split(ctx.counts, 1)), ctx.group)
        return rows, None, None


def _exchange(sent: Sequence[Tensor], received: Sequence[Tensor], group: Group) -> None:
    """Send a block to every rank and write what comes from each to its block of ``received``.

    Gloo has no collective over lists of blocks, but the one over flat messages of any sizes.
    """
    message = torch.cat([block.reshape(-1) for block in sent])
    sizes = [block.numel() for block in received]
    answer = message.new_empty(sum(sizes))
    with group.talking("exchange of blocks"):
        dist.all_to_all_single(answer, message, sizes, [block.numel() for block in sent])
    for block, part in zip(received, answer.split(sizes), strict=True):
        block.copy_(part.view(block.shape))
