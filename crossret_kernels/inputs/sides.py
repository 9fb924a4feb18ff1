"""What callers pass: features in any layout, lengths, masks and other integers, as tensors or NumPy arrays, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import lt
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from crossret_kernels.inputs.arrays import as_tensor
from crossret_kernels.inputs.options import check_number
from crossret_kernels.inputs.ragged import Ragged, together_on_host
from crossret_kernels.inputs.tensors import (
    DENSE,
    FEW,
    INT64,
    INTEGER_DTYPES,
    Array,
    as_int64,
    as_integers,
    autocasts,
    bounds,
    check_dense,
    check_floating,
    check_has_values,
    checkable,
)
from crossret_kernels.operations import needs_gradient
from crossret_kernels.torch_internals import transformed

Features: TypeAlias = "Array | tuple[Array, Array] | Sequence[Array]"
Lengths: TypeAlias = "Array | Sequence[int] | None"


class SideNames(NamedTuple):
    """How errors call a side's features, their lengths and mask, and one item."""

    features: str
    lengths: str
    mask: str
    item: str


REGIONS = SideNames("regions", "region_lengths", "region_mask", "image")
WORDS = SideNames("words", "word_lengths", "word_mask", "caption")
IMAGES_AND_CAPTIONS = REGIONS, WORDS


def as_sides(
    regions: Features,
    words: Features,
    region_lengths: Lengths,
    word_lengths: Lengths,
    region_mask: Array | None,
    word_mask: Array | None,
    empty_score: float | None,
    names: tuple[SideNames, SideNames] = IMAGES_AND_CAPTIONS,
    *,
    same_dim: bool = True,
) -> tuple[Ragged, Ragged]:
    """Images and captions, each checked as `as_ragged` does, and whether they can be compared.

    Lengths, masks and offsets that lie on a device are brought to the CPU, those of both sides at once, and stay there:
    this is all that a call waits for.
    """
    empty = empty_score is not None
    if empty:
        check_empty_score(empty_score)
    looking = checkable()
    of_regions = _on_device(regions, region_lengths, region_mask) if looking else None
    of_words = _on_device(words, word_lengths, word_mask) if looking else None
    if of_regions is not None or of_words is not None:
        of_regions, of_words = together_on_host((of_regions, of_words))
    images = _as_ragged(regions, region_lengths, region_mask, names[0], empty, looking, of_regions)
    captions = _as_ragged(words, word_lengths, word_mask, names[1], empty, looking, of_words)
    _check_together(images, captions, names, same_dim)
    return images, captions


def _on_device(features: Any, lengths: Any, mask: Any) -> Tensor | None:
    """What tells the lengths of a side, where it is a tensor on a device that may be looked at; else None."""
    given = lengths if mask is None else mask
    if isinstance(features, tuple) and len(features) == 2:
        given = features[1]
    if not isinstance(given, Tensor) or given.is_cpu or given.is_meta:
        return None
    dense = given.layout is DENSE and not given.is_nested
    return given if dense and (given.dtype in INTEGER_DTYPES or given.dtype is torch.bool) else None


def as_ragged(
    features: Features,
    lengths: Lengths,
    mask: Array | None,
    names: SideNames,
    empty: bool = False,
) -> Ragged:
    """Checks one side of the input and brings it to `Ragged`.

    Args:
        features, lengths, mask: as the operations take them.
        names: for errors.
        empty: whether items may be empty.

    A list stays one unless a gradient, a transformation or torch.compile goes through it: then its items are joined.
    Lengths, a mask or offsets on a device are brought to the CPU as `as_sides` brings them.

    Raises TypeError for what is no floating-point tensor and ValueError, naming the argument and the index, for wrong
    shapes, lengths out of range and empty items. While torch.compile traces, values cannot be looked at: the native
    operation then makes the same checks when it runs.
    """
    looking = checkable()
    there = _on_device(features, lengths, mask) if looking else None
    brought = None if there is None else together_on_host([there])[0]
    return _as_ragged(features, lengths, mask, names, empty, looking, brought)


def _as_ragged(
    features: Features,
    lengths: Lengths,
    mask: Array | None,
    names: SideNames,
    empty: bool,
    looking: bool,
    brought: Tensor | None = None,
) -> Ragged:
    """The same; `looking` is what `checkable` says, asked once a call.

    `brought` is on the CPU what the caller has on a device of lengths, mask or offsets, and takes their place.
    """
    name, lengths_name, mask_name, item = names
    if not isinstance(features, Tensor):
        if not isinstance(features, np.ndarray):
            if lengths is not None or mask is not None:
                given = lengths_name if lengths is not None else mask_name
                raise ValueError(f"{given} goes with padded {name} only: packed and list inputs know their lengths")
            if is_packed(features):
                return _from_packed(*features, name, item, empty, looking, brought)
            if isinstance(features, Sequence):
                return _from_list(features, name, item, empty)
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
        return Ragged(features, None, None, as_mask(mask, mask_name, features, name, item, empty, brought))
    if lengths is None:
        return Ragged(features, None, None)
    n, longest, _ = sizes
    counts = as_integers(lengths, lengths_name)
    if counts.dim() != 1 or counts.size(0) != n:
        raise ValueError(
            f"{lengths_name} must hold one length for each of {n} {plural(item)}, got {tuple(counts.shape)}"
        )
    if brought is not None:
        counts = brought.to(INT64)
    if looking:
        _check_lengths(counts, longest, lengths_name, item, empty)
    return Ragged(features, None, counts if counts.is_cpu else counts.to(features.device))


def plural(item: str) -> str:
    """What errors call several: images, queries."""
    return f"{item[:-1]}ies" if item.endswith("y") else f"{item}s"


def most_rows(features: Features) -> int | None:
    """How many rows an item can have, as far as the shapes of checked input tell: None where packed."""
    if isinstance(features, (Tensor, np.ndarray)):
        return features.shape[1]
    return None if is_packed(features) else max(item.shape[0] for item in features)


def check_empty_score(value: Any) -> None:
    """Raises TypeError or ValueError where it is no number that a score can be; infinite ones are."""
    if isinstance(value, float) and math.isinf(value):
        return
    check_number("empty_score", value)


def _check_together(regions: Ragged, words: Ragged, names: tuple[SideNames, SideNames], same_dim: bool) -> None:
    """Raises where regions and words cannot be compared: other D, dtype (autocast aside) or device, or no values."""
    v, e = regions.values, words.values
    first, second = names[0].features, names[1].features
    if same_dim and v.shape[-1] != e.shape[-1]:
        raise ValueError(f"{first} have D = {v.size(-1)} but {second} have D = {e.size(-1)}: they must agree")
    if v.device != e.device:
        raise ValueError(f"{first} are on {v.device} but {second} are on {e.device}")
    if v.is_meta and checkable():
        raise ValueError(f"{first} and {second} are on the meta device, which holds no values to score")
    # Autocast, which hands some layers' outputs on in its own dtype and others' not, gives both one, but for float64.
    if v.dtype is not e.dtype and (not autocasts(v.device.type) or torch.float64 in (v.dtype, e.dtype)):
        raise TypeError(f"{first} are {v.dtype} but {second} are {e.dtype}: they must agree")


def check_traceable(takes_padded: str, *sides: Ragged) -> None:
    """Raises ValueError where packed or listed items meet torch.compile, which cannot know their longest.

    `takes_padded` begins its message: who takes what padded.
    """
    if not checkable() and any(side.offsets is not None for side in sides):
        raise ValueError(f"{takes_padded} inside torch.compile: call it outside with packed or list ones")


def as_mask(
    mask: Any, mask_name: str, features: Tensor, name: str, item: str, empty: bool, brought: Tensor | None = None
) -> Tensor:
    """The mask (n, L) of padded features, contiguous, checked; features on the meta device may stand for others.

    `brought` is the same mask on the CPU, to look at and to return, where it has been brought there.
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
    mask = mask if brought is None else brought
    if not empty and checkable():
        filled = mask.any(1)
        if not filled.all():
            index = int((~filled).nonzero()[0])
            raise ValueError(f"{mask_name}[{index}] has no True: every {item} needs at least one row")
    return mask.contiguous()


def _from_packed(
    values: Any, cu_seqlens: Any, name: str, item: str, empty: bool, looking: bool, brought: Tensor | None
) -> Ragged:
    values_name, offsets_name = f"{name}[0]", f"{name}[1] (cu_seqlens)"
    if not isinstance(values, Tensor):
        values = as_tensor(values, values_name)
    if not isinstance(values, Tensor):
        raise TypeError(f"{values_name} must be the tensor of packed rows, not {type(values).__name__}")
    rows = _check_features(values, values_name, 2, "(rows, D)")[0]
    offsets = cu_seqlens if isinstance(cu_seqlens, Tensor) else as_tensor(cu_seqlens, offsets_name)
    offsets = as_int64(offsets, offsets_name)
    if offsets.dim() != 1:
        raise ValueError(f"{offsets_name} must have one dimension, got shape {tuple(offsets.shape)}")
    if brought is not None:
        offsets = brought.to(INT64)
    if looking:
        _check_offsets(offsets, rows, name, item, empty)
    return Ragged(values, offsets if offsets.is_cpu else offsets.to(values.device), None)


def _from_list(features: Sequence[Any], name: str, item: str, empty: bool) -> Ragged:
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
        return Ragged(first.unsqueeze(0), None, None)
    offsets = torch.tensor(list(accumulate(rows, initial=0)), dtype=torch.int64)
    side = Ragged(first[:0], offsets, None, items=items)
    return side.joined() if is_compiling() or transformed() or needs_gradient(items) else side


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


def _check_offsets(offsets: Tensor, rows: int, name: str, item: str, empty: bool) -> None:
    few = offsets.numel() <= FEW
    ends = offsets.tolist() if few else offsets[:: offsets.size(0) - 1].tolist()
    if not ends or ends[0] != 0:
        raise ValueError(f"{name}[1] (cu_seqlens) must begin with 0")
    if ends[-1] != rows:
        raise ValueError(f"{name}[1] (cu_seqlens) ends at {ends[-1]} but {name}[0] has {rows} rows")
    if not few or not all(map(lt, ends, ends[1:])):
        _check_lengths(offsets.diff(), rows, f"diff of {name}[1] (cu_seqlens)", item, empty)
