"""`Ragged`: items of any length, padded with lengths or a mask, packed with offsets, or listed, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import lt
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.inputs.tensors import (
    DENSE,
    FEW,
    INT64,
    INTEGER_DTYPES,
    Array,
    as_integers,
    as_tensor,
    bounds,
    check_dense,
    check_floating,
    check_has_values,
    checkable,
    together_on_host,
)

# Values, offsets, lengths, mask and items of a list, as `Ragged` has them.
Parts: TypeAlias = "tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Sequence[Tensor] | None]"


class SideNames(NamedTuple):
    """How errors call a side's features, their lengths and mask, and one item."""

    features: str
    lengths: str
    mask: str
    item: str


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


def checked_parts(
    features: Any, lengths: Any, mask: Any, names: SideNames, empty: bool, looking: bool, on_host: Tensor | None = None
) -> Parts:
    """Parts of features in any layout; `as_ragged` says what they may be and what it raises.

    Args:
        looking: the answer of `checkable`, asked once a call.
        on_host: a copy on the CPU of lengths, mask or offsets that lie on a device, which takes their place.
    """
    name, lengths_name, mask_name, item = names
    if not isinstance(features, Tensor):
        if not isinstance(features, np.ndarray):
            check_alone(lengths, mask, names, "packed and list inputs know their lengths")
            if is_packed(features):
                return packed_parts(*features, (f"{name}[0]", f"{name}[1] (cu_seqlens)"), item, empty, looking, on_host)
            if isinstance(features, Sequence):
                return _list_parts(features, name, item, empty)
            raise TypeError(
                f"{name} must be a (n, L, D) tensor, a (values, cu_seqlens) pair or a list of (L, D) tensors, "
                f"not {type(features).__name__}"
            )
        features = cast("Tensor", as_tensor(features, name))
    sizes = _check_features(features, name, 3, "(n, L, D)")
    if looking and not sizes[1] and sizes[0] and not empty:
        raise ValueError(f"{name} has no rows (shape {tuple(features.shape)}): {item} 0 is empty")
    if mask is not None:
        if lengths is not None:
            raise ValueError(f"{lengths_name} and {mask_name} exclude each other: pass one of them")
        return features, None, None, _as_mask(mask, mask_name, features, name, item, empty, on_host), None
    if lengths is None:
        return features, None, None, None, None
    n, longest, _ = sizes
    counts = as_integers(lengths, lengths_name)
    if counts.dim() != 1 or counts.size(0) != n:
        raise ValueError(
            f"{lengths_name} must hold one length for each of {n} {plural(item)}, got {tuple(counts.shape)}"
        )
    if on_host is not None:
        counts = on_host.to(INT64)
    if looking:
        _check_lengths(counts, longest, lengths_name, item, empty)
    return features, None, counts if counts.is_cpu else counts.to(features.device), None, None


def check_alone(lengths: Any, mask: Any, names: SideNames, reason: str) -> None:
    """Raises ValueError where lengths or a mask stand beside features that have their own."""
    if lengths is not None or mask is not None:
        name = names.lengths if lengths is not None else names.mask
        raise ValueError(f"{name} goes with padded {names.features} only: {reason}")


def lengths_on_device(features: Any, lengths: Any, mask: Any, offsets: Any = None) -> Tensor | None:
    """The lengths, mask or offsets of a side, where they are a tensor on a device; else None."""
    known = lengths if mask is None else mask
    if offsets is not None:
        known = offsets
    elif isinstance(features, tuple) and len(features) == 2:
        known = features[1]
    if not isinstance(known, Tensor) or known.is_cpu or known.is_meta:
        return None
    dense = known.layout is DENSE and not known.is_nested
    return known if dense and (known.dtype in INTEGER_DTYPES or known.dtype is torch.bool) else None


def plural(item: str) -> str:
    """What errors call several: images, queries."""
    return f"{item[:-1]}ies" if item.endswith("y") else f"{item}s"


def _as_mask(
    mask: Any, mask_name: str, features: Tensor, name: str, item: str, empty: bool, on_host: Tensor | None = None
) -> Tensor:
    """The mask (n, L) of padded features, contiguous, checked; features on the meta device may stand for others.

    `on_host` is a copy of it on the CPU, to look at and to return, where it lies on a device.
    """
    mask = as_tensor(mask, mask_name)
    if not isinstance(mask, Tensor):
        raise TypeError(f"{mask_name} must be a bool tensor, not {type(mask).__name__}")
    check_dense(mask, mask_name)
    if mask.dtype != torch.bool:
        raise TypeError(f"{mask_name} must be bool, True where {name} hold a row, not {mask.dtype}")
    if mask.shape != features.shape[:2]:
        raise ValueError(f"{mask_name} must have shape (n, L) = {tuple(features.shape[:2])}, got {tuple(mask.shape)}")
    check_has_values(mask, mask_name)
    if mask.device != features.device and not features.is_meta:
        raise ValueError(f"{mask_name} is on {mask.device} but {name} are on {features.device}")
    mask = mask if on_host is None else on_host
    if not empty and checkable():
        filled = mask.any(1)
        if not filled.all():
            index = int((~filled).nonzero()[0])
            raise ValueError(f"{mask_name}[{index}] has no True: every {item} needs at least one row")
    return mask.contiguous()


def packed_parts(
    values: Any, offsets: Any, names: tuple[str, str], item: str, empty: bool, looking: bool, on_host: Tensor | None
) -> Parts:
    """Parts of packed rows (rows, D) and offsets (n + 1,), whose names errors use; all else as in `checked_parts`."""
    if not isinstance(values, Tensor):
        values = as_tensor(values, names[0])
    if not isinstance(values, Tensor):
        raise TypeError(f"{names[0]} must be the tensor of packed rows, not {type(values).__name__}")
    rows = _check_features(values, names[0], 2, "(rows, D)")[0]
    offsets = as_integers(offsets, names[1])
    if offsets.dim() != 1:
        raise ValueError(f"{names[1]} must have one dimension, got shape {tuple(offsets.shape)}")
    if on_host is not None:
        offsets = on_host.to(INT64)
    if looking:
        _check_offsets(offsets, rows, names, item, empty)
    return values, offsets if offsets.is_cpu else offsets.to(values.device), None, None, None


def _list_parts(features: Sequence[Any], name: str, item: str, empty: bool) -> Parts:
    if not features:
        raise ValueError(f"{name} is an empty list: D is unknown; pass a (0, L, D) tensor for an empty batch")
    items: list[Tensor] = [
        feature if isinstance(feature, Tensor) else as_tensor(feature, f"{name}[{index}]")
        for index, feature in enumerate(features)
    ]
    first = items[0]
    _check_item(first, first, f"{name}[0]", name)
    rows = _rows_of_alike(items, first)
    if rows is None or (not empty and 0 in rows):
        for index, feature in enumerate(items):
            _check_item(feature, first, f"{name}[{index}]", name)
            if not empty and not feature.size(0):
                raise ValueError(f"{name}[{index}] is empty: every {item} needs at least one row")
        rows = [feature.size(0) for feature in items]
    if len(items) == 1:
        return first.unsqueeze(0), None, None, None, None
    offsets = torch.tensor(list(accumulate(rows, initial=0)), dtype=torch.int64)
    return first[:0], offsets, None, None, items


def _rows_of_alike(items: Sequence[Any], first: Tensor) -> list[int] | None:
    """Rows of every item, where all are features like the first: checks one by one cost as much as scores."""
    dtype, device, dim = first.dtype, first.device, first.shape[1]
    if not all([isinstance(feature, Tensor) and not feature.is_nested for feature in items]):
        return None
    if not all([feature.dtype is dtype and feature.layout is DENSE for feature in items]):
        return None
    if not all([feature.device == device for feature in items]):
        return None
    shapes = [feature.shape for feature in items]
    alike = all([len(shape) == 2 and shape[1] == dim for shape in shapes])
    return [shape[0] for shape in shapes] if alike else None


def _check_item(feature: Any, first: Tensor, item_name: str, name: str) -> None:
    """Raises where an item of a list is no features, or none that go with those of the first."""
    if not isinstance(feature, Tensor):
        raise TypeError(f"{item_name} must be a (L, D) tensor, not {type(feature).__name__}")
    _check_features(feature, item_name, 2, "(L, D)")
    if feature.size(1) != first.size(1):
        raise ValueError(f"{item_name} has D = {feature.size(1)} but {name}[0] has D = {first.size(1)}")
    if feature.dtype != first.dtype:
        raise TypeError(f"{item_name} is {feature.dtype} but {name}[0] is {first.dtype}")
    if feature.device != first.device:
        raise ValueError(f"{item_name} is on {feature.device} but {name}[0] is on {first.device}")


def is_packed(features: Any) -> TypeGuard[tuple[Any, Any]]:
    """Whether these are rows with their cu_seqlens, and not a list: its second is another item."""
    if not isinstance(features, tuple) or len(features) != 2:
        return False
    second = features[1]
    if isinstance(second, Tensor):
        return second.dim() == 1 or not second.is_floating_point()
    return isinstance(second, np.ndarray) and (second.ndim == 1 or second.dtype.kind != "f")


def _check_features(features: Tensor, name: str, dims: int, shape: str) -> torch.Size:
    """Their shape, where they are features."""
    check_floating(features, name)
    sizes = features.shape
    if len(sizes) != dims:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(sizes)}")
    if not sizes[-1]:
        raise ValueError(f"{name} has D = 0 (shape {tuple(sizes)})")
    return sizes


def _check_lengths(sizes: Tensor, longest: int, name: str, item: str, empty: bool) -> None:
    if sizes.size(0) == 0:
        return
    lowest, highest = bounds(sizes)
    least = 0 if empty else 1
    if lowest < least or highest > longest:
        index = int(((sizes < least) | (sizes > longest)).nonzero()[0])
        size = int(sizes[index])
        reason = f"every {item} needs at least one row" if size == 0 else f"it must lie in {least}..{longest}"
        raise ValueError(f"{name}[{index}] is {size}: {reason}")


def _check_offsets(offsets: Tensor, rows: int, names: tuple[str, str], item: str, empty: bool) -> None:
    few = offsets.numel() <= FEW
    ends = offsets.tolist() if few else offsets[:: offsets.size(0) - 1].tolist()
    if not ends or ends[0] != 0:
        raise ValueError(f"{names[1]} must begin with 0")
    if ends[-1] != rows:
        raise ValueError(f"{names[1]} ends at {ends[-1]} but {names[0]} has {rows} rows")
    if not few or not all(map(lt, ends, ends[1:])):
        _check_lengths(offsets.diff(), rows, f"diff of {names[1]}", item, empty)
