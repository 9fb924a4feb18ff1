"""Ragged feature sequences: one internal form for padded, packed and list inputs, and every check on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Features: TypeAlias = "Tensor | tuple[Tensor, Tensor] | Sequence[Tensor]"
Lengths: TypeAlias = "Tensor | Sequence[int] | None"

FEATURE_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FEW = 128  # integers, which Python looks at faster than tensor operations do


@dataclass(slots=True)
class Ragged:
    """Items of any length in one array, as the caller laid them out: neither form is copied to be scored.

    Attributes:
        values: padded (n, L, D), or packed (rows, D).
        offsets: (n + 1,) int64, item k is ``values[offsets[k] : offsets[k + 1]]``; None where padded.
        padded_lengths: (n,) int64, item k is ``values[k, : padded_lengths[k]]``; None where packed, or all L are valid.

    Both are on the values' device, or on the CPU where the caller keeps them there: a plan can be made of them without
    waiting for a device.
    """

    values: Tensor
    offsets: Tensor | None
    padded_lengths: Tensor | None

    def __len__(self) -> int:
        return self.values.size(0) if self.offsets is None else self.offsets.size(0) - 1

    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(values, offsets, lengths), as the native operations take them."""
        return self.values, self.offsets, self.padded_lengths

    @property
    def lengths(self) -> Tensor:
        """(n,) int64, where offsets and padded_lengths are; on the CPU where there are neither."""
        if self.offsets is not None:
            return self.offsets.diff()
        if self.padded_lengths is not None:
            return self.padded_lengths
        n, longest, _ = self.values.shape
        return torch.full((n,), longest, dtype=torch.int64)

    @property
    def width(self) -> int:
        """Rows that every item has when padded: those of features that came padded, else the longest item's.

        At least 1, so that maxima along the rows exist of no items at all too.
        """
        if self.offsets is None:
            return max(1, self.values.size(1))
        return int(self.lengths.max()) if len(self) else 1

    def without_values(self) -> Ragged:
        """The layout alone, to keep where the values must not be kept: they are to be replaced ahead of any use."""
        return replace(self, values=self.values.new_empty(0))

    def gathered(self, items: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Rows of `padded` for these items alone, in the order of `items` (P,) int64; no others are copied."""
        places = torch.arange(width, device=self.values.device)
        if self.offsets is None:
            values = self.values if self.values.size(1) else F.pad(self.values, (0, 0, 0, 1))
            rows = values.index_select(0, items)
            if self.padded_lengths is None:
                return rows, torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
            mask = places < self.padded_lengths.to(items.device).index_select(0, items)[:, None]
        else:
            offsets = self.offsets.to(items.device)
            starts, ends = (offsets[k : k + len(self)].index_select(0, items)[:, None] for k in (0, 1))
            mask = places < ends - starts
            rows = self.values.index_select(0, (starts + places).where(mask, starts).flatten())
            rows = rows.view(*mask.shape, self.values.size(1))
        return rows.masked_fill(~mask[:, :, None], 0), mask

    def packed(self) -> Tensor:
        """Rows of all items without gaps, (sum of lengths, D)."""
        if self.offsets is not None:
            return self.values
        rows = self.values.flatten(0, 1)
        if self.padded_lengths is None:
            return rows
        mask = torch.arange(self.values.size(1), device=rows.device) < self.padded_lengths.to(rows.device)[:, None]
        return rows.index_select(0, mask.flatten().nonzero().flatten())

    def padded(self) -> tuple[Tensor, Tensor]:
        """Items as (n, L, D) with zeros behind their ends, and the mask (n, L) of valid rows.

        L is `width`.
        """
        if self.offsets is not None:
            return pad(self.values, self.lengths.tolist())
        values = self.values if self.values.size(1) else F.pad(self.values, (0, 0, 0, 1))
        if self.padded_lengths is None:
            return values, torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
        mask = torch.arange(values.size(1), device=values.device) < self.padded_lengths.to(values.device)[:, None]
        return values.masked_fill(~mask[:, :, None], 0), mask


def pad(packed: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Packed rows (sum of lengths, D) as (n, longest, D) with zeros behind, and the mask (n, longest) of valid rows.

    Of no items at all, longest is 1: maxima along the rows exist then too.
    """
    longest = max(lengths, default=1)
    sizes = torch.tensor(lengths, dtype=torch.int64, device=packed.device)
    mask = torch.arange(longest, device=packed.device) < sizes[:, None]
    padded = packed.new_zeros(len(lengths), longest, packed.size(-1)).masked_scatter(mask[:, :, None], packed)
    return padded, mask


def as_ragged(features: Features, lengths: Lengths, *, name: str, lengths_name: str, item: str) -> Ragged:
    """Checks one side of the input and brings it to `Ragged`.

    Raises TypeError for what is no floating-point tensor and ValueError, naming the argument and the index, for wrong
    shapes, lengths out of range and empty items. While torch.compile traces, values cannot be looked at: the native
    operation then makes the same checks when it runs.
    """
    if isinstance(features, Tensor):
        return _from_padded(features, lengths, name, lengths_name, item)
    if lengths is not None:
        raise ValueError(f"{lengths_name} goes with padded {name} only: packed and list inputs know their lengths")
    if isinstance(features, tuple) and len(features) == 2 and is_offsets(features[1]):
        return _from_packed(features[0], features[1], name, item)
    if isinstance(features, Sequence):
        return _from_list(features, name, item)
    raise TypeError(
        f"{name} must be a (n, L, D) tensor, a (values, cu_seqlens) pair or a list of (L, D) tensors, "
        f"not {type(features).__name__}"
    )


def most_rows(features: Features) -> int | None:
    """How many rows an item can have, as far as the shapes of checked input tell: None where packed."""
    if isinstance(features, Tensor):
        return features.size(1)
    packed = isinstance(features, tuple) and len(features) == 2 and is_offsets(features[1])
    return None if packed else max(item.size(0) for item in features)


def check_together(regions: Ragged, words: Ragged) -> None:
    """Raises where regions and words cannot be compared: other D, dtype (autocast aside) or device, or no values."""
    v, e = regions.values, words.values
    if v.size(-1) != e.size(-1):
        raise ValueError(f"regions have D = {v.size(-1)} but words have D = {e.size(-1)}: they must agree")
    if v.device != e.device:
        raise ValueError(f"regions are on {v.device} but words are on {e.device}")
    if v.is_meta and checkable():
        raise ValueError("regions and words are on the meta device, which holds no values to score")
    if v.dtype != e.dtype and not _autocast_unites(v, e):
        raise TypeError(f"regions are {v.dtype} but words are {e.dtype}: they must agree")


def _autocast_unites(regions: Tensor, words: Tensor) -> bool:
    """Whether autocast, which hands some layers' outputs on in its own dtype and others' not, gives both one dtype."""
    device_type = regions.device.type
    enabled = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return enabled and torch.float64 not in (regions.dtype, words.dtype)


def checkable() -> bool:
    """Whether tensor values may be looked at: not while torch.compile traces or a CUDA graph is captured."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def check_traceable(takes_padded: str, *sides: Ragged) -> None:
    """Raises ValueError where packed or listed items meet torch.compile, which cannot know their longest.

    `takes_padded` begins its message: who takes what padded.
    """
    if not checkable() and any(side.offsets is not None for side in sides):
        raise ValueError(f"{takes_padded} inside torch.compile: call it outside with packed or list ones")


def as_int64(integers: Tensor, name: str) -> Tensor:
    """Lengths, offsets or indices as int64, where they are; TypeError or ValueError where they are no such thing."""
    check_integers(integers, name)
    return integers if integers.dtype == torch.int64 else integers.to(torch.int64)


def check_integers(integers: Tensor, name: str) -> None:
    """The check alone, which copies nothing."""
    _check_dense(integers, name)
    if integers.dtype not in INTEGER_DTYPES:
        raise TypeError(f"{name} must be integers, not {integers.dtype}")
    check_has_values(integers, name)


def check_floating(tensor: Tensor, name: str) -> None:
    """Raises TypeError where a tensor is not dense or of a dtype that is not scored; it may lack values."""
    _check_dense(tensor, name)
    if tensor.dtype not in FEATURE_DTYPES:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, not {tensor.dtype}")


def check_has_values(tensor: Tensor, name: str) -> None:
    """Raises ValueError on the meta device; what traces a call, or fakes its tensors, gives them their own device."""
    if tensor.is_meta and checkable():
        raise ValueError(f"{name} is on the meta device, which holds no values")


def as_integers(integers: Tensor | Sequence[int], name: str) -> Tensor:
    """The same from a tensor or a list."""
    if isinstance(integers, Tensor):
        return as_int64(integers, name)
    if not isinstance(integers, Sequence):
        raise TypeError(f"{name} must be an integer tensor or a list of integers, not {type(integers).__name__}")
    for index, integer in enumerate(integers):
        if isinstance(integer, bool) or not isinstance(integer, (int, np.integer)):
            raise TypeError(f"{name}[{index}] must be an integer, not {type(integer).__name__}")
        if not -(2**63) <= integer < 2**63:
            raise ValueError(f"{name}[{index}] is {integer}: it does not fit 64 bits")
    return torch.tensor([int(integer) for integer in integers], dtype=torch.int64)


def _from_padded(features: Tensor, lengths: Lengths, name: str, lengths_name: str, item: str) -> Ragged:
    _check_features(features, name, 3, "(n, L, D)")
    n, longest, _ = features.shape
    looking = checkable()
    if looking and n and longest == 0:
        raise ValueError(f"{name} has no rows (shape {tuple(features.shape)}): {item} 0 is empty")
    if lengths is None:
        return Ragged(features, None, None)
    sizes = as_integers(lengths, lengths_name)
    if sizes.dim() != 1 or sizes.size(0) != n:
        raise ValueError(f"{lengths_name} must hold one length for each of {n} {item}s, got {tuple(sizes.shape)}")
    if looking:
        _check_lengths(sizes, longest, lengths_name, item)
    return Ragged(features, None, _within_reach(sizes, features))


def _from_packed(values: Tensor, cu_seqlens: Tensor, name: str, item: str) -> Ragged:
    if not isinstance(values, Tensor):
        raise TypeError(f"{name}[0] must be the tensor of packed rows, not {type(values).__name__}")
    _check_features(values, f"{name}[0]", 2, "(rows, D)")
    offsets = as_int64(cu_seqlens, f"{name}[1] (cu_seqlens)")
    if offsets.dim() != 1:
        raise ValueError(f"{name}[1] (cu_seqlens) must have one dimension, got shape {tuple(offsets.shape)}")
    if checkable():
        _check_offsets(offsets, values.size(0), name, item)
    return Ragged(values, _within_reach(offsets, values), None)


def _from_list(features: Sequence[Tensor], name: str, item: str) -> Ragged:
    if not features:
        raise ValueError(f"{name} is an empty list: D is unknown; pass a (0, L, D) tensor for an empty batch")
    for index, feature in enumerate(features):
        if not isinstance(feature, Tensor):
            raise TypeError(f"{name}[{index}] must be a (L, D) tensor, not {type(feature).__name__}")
        _check_features(feature, f"{name}[{index}]", 2, "(L, D)")
        if feature.size(0) == 0:
            raise ValueError(f"{name}[{index}] is empty: every {item} needs at least one row")
        first = features[0]
        if feature.size(1) != first.size(1):
            raise ValueError(f"{name}[{index}] has D = {feature.size(1)} but {name}[0] has D = {first.size(1)}")
        if feature.dtype != first.dtype:
            raise TypeError(f"{name}[{index}] is {feature.dtype} but {name}[0] is {first.dtype}")
        if feature.device != first.device:
            raise ValueError(f"{name}[{index}] is on {feature.device} but {name}[0] is on {first.device}")
    if len(features) == 1:
        return Ragged(features[0].unsqueeze(0), None, None)
    values = torch.cat(list(features))
    ends = accumulate((feature.size(0) for feature in features), initial=0)
    return Ragged(values, torch.tensor(list(ends), dtype=torch.int64), None)


def _within_reach(integers: Tensor, features: Tensor) -> Tensor:
    """Where `Ragged` has lengths and offsets of these features."""
    return integers if integers.device.type == "cpu" else integers.to(features.device)


def is_offsets(candidate: object) -> bool:
    """Whether the second of two features is the cu_seqlens of the first, and not another item."""
    return isinstance(candidate, Tensor) and (candidate.dim() == 1 or not candidate.is_floating_point())


def _check_features(features: Tensor, name: str, dims: int, shape: str) -> None:
    check_floating(features, name)
    if features.dim() != dims:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(features.shape)}")
    if features.size(-1) == 0:
        raise ValueError(f"{name} has D = 0 (shape {tuple(features.shape)})")


def bounds(integers: Tensor) -> tuple[int, int]:
    """Smallest and largest of at least one integer."""
    if integers.numel() <= FEW:
        values = integers.tolist() if integers.dim() == 1 else integers.flatten().tolist()
        return min(values), max(values)
    lowest, highest = integers.aminmax()
    return int(lowest), int(highest)


def _check_lengths(sizes: Tensor, longest: int, name: str, item: str) -> None:
    if sizes.size(0) == 0:
        return
    lowest, highest = bounds(sizes)
    if lowest < 1 or highest > longest:
        index = int(((sizes < 1) | (sizes > longest)).nonzero()[0])
        size = int(sizes[index])
        reason = f"every {item} needs at least one row" if size == 0 else f"it must lie in 1..{longest}"
        raise ValueError(f"{name}[{index}] is {size}: {reason}")


def _check_offsets(offsets: Tensor, rows: int, name: str, item: str) -> None:
    few = offsets.size(0) <= FEW
    ends = offsets.tolist() if few else offsets[:: offsets.size(0) - 1].tolist()
    if not ends or ends[0] != 0:
        raise ValueError(f"{name}[1] (cu_seqlens) must begin with 0")
    if ends[-1] != rows:
        raise ValueError(f"{name}[1] (cu_seqlens) ends at {ends[-1]} but {name}[0] has {rows} rows")
    if not few or any(end <= start for start, end in pairwise(ends)):
        _check_lengths(offsets.diff(), rows, f"diff of {name}[1] (cu_seqlens)", item)


def _check_dense(tensor: Tensor, name: str) -> None:
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name} must be a dense tensor, not a {kind} one")
