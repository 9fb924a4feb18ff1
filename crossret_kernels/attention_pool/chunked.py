"""Backend "torch" of attention pooling: one product an item, over chunks of items of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.chunked import WORKSPACE_BYTES, recomputed, split


def attention_pool_chunked(values: Ragged, logits: Ragged) -> tuple[Tensor, Tensor]:
    """Pooled (n, r, D) and weights (n, r, L).

    A chunk's padded or widened values are made again in the backward pass; values that need neither are never copied.
    """
    dtype = torch.promote_types(values.values.dtype, torch.float32)
    row_bytes = dtype.itemsize * (values.values.size(-1) + 2 * logits.values.size(-1))
    rows = max(1, WORKSPACE_BYTES // row_bytes)
    chunks = _padded_chunks if values.offsets is None else _packed_chunks
    parts = list(chunks(values, logits, rows, dtype))
    if not parts:
        n, r, dim = len(values), logits.values.size(-1), values.values.size(-1)
        # Of nothing, which reaches values and logits in the backward pass as any others do.
        nothing = values.values.to(dtype).sum() + logits.values.to(dtype).sum()
        return nothing.expand(n, r, dim), nothing.expand(n, r, values.width)
    return torch.cat([part[0] for part in parts]), torch.cat(
        [F.pad(part[1], (0, values.width - part[1].size(2))) for part in parts]
    )


def _padded_chunks(values: Ragged, logits: Ragged, rows: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    size = max(1, rows // values.width)
    x, a, lengths = values.values, logits.values, values.padded_lengths
    masks: Sequence[Tensor | None]
    pieces = list(zip(x.split(size), a.split(size), strict=True))
    if values.mask is not None:
        masks = values.mask.to(x.device, non_blocking=True).split(size)
    elif lengths is None:
        masks = [None] * len(pieces)
    else:
        lengths = lengths.to(x.device, non_blocking=True)
        masks = (torch.arange(x.size(1), device=x.device) < lengths[:, None]).split(size)
    for (x_piece, a_piece), mask in zip(pieces, masks, strict=True):
        if mask is None and x.dtype == dtype:  # no copy to make twice
            yield _pooled(x_piece, a_piece, None, dtype)
        else:
            yield recomputed(_pooled, x_piece, a_piece, mask, dtype)


def _packed_chunks(values: Ragged, logits: Ragged, rows: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    for x, a in zip(split(values, rows), split(logits, rows), strict=True):

        def pooled(x_rows: Tensor, a_rows: Tensor, x: Ragged = x, a: Ragged = a) -> tuple[Tensor, Tensor]:
            padded, mask = replace(x, values=x_rows).padded()
            return _pooled(padded, replace(a, values=a_rows).padded()[0], mask, dtype)

        yield recomputed(pooled, x.values, a.values)


def _pooled(values: Tensor, logits: Tensor, mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of padded values (k, L, D) and logits (k, L, r), valid where `mask` (k, L) is, or all of them."""
    values, logits = values.to(dtype), logits.to(dtype).mT
    if mask is not None:
        values = values.masked_fill(~mask[:, :, None], 0)
        logits = logits.masked_fill(~mask[:, None], -torch.inf)
    weights = torch.softmax(logits, -1)
    return weights @ values, weights
