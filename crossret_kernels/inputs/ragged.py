"""`Ragged`: items of any length, padded, packed or listed, with lengths or a mask; one form for all inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.inputs.layouts import SideNames, checked_parts, lengths_on_device, packed_parts
from crossret_kernels.inputs.tensors import Array, check_has_values, checkable

_NAMES = SideNames("values", "lengths", "mask", "item")


@dataclass(slots=True, init=False, eq=False)
class Ragged:
    """Items of any length in the layout that they come in, checked once; functions of features take it for `regions`,
    `words` and their like, as often as it is to be scored.

    ``Ragged(values)`` or, of padded values, ``Ragged(values, lengths=...)`` or ``Ragged(values, mask=...)``; of packed
    ones ``Ragged(values, offsets=...)``. ``len(ragged)`` is the number of items.

    Args:
        values: padded (n, L, D), packed (rows, D) with offsets, or a list of (L_i, D); tensors or arrays of float32,
            bfloat16, float16 or float64. No layout is copied.
        lengths: valid rows of each padded item, (n,) integers.
        mask: valid rows of padded items, (n, L) bool, True anywhere.
        offsets: (n + 1,) integers from 0 to rows: item k is ``values[offsets[k] : offsets[k + 1]]``.

    Attributes:
        values: as given, as a tensor; of a list none, (0, D), for its D, dtype and device.
        offsets: (n + 1,) int64; of a list where its items were if it was packed; None where padded.
        padded_lengths: (n,) int64; None where packed, masked or all L are valid.
        mask: (n, L) bool, contiguous; None where there is none.
        items: (L_k, D) of a list, two or more of them; None for other layouts. No gradient goes to them.
        has_empty: whether an item is known to have no rows: functions take such items with an `empty_score` only.

    Raises:
        ValueError: shapes, lengths or offsets out of range, or several of lengths, mask and offsets. TypeError: other
            dtypes. Both name the argument and the place.

    Offsets, lengths and masks are on the values' device or, wherever they were looked at, on the CPU: a plan can be
    made of them without waiting for a device.
    """

    values: Tensor
    offsets: Tensor | None
    padded_lengths: Tensor | None
    mask: Tensor | None
    items: Sequence[Tensor] | None
    has_empty: bool

    def __init__(
        self,
        values: Array | Sequence[Array],
        *,
        lengths: Array | Sequence[int] | None = None,
        mask: Array | None = None,
        offsets: Array | None = None,
    ) -> None:
        if sum(x is not None for x in (lengths, mask, offsets)) > 1:
            raise ValueError("lengths, mask and offsets exclude each other: pass one of them")
        looking = checkable()
        on_host = lengths_on_device(values, lengths, mask, offsets) if looking else None
        if on_host is not None:
            (on_host,) = together_on_host((on_host,))
        if offsets is None:
            parts = checked_parts(values, lengths, mask, _NAMES, True, looking, on_host)
        else:
            parts = packed_parts(values, offsets, ("values", "offsets"), _NAMES.item, True, looking, on_host)
        self.values, self.offsets, self.padded_lengths, self.mask, self.items = parts
        check_has_values(self.values, "values")
        self.has_empty = looking and not bool(self.lengths.all())

    @classmethod
    def trusted(
        cls,
        values: Tensor,
        offsets: Tensor | None = None,
        padded_lengths: Tensor | None = None,
        mask: Tensor | None = None,
        items: Sequence[Tensor] | None = None,
    ) -> Ragged:
        """Of checked parts."""
        ragged = cls.__new__(cls)
        ragged.values, ragged.offsets, ragged.padded_lengths = values, offsets, padded_lengths
        ragged.mask, ragged.items, ragged.has_empty = mask, items, False
        return ragged

    def __len__(self) -> int:
        return self.values.size(0) if self.offsets is None else self.offsets.size(0) - 1

    def with_values(self, values: Tensor) -> Ragged:
        """Other values in the same layout."""
        return Ragged.trusted(values, self.offsets, self.padded_lengths, self.mask, self.items)

    def as_given(self) -> tuple[Any, Tensor | None, Tensor | None]:
        """(features, lengths, mask) in the layouts that functions take."""
        if self.items is not None:
            return self.items, None, None
        return self.values if self.offsets is None else (self.values, self.offsets), self.padded_lengths, self.mask

    @property
    def most_rows(self) -> int | None:
        """Rows that an item can have, as far as shapes tell: None where packed."""
        if self.items is not None:
            return max(item.shape[0] for item in self.items)
        return self.values.shape[1] if self.offsets is None else None

    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """(values, offsets, lengths, mask), as the native operations take them; not of a list."""
        return self.values, self.offsets, self.padded_lengths, self.mask

    def listed(self) -> tuple[Sequence[Tensor], Tensor | None, Tensor | None, Tensor | None]:
        """The same as operations on lists take it."""
        if self.items is not None:
            return self.items, None, None, None
        return [self.values], self.offsets, self.padded_lengths, self.mask

    def joined(self) -> Ragged:
        """A list as packed rows; other layouts as they are."""
        return self if self.items is None else Ragged.trusted(torch.cat(tuple(self.items)), self.offsets)

    @property
    def lengths(self) -> Tensor:
        """(n,) int64, rows of every item, where its layout is; on the CPU where nothing tells but the shape."""
        if self.offsets is not None:
            return self.offsets.diff()
        if self.mask is not None:
            return self.mask.sum(1)
        if self.padded_lengths is not None:
            return self.padded_lengths
        n, longest, _ = self.values.shape
        return torch.full((n,), longest, dtype=torch.int64)

    @property
    def extents(self) -> Tensor:
        """(n,) int64, rows that every item takes when padded, at least 1: those of a mask lie anywhere."""
        if self.by_width:
            return torch.full((len(self),), self.width, dtype=torch.int64)
        return self.lengths.clamp(min=1)

    @property
    def by_width(self) -> bool:
        """Whether every item takes as many rows as any when padded."""
        return self.offsets is None and self.padded_lengths is None

    @property
    def width(self) -> int:
        """Rows that every item has when padded: those of features that came padded, else the longest item's.

        At least 1, so that maxima along the rows exist of no items at all too.
        """
        if self.offsets is None:
            return max(1, self.values.size(1))
        return max(1, int(self.lengths.max())) if len(self) else 1

    @property
    def empty(self) -> Tensor:
        """(n,) bool on the values' device: which items have no rows."""
        return (self.lengths == 0).to(self.values.device, non_blocking=True)

    def without_values(self) -> Ragged:
        """The layout alone, to keep where the values must not be kept: they are to be replaced ahead of any use."""
        return self.with_values(self.values.new_empty(0))

    def split(self, counts: Sequence[int], widths: Sequence[int]) -> list[Ragged]:
        """Successive items, so many at a time, no copy; of padded ones the first places, so many of each.

        Offsets of a device are waited for once. Gradients of all parts go to the values at once.
        """
        if self.offsets is None:
            of_all: list[list[Tensor] | list[None]] = [
                [None] * len(counts) if x is None else list(x.split(counts))
                for x in (self.values, self.padded_lengths, self.mask)
            ]
            return [
                Ragged.trusted(rows[:, :width], None, lengths, None if mask is None else mask[:, :width])
                for rows, lengths, mask, width in zip(*of_all, widths, strict=True)
            ]
        borders = [0, *accumulate(counts)]
        offsets = self.offsets.cpu()
        own = [offsets[first : last + 1] - offsets[first] for first, last in pairwise(borders)]
        if self.items is not None:
            items = [self.items[first:last] for first, last in pairwise(borders)]
            return [Ragged.trusted(self.values, x, items=listed) for x, listed in zip(own, items, strict=True)]
        return [Ragged.trusted(x, y) for x, y in zip(self.values.split([int(x[-1]) for x in own]), own, strict=True)]

    def packed(self) -> Tensor:
        """Rows of all items without gaps, (sum of lengths, D)."""
        if self.offsets is not None:
            return self.joined().values
        rows = self.values.flatten(0, 1)
        mask = self._valid(self.values.size(1))
        return rows if mask is None else rows.index_select(0, mask.flatten().nonzero().flatten())

    # Padded forms. An empty item has one row there, of zeros, counted as valid: softmax and maxima of no rows would put
    # NaN into gradients, even where the score is replaced.

    def gathered(self, items: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Rows of `padded` for these items alone, in the order of `items` (P,) int64; no others are copied."""
        if self.items is not None:
            return _pad_list([self.items[item] for item in items.tolist()], width, self.values)
        if self.offsets is None:
            return self._zeroed(self._rows().index_select(0, items), items)
        offsets, values = self.offsets.to(items.device, non_blocking=True), self.values
        starts, ends = (offsets[k : k + len(self)].index_select(0, items)[:, None] for k in (0, 1))
        places = torch.arange(width, device=items.device)
        mask = places < ends - starts
        if not values.size(0):
            values = F.pad(values, (0, 0, 0, 1))
        rows = values.index_select(0, (starts + places).where(mask, starts.clamp(max=values.size(0) - 1)).flatten())
        rows = rows.view(*mask.shape, values.size(1))
        return rows.masked_fill(~mask[:, :, None], 0), places < (ends - starts).clamp(min=1)

    def padded(self) -> tuple[Tensor, Tensor]:
        """Items as (n, L, D) with zeros where they have no rows, and the mask (n, L) of those they have.

        L is `width`.
        """
        if self.items is not None:
            return _pad_list(self.items, self.width, self.values)
        if self.offsets is not None:
            return pad(self.values, self.lengths.tolist())
        return self._zeroed(self._rows(), None)

    def _rows(self) -> Tensor:
        return self.values if self.values.size(1) else F.pad(self.values, (0, 0, 0, 1))

    def _zeroed(self, rows: Tensor, items: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows (P, L, D) of padded items, all in order or some, with their mask."""
        mask = self._valid(rows.size(1), items)
        if mask is None:
            return rows, torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
        first = torch.arange(rows.size(1), device=rows.device) == 0
        return rows.masked_fill(~mask[:, :, None], 0), mask | (first & ~mask.any(1, keepdim=True))

    def _valid(self, width: int, items: Tensor | None = None) -> Tensor | None:
        """Which of `width` places of padded items hold rows, (P, width); None where all do."""
        valid = self.padded_lengths if self.mask is None else self.mask
        if valid is None and self.values.size(1):
            return None
        if valid is None:
            return self.values.new_zeros(len(self) if items is None else len(items), width, dtype=torch.bool)
        valid = valid.to(self.values.device, non_blocking=True)
        if items is not None:
            valid = valid.index_select(0, items)
        if self.mask is None:
            return torch.arange(width, device=valid.device) < valid[:, None]
        return F.pad(valid, (0, width - valid.size(1)))


def together_on_host(given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Integers and masks on the CPU: those of a device in one copy, which is waited for."""
    there = [x for x in given if x is not None and not x.is_cpu]
    joined = torch.cat([x.to(there[0].device).flatten().to(torch.int64) for x in there]).cpu()
    parts = iter(joined.split([x.numel() for x in there]))
    return [x if x is None or x.is_cpu else next(parts).view(x.shape).to(x.dtype) for x in given]


def pad(packed: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Packed rows (sum of lengths, D) as (n, longest, D) with zeros behind, and the mask (n, longest) of valid rows.

    longest is at least 1, and so is the mask's of every item.
    """
    longest = max(1, *lengths) if lengths else 1
    sizes = torch.tensor(lengths, dtype=torch.int64).to(packed.device, non_blocking=True)
    places = torch.arange(longest, device=packed.device)
    mask = places < sizes[:, None]
    padded = packed.new_zeros(len(lengths), longest, packed.size(-1)).masked_scatter(mask[:, :, None], packed)
    return padded, places < sizes.clamp(min=1)[:, None]


def _pad_list(items: Sequence[Tensor], width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The same of the first `width` rows of items (L, D)."""
    rows = like.new_zeros(len(items), width, like.size(-1))
    for row, item in zip(rows.unbind(), items, strict=True):
        row[: item.size(0)] = item[:width]
    sizes = torch.tensor([max(1, item.size(0)) for item in items], dtype=torch.int64)
    sizes = sizes.to(like.device, non_blocking=True)
    return rows, torch.arange(width, device=like.device) < sizes[:, None]
