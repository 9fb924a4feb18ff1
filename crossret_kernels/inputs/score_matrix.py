"""A matrix of scores and the ids of its pairs, as losses over it take them; the backend that serves a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.backends import select_backend
from crossret_kernels.inputs.options import Coded
from crossret_kernels.inputs.tensors import as_integers, check_floating, check_has_values
from crossret_kernels.torch_internals import IN_TORCH, transformed

Ids = Tensor | Sequence[int] | None

REDUCTIONS = ("sum", "mean", "none")
MOST_COLUMNS = 2**24  # which the kernels number by float32


class Positives(NamedTuple):
    """Which rows and columns of scores match: ids of images and of captions, (n_columns,) int64 where the scores are,
    or None, and the column of the first row's positive.
    """

    image_ids: Tensor | None
    caption_ids: Tensor | None
    offset: int

    @classmethod
    def of(cls, scores: Tensor, image_ids: Ids, caption_ids: Ids, offset: int) -> Positives:
        """Checked: ValueError or TypeError where scores or ids are none, or no column is a row's positive."""
        if not isinstance(scores, Tensor):
            raise TypeError(f"scores must be a floating-point tensor, not {type(scores).__name__}")
        check_floating(scores, "scores")
        check_has_values(scores, "scores")
        if scores.dim() != 2:
            raise ValueError(f"scores must have shape (n_rows, n_columns), got {tuple(scores.shape)}")
        n_rows, n_columns = scores.shape
        if n_rows > n_columns:
            raise ValueError(f"scores must have a column for every row's positive, got {tuple(scores.shape)}")
        if isinstance(offset, bool) or not isinstance(offset, (int, torch.SymInt)):
            raise TypeError(f"positive_offset must be an integer, not {type(offset).__name__}")
        if not 0 <= offset <= n_columns - n_rows:
            size = f"scores are {n_rows} by {n_columns}"
            raise ValueError(f"positive_offset must lie in 0..{n_columns - n_rows}, as {size}, not {offset}")
        return cls(as_ids(image_ids, "image_ids", scores), as_ids(caption_ids, "caption_ids", scores), offset)

    def matches(self, scores: Tensor) -> Tensor:
        """(n_rows, n_columns) bool: which are no negatives of each other."""
        n_rows, n_columns = scores.shape
        match = torch.zeros(n_rows, n_columns, dtype=torch.bool, device=scores.device)
        for ids in (torch.arange(n_columns, device=scores.device), self.image_ids, self.caption_ids):
            if ids is not None:
                match = match | (ids[self.offset : self.offset + n_rows, None] == ids[None, :])
        return match


def lose(
    table: Mapping[str, Callable[..., Tensor]], backend: str | None, scores: Tensor, positives: Positives,
    options: Coded, *numbers: Tensor,
) -> Tensor:  # fmt: skip
    """A loss by the backend that serves it: `table` has, by backend, operations in kernels as `define` returns them,
    which take modes, and functions of PyTorch operations (scores, *numbers, positives, options).
    """
    kernels = [name for name in table if name not in ("torch", "reference")]
    refusal = IN_TORCH if transformed() else None
    if refusal is None and scores.size(1) > MOST_COLUMNS:
        refusal = f"its kernels take up to {MOST_COLUMNS} columns"
    backend_name = select_backend(backend, scores.device, scores.dtype, refusal, kernels)
    if backend_name not in kernels:
        return table[backend_name](scores, *numbers, positives, options)
    ids = positives.image_ids, positives.caption_ids
    return as_loss(table[backend_name](scores, *numbers, *ids, *options.codes, positives.offset), scores)


def as_ids(ids: Ids, name: str, scores: Tensor) -> Tensor | None:
    """(n_columns,) int64 where the scores are; raises a ValueError or TypeError where they are no such ids."""
    if ids is None:
        return None
    tensor = as_integers(ids, name)
    if tensor.shape != scores.shape[1:]:
        raise ValueError(f"{name} must hold one id for each of {scores.size(1)} columns, got {tuple(tensor.shape)}")
    return tensor.to(scores.device).contiguous()


def as_loss(loss: Tensor, scores: Tensor) -> Tensor:
    """A kernel's loss in the scores' dtype; as torch's sums have it float32 under CUDA's autocast, which keeps them
    from overflowing.
    """
    wide = scores.dtype is torch.float32 or (scores.is_cuda and torch.is_autocast_enabled("cuda"))
    return loss if wide else loss.to(scores.dtype)


def in_float32(scores: Tensor) -> Tensor:
    """Scores of half precision in float32."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Losses of all rows (n_rows,), reduced."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / max(len(losses), 1)
