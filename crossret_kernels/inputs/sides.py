"""Both sides of a call, checked: the features of images and of captions, and whether they can be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.compiler import is_compiling

from crossret_kernels.inputs.options import check_number
from crossret_kernels.inputs.ragged import Ragged, SideNames, check_alone, checked_parts, lengths_on_device
from crossret_kernels.inputs.tensors import Array, autocasts, checkable, together_on_host
from crossret_kernels.operations import needs_gradient
from crossret_kernels.torch_internals import transformed

Features: TypeAlias = "Array | tuple[Array, Array] | Sequence[Array] | Ragged"
Lengths: TypeAlias = "Array | Sequence[int] | None"

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
    first = lengths_on_device(regions, region_lengths, region_mask) if looking else None
    second = lengths_on_device(words, word_lengths, word_mask) if looking else None
    if first is not None or second is not None:
        first, second = together_on_host((first, second))
    images = _checked(regions, region_lengths, region_mask, names[0], empty, looking, first)
    captions = _checked(words, word_lengths, word_mask, names[1], empty, looking, second)
    _check_together(images, captions, names, same_dim)
    return images, captions


def as_ragged(
    features: Features,
    lengths: Lengths,
    mask: Array | None,
    names: SideNames,
    empty: bool = False,
) -> Ragged:
    """One side of the input, checked, as `Ragged`; one that is `Ragged` already is not checked again.

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
    on_host = lengths_on_device(features, lengths, mask) if looking else None
    if on_host is not None:
        (on_host,) = together_on_host((on_host,))
    return _checked(features, lengths, mask, names, empty, looking, on_host)


def _checked(
    features: Any, lengths: Any, mask: Any, names: SideNames, empty: bool, looking: bool, on_host: Tensor | None
) -> Ragged:
    """One side, where `checked_parts` says what `looking` and `on_host` are."""
    if isinstance(features, Ragged):
        check_alone(lengths, mask, names, "a Ragged knows its lengths")
        if features.has_empty and not empty:
            index = int((features.lengths == 0).nonzero()[0])
            raise ValueError(f"{names.features}[{index}] is empty: every {names.item} needs at least one row")
        side = features
    else:
        side = Ragged.trusted(*checked_parts(features, lengths, mask, names, empty, looking, on_host))
    items = side.items
    return side.joined() if items is not None and (is_compiling() or transformed() or needs_gradient(items)) else side


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
