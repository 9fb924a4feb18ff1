"""Padded and packed forms of `Ragged`, as the backends in PyTorch operations compute on them.

An empty item has one row when padded, of zeros, counted as valid: softmax and maxima of no rows would put NaN into
gradients, even where the score is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import safe_normalize


def split_items(side: Ragged, counts: Sequence[int], widths: Sequence[int]) -> list[Ragged]:
    """Successive items, so many at a time, no copy; of padded ones the first places, so many of each.

    Offsets of a device are waited for once. Gradients of all parts go to the values at once.
    """
    if side.offsets is None:
        parts: list[list[Tensor] | list[None]] = [
            [None] * len(counts) if x is None else list(x.split(counts))
            for x in (side.values, side.padded_lengths, side.mask)
        ]
        return [
            Ragged.trusted(rows[:, :width], None, lengths, None if mask is None else mask[:, :width])
            for rows, lengths, mask, width in zip(*parts, widths, strict=True)
        ]
    borders = [0, *accumulate(counts)]
    offsets = side.offsets.cpu()
    bounds = [offsets[first : last + 1] - offsets[first] for first, last in pairwise(borders)]
    if side.items is not None:
        items = [side.items[first:last] for first, last in pairwise(borders)]
        return [Ragged.trusted(side.values, x, items=tensors) for x, tensors in zip(bounds, items, strict=True)]
    return [Ragged.trusted(x, y) for x, y in zip(side.values.split([int(x[-1]) for x in bounds]), bounds, strict=True)]


def pack_items(side: Ragged) -> Tensor:
    """Rows of all items without gaps, (sum of lengths, D)."""
    if side.offsets is not None:
        return side.joined().values
    rows = side.values.flatten(0, 1)
    mask = _valid(side, side.values.size(1))
    return rows if mask is None else rows.index_select(0, mask.flatten().nonzero().flatten())


def gather_items(side: Ragged, items: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Rows of `padded` for these items alone, in the order of `items` (P,) int64; no others are copied."""
    if side.items is not None:
        return _pad_list([side.items[item] for item in items.tolist()], width, side.values)
    if side.offsets is None:
        return _zero_padding(side, _rows(side).index_select(0, items), items)
    offsets, values = side.offsets.to(items.device, non_blocking=True), side.values
    starts, ends = (offsets[k : k + len(side)].index_select(0, items)[:, None] for k in (0, 1))
    places = torch.arange(width, device=items.device)
    mask = places < ends - starts
    if not values.size(0):
        values = F.pad(values, (0, 0, 0, 1))
    rows = values.index_select(0, (starts + places).where(mask, starts.clamp(max=values.size(0) - 1)).flatten())
    rows = rows.view(*mask.shape, values.size(1))
    return rows.masked_fill(~mask[:, :, None], 0), places < (ends - starts).clamp(min=1)


def pad_items(side: Ragged) -> tuple[Tensor, Tensor]:
    """Items as (n, L, D) with zeros where they have no rows, and the mask (n, L) of those they have.

    L is `width`.
    """
    if side.items is not None:
        return _pad_list(side.items, side.width, side.values)
    if side.offsets is not None:
        return pad(side.values, side.lengths.tolist())
    return _zero_padding(side, _rows(side), None)


def pad_pairs(
    regions: Ragged, words: Ragged, pairs: Tensor | None, normalize: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Regions (…, R, D), their mask (…, R), words and theirs, of pairs: "…" is (P,), or of all pairs (n_images, 1) and
    (1, n_captions).
    """
    (v, v_mask), (e, e_mask) = pad_items(regions), pad_items(words)
    if normalize:
        v, e = safe_normalize(v), safe_normalize(e)
    if pairs is None:
        return v[:, None], v_mask[:, None], e[None], e_mask[None]
    images, captions = pairs.unbind(1)
    return v[images], v_mask[images], e[captions], e_mask[captions]


def _rows(side: Ragged) -> Tensor:
    return side.values if side.values.size(1) else F.pad(side.values, (0, 0, 0, 1))


def _zero_padding(side: Ragged, rows: Tensor, items: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows (P, L, D) of padded items, all in order or some, with their mask."""
    mask = _valid(side, rows.size(1), items)
    if mask is None:
        return rows, torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
    first = torch.arange(rows.size(1), device=rows.device) == 0
    return rows.masked_fill(~mask[:, :, None], 0), mask | (first & ~mask.any(1, keepdim=True))


def _valid(side: Ragged, width: int, items: Tensor | None = None) -> Tensor | None:
    """Which of `width` places of padded items hold rows, (P, width); None where all do."""
    valid = side.padded_lengths if side.mask is None else side.mask
    if valid is None and side.values.size(1):
        return None
    if valid is None:
        return side.values.new_zeros(len(side) if items is None else len(items), width, dtype=torch.bool)
    valid = valid.to(side.values.device, non_blocking=True)
    if items is not None:
        valid = valid.index_select(0, items)
    if side.mask is None:
        return torch.arange(width, device=valid.device) < valid[:, None]
    return F.pad(valid, (0, width - valid.size(1)))


def pad(rows: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Packed rows (sum of lengths, D) as (n, longest, D) with zeros behind, and the mask (n, longest) of valid rows.

    longest is at least 1, and so is the mask's of every item.
    """
    longest = max(1, *lengths) if lengths else 1
    sizes = torch.tensor(lengths, dtype=torch.int64).to(rows.device, non_blocking=True)
    places = torch.arange(longest, device=rows.device)
    mask = places < sizes[:, None]
    padded = rows.new_zeros(len(lengths), longest, rows.size(-1)).masked_scatter(mask[:, :, None], rows)
    return padded, places < sizes.clamp(min=1)[:, None]


def _pad_list(items: Sequence[Tensor], width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The first `width` rows of items (L, D), padded, and their mask."""
    rows = like.new_zeros(len(items), width, like.size(-1))
    for row, item in zip(rows.unbind(), items, strict=True):
        row[: item.size(0)] = item[:width]
    sizes = torch.tensor([max(1, item.size(0)) for item in items], dtype=torch.int64)
    sizes = sizes.to(like.device, non_blocking=True)
    return rows, torch.arange(width, device=like.device) < sizes[:, None]
