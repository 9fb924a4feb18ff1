"""Blocks of bounded size that pairs are scored in: items whose keys are made together, and pairs of those."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from crossret_kernels.gated_attention.pairing import Listing, Pairing, Rectangle
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.chunked import runs


@dataclass(frozen=True)
class Limits:
    """How many padded rows of images and of captions there are at a time, and how many pairs of them."""

    region_rows: int
    word_rows: int
    pairs: int


@dataclass(frozen=True)
class Items:
    """Items (n,) int64 of a side, ascending, and the rows that they have when padded."""

    indices: Tensor
    longest: int

    def load(self, side: Ragged) -> tuple[Tensor, Tensor]:
        """Their rows (n, longest, D), zeros behind their ends, and the mask (n, longest)."""
        rows, mask = side.gathered(self.indices, self.longest if side.offsets is not None else side.width)
        return rows[:, : self.longest], mask[:, : self.longest]

    def add(self, total: Tensor, side: Ragged, mask: Tensor, gradient: Tensor) -> None:
        """Adds the gradient (n, longest, D) of rows that `load` gave to that of the side's values."""
        mask = mask & ~side.empty.index_select(0, self.indices)[:, None]
        if side.offsets is None:
            gradient = gradient.masked_fill(~mask[:, :, None], 0)
            total[:, : self.longest].index_add_(0, self.indices, gradient)
            return
        starts = side.offsets.to(total.device)[self.indices]
        rows = (starts[:, None] + torch.arange(self.longest, device=total.device))[mask]
        total.index_add_(0, rows, gradient[mask])


@dataclass(frozen=True)
class PairBlock:
    """Some pairs of the loaded images and captions.

    Attributes:
        images, captions: which of the loaded items.
        pairing: the pairs, by places among those.
        where: of their scores in the whole result.
    """

    images: slice
    captions: slice
    pairing: Pairing
    where: tuple[slice, slice] | Tensor


CaptionRun: TypeAlias = tuple[Items, list[PairBlock]]
ImageRun: TypeAlias = tuple[Items, list[CaptionRun]]


def all_blocks(images: Ragged, captions: Ragged, limits: Limits) -> Iterator[ImageRun]:
    """Rectangles that cover all pairs."""
    device = images.values.device
    if not len(images) or not len(captions):
        return
    caption_runs = list(_runs(captions.extents.tolist(), limits.word_rows))
    for i, n_images, longest_image in _runs(images.extents.tolist(), limits.region_rows):
        runs_of_captions = []
        for j, n_captions, longest_caption in caption_runs:
            items = Items(torch.arange(j, j + n_captions, device=device), longest_caption)
            height = min(n_images, max(math.isqrt(limits.pairs), limits.pairs // n_captions))
            width = max(1, limits.pairs // height)
            blocks = [
                PairBlock(
                    slice(a, min(a + height, n_images)),
                    slice(b, min(b + width, n_captions)),
                    Rectangle(),
                    (slice(i + a, i + min(a + height, n_images)), slice(j + b, j + min(b + width, n_captions))),
                )
                for a in range(0, n_images, height)
                for b in range(0, n_captions, width)
            ]
            runs_of_captions.append((items, blocks))
        yield Items(torch.arange(i, i + n_images, device=device), longest_image), runs_of_captions


def listed_blocks(images: Ragged, captions: Ragged, pairs: Tensor, limits: Limits) -> Iterator[ImageRun]:
    """Blocks of pairs (P, 2) that share items, so that few items are loaded more than once, and no other items."""
    for image_items, of_images, places in _grouped(images, pairs[:, 0], limits.region_rows):
        runs_of_captions = []
        for caption_items, of_captions, among in _grouped(captions, pairs[places, 1], limits.word_rows):
            own, order = of_images[among].sort(stable=True)
            other, where = of_captions[order], places[among][order]
            parts = zip(own.split(limits.pairs), other.split(limits.pairs), where.split(limits.pairs), strict=True)
            blocks = [_listed(*part, len(caption_items.indices)) for part in parts]
            runs_of_captions.append((caption_items, blocks))
        yield image_items, runs_of_captions


def _listed(own: Tensor, other: Tensor, where: Tensor, n_captions: int) -> PairBlock:
    """A block of pairs sorted by their images, of which it takes the first to the last, and of all loaded captions."""
    first, last = own[[0, -1]].tolist()
    counts = torch.bincount(own - first).tolist()
    of_captions = torch.bincount(other, minlength=n_captions).tolist()
    return PairBlock(slice(first, last + 1), slice(n_captions), Listing(own - first, other, counts, of_captions), where)


def _grouped(side: Ragged, indices: Tensor, rows: int) -> Iterator[tuple[Items, Tensor, Tensor]]:
    """Runs of the items that occur in `indices`, and of each the places of its items there.

    Yields (items, indices into these (p,), places (p,)).
    """
    extents = side.extents
    used, inverse = indices.unique(return_inverse=True)
    lengths = extents[used.to(extents.device)].tolist()
    ordered, order = inverse.sort(stable=True)
    for start, count, longest in _runs(lengths, rows):
        limits = torch.tensor([start, start + count], device=ordered.device)
        first, last = torch.searchsorted(ordered, limits).tolist()
        yield Items(used[start : start + count], longest), ordered[first:last] - start, order[first:last]


def _runs(lengths: list[int], rows: int) -> Iterator[tuple[int, int, int]]:
    """(first item, number of items, longest) of successive items whose padded form stays within `rows`."""
    start = 0
    for run in runs(lengths, rows):
        yield start, len(run), max(run)
        start += len(run)
