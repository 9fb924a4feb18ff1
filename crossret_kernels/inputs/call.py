"""One call over images and captions: its checked sides, which of their pairs it scores, and its results in shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from crossret_kernels.inputs.options import check_number
from crossret_kernels.inputs.pairs import ATTENDING, PAIRS_AT_ONCE, Pairs, as_pairs
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, SideNames, autocasts, checkable, lengths_on_device, together_on_host
from crossret_kernels.operations import needs_gradient
from crossret_kernels.torch_internals import transformed

Features: TypeAlias = "Array | tuple[Array, Array] | Sequence[Array] | Ragged"
Lengths: TypeAlias = "Array | Sequence[int] | None"

REGIONS = SideNames("regions", "region_lengths", "region_mask", "image")
WORDS = SideNames("words", "word_lengths", "word_mask", "caption")
IMAGES_AND_CAPTIONS = REGIONS, WORDS
NUMBERS_AT_ONCE = 2**22  # results of a slice of pairs: 16 MiB of float32


@dataclass(slots=True)
class Call:
    """A call over two sides, checked.

    Attributes:
        images, captions: both sides.
        pairs: the pairs to score; None for all.
        empty_score: the score of pairs of an empty item; None where no item is empty.
        gradients: whether autograd records what is made of the features.
    """

    images: Ragged
    captions: Ragged
    pairs: Pairs | None
    empty_score: float | None
    gradients: bool = field(init=False)

    def __post_init__(self) -> None:
        self.gradients = needs_gradient((self.images.values, self.captions.values))

    @property
    def values(self) -> Tensor:
        """The images' features, for the device and the dtype of both sides."""
        return self.images.values

    @property
    def listed(self) -> Tensor | None:
        """All pairs (P, 2) as int64 (image, caption) on the device; None for all."""
        return None if self.pairs is None else self.pairs.listed()

    def sides(self, direction: str) -> tuple[Ragged, Ragged]:
        """Queries and contexts."""
        return (self.captions, self.images) if direction == "t2i" else (self.images, self.captions)

    def run(
        self,
        operation: Callable[..., Any],
        options: tuple[object, ...],
        *,
        listed: Callable[..., Tensor] | None = None,
        queries: Ragged | None = None,
        numbers: int = 1,
    ) -> Any:
        """The results of an operation as `define` makes it: one (P,), or (P, Q) of `queries`, or both; of each query
        so many `numbers` in all.

        Where the pairs are no list yet and no gradient keeps it, the operation gets slices of it, one after the other,
        so that there is never more of it than a slice. torch.compile and torch.func get the list. Lists of features go
        to the operation `listed` as they are, where there is one and neither a gradient nor autocast goes through it.
        """
        images, captions, pairs = self.images, self.captions, self.pairs
        sides: tuple[object, ...]
        if images.items is None and captions.items is None:
            sides = images.tensors() + captions.tensors()
        elif listed is None or self.gradients or autocasts(self.values.device.type):
            sides = images.joined().tensors() + captions.joined().tensors()
        else:
            operation, sides = listed, images.listed() + captions.listed()
        if pairs is None:
            return operation(*sides, None, *options)
        at_once = pairs.pair_list is not None or not checkable() or pairs.indices.numel() <= PAIRS_AT_ONCE
        if at_once or self.gradients or transformed():
            return operation(*sides, pairs.listed(), *options)
        size = max(1, min(PAIRS_AT_ONCE, NUMBERS_AT_ONCE // numbers) // (1 if queries is None else queries.width))
        results: tuple[Tensor, ...] = ()
        start = 0
        for part in pairs.in_parts(size):
            output = operation(*sides, part, *options)
            part_results = (output,) if isinstance(output, Tensor) else output
            if start == 0:
                results = tuple(x.new_empty((len(pairs), *x.shape[1:])) for x in part_results)
            for result, x in zip(results, part_results, strict=True):
                result[start : start + len(part)] = x
            start += len(part)
        return results if len(results) > 1 else results[0]

    def filled(self, result: Tensor, value: float) -> Tensor:
        """Results of all pairs (n_images, n_captions, …) or listed ones (P, …), with `value` where an item is empty.

        No gradient goes there.
        """
        i, c, pairs = self.images.empty, self.captions.empty, self.listed
        empty = i[:, None] | c if pairs is None else i[pairs[:, 0]] | c[pairs[:, 1]]
        return result.masked_fill(empty.view(*empty.shape, *[1] * (result.dim() - empty.dim())), float(value))

    def shaped(self, result: Tensor) -> Tensor:
        """Results (P, …) as the caller gets them: (n_queries, K, …) for candidates."""
        if self.pairs is None or self.pairs.query is None:
            return result
        return result.view(*self.pairs.indices.shape, *result.shape[1:])

    def as_scores(self, result: Tensor) -> Tensor:
        """Scores, `shaped`, at least float32."""
        if result.dtype is not torch.float32 and result.dtype is not torch.float64:
            result = result.float()
        return self.shaped(result)

    def as_results(self, results: Sequence[Tensor]) -> list[Tensor]:
        """`as_scores` of several results, scores first; pairs of empty items have the empty score, others 0 there."""
        if self.empty_score is not None:
            fills = [self.empty_score] + [0.0] * (len(results) - 1)
            results = [self.filled(x, fill) for x, fill in zip(results, fills, strict=True)]
        return [self.as_scores(x) for x in results]


def as_call(
    sides: tuple[Any, ...],
    pairs: Array | None,
    candidates: Array | None,
    query: str | None,
    direction: str = "t2i",
    *,
    same_dim: bool = True,
) -> Call:
    """A call, checked.

    Args:
        sides: regions, words, their lengths, their masks and the score of empty items, as `as_sides` takes them.
        pairs, candidates, query: as `as_pairs` takes them.
        direction: of the scores: the attending side has the candidates, unless `query` says.
        same_dim: whether both sides have the same D.
    """
    images, captions = as_sides(*sides, same_dim=same_dim)
    return Call(images, captions, as_pairs(pairs, candidates, query, ATTENDING[direction], images, captions), sides[-1])


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
    first, second = together_on_host((first, second))
    images = Ragged.of(regions, region_lengths, region_mask, names[0], empty, looking, first)
    captions = Ragged.of(words, word_lengths, word_mask, names[1], empty, looking, second)
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
    shapes, lengths out of range and empty items. While torch.compile traces, values cannot be looked at: kernels then
    make these checks when they run, PyTorch operations none.
    """
    looking = checkable()
    (on_host,) = together_on_host([lengths_on_device(features, lengths, mask) if looking else None])
    return Ragged.of(features, lengths, mask, names, empty, looking, on_host)


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
    # Autocast, which hands some layers' outputs on in its dtype and others' not, gives both one, but for float64.
    if v.dtype is not e.dtype and (not autocasts(v.device.type) or torch.float64 in (v.dtype, e.dtype)):
        raise TypeError(f"{first} are {v.dtype} but {second} are {e.dtype}: they must agree")


def check_traceable(takes_padded: str, *sides: Ragged) -> None:
    """Raises ValueError where packed or listed items meet torch.compile, which cannot know their longest.

    `takes_padded` begins its message: who takes what padded.
    """
    if not checkable() and any(side.offsets is not None for side in sides):
        raise ValueError(f"{takes_padded} inside torch.compile: call it outside with packed or list ones")
