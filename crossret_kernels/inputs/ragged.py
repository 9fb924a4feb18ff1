"""`Ragged`: items of any length, padded with lengths or a mask, packed with offsets, or listed, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from crossret_kernels.inputs.tensors import (
    Array,
    SideNames,
    check_alone,
    check_has_values,
    checkable,
    checked_parts,
    lengths_on_device,
    packed_parts,
    together_on_host,
)
from crossret_kernels.operations import needs_gradient
from crossret_kernels.torch_internals import transformed

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
        items: (L_k, D) of a list, two or more of them; None for other layouts.
        has_empty: whether an item is known to have no rows: functions take such items with an `empty_score` only.

    Raises:
        ValueError: shapes, lengths or offsets out of range, or several of lengths, mask and offsets. TypeError: other
            dtypes. Both name the argument and the place.

    It holds the tensors that it is made of, which must not change in place. Made while torch.compile traces, or under
    torch.inference_mode, it serves there alone. Offsets, lengths and masks are on the values' device or, wherever they
    were looked at, on the CPU: a plan can be made of them without waiting for a device.
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
        (on_host,) = together_on_host([lengths_on_device(values, lengths, mask, offsets) if looking else None])
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
        """Items of parts that are checked already."""
        ragged = cls.__new__(cls)
        ragged.values, ragged.offsets, ragged.padded_lengths = values, offsets, padded_lengths
        ragged.mask, ragged.items, ragged.has_empty = mask, items, False
        return ragged

    @classmethod
    def of(
        cls, features: Any, lengths: Any, mask: Any, names: SideNames, empty: bool, looking: bool,
        on_host: Tensor | None = None,
    ) -> Ragged:  # fmt: skip
        """One side as functions take it, checked, where `checked_parts` says what `looking` and `on_host` are."""
        if isinstance(features, Ragged):
            check_alone(lengths, mask, names, "a Ragged knows its lengths")
            if features.has_empty and not empty:
                index = int((features.lengths == 0).nonzero()[0])
                raise ValueError(f"{names.features}[{index}] is empty: every {names.item} needs at least one row")
            side = features
        else:
            side = cls.trusted(*checked_parts(features, lengths, mask, names, empty, looking, on_host))
        items = side.items
        if items is not None and (is_compiling() or transformed() or needs_gradient(items)):
            return side.joined()
        return side

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
        """(values, offsets, lengths, mask) as operations on lists take them: the values of a list are its items."""
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
        """Whether all items take the same number of rows when padded."""
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
