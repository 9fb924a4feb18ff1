"""Scores of pairs from tensors made once for each item, in runs of items and blocks of pairs of bounded size."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import autocasts, checkable
from crossret_kernels.operations import needs_gradient
from crossret_kernels.padded.chunked import runs
from crossret_kernels.padded.forms import gather_items
from crossret_kernels.padded.pairing import Listing, Pairing, Rectangle
from crossret_kernels.torch_internals import transformed

FEW = 4  # few pairs have a gradient: at most one of four
# Tensors made of items: a NamedTuple of (n, …) with the method `part` (first, stop, width).
ItemTensors: TypeAlias = Any


class Limits(NamedTuple):
    """Maximal padded rows of images and of captions in a run, and maximal pairs in a block."""

    rows: Sequence[int]
    pairs: int


class ItemRun(NamedTuple):
    """Items (n,) int64 of a side that are held together, and the rows of each when padded."""

    indices: Tensor
    lengths: list[int]

    def part(self, first: int, stop: int) -> RunPart:
        return RunPart(first, stop, max(self.lengths[first:stop]))


class RunPart(NamedTuple):
    """Successive items of a run, padded to their longest."""

    first: int
    stop: int
    width: int


class PairBlock(NamedTuple):
    """Pairs of parts of two runs, and the places of their scores in the whole result."""

    images: RunPart
    captions: RunPart
    pairing: Pairing
    where: tuple[Tensor, Tensor] | Tensor


ImageRun: TypeAlias = "tuple[ItemRun, list[tuple[ItemRun, list[PairBlock]]]]"


@dataclass(frozen=True)
class SharedScores(ABC):
    """Scores of all pairs, or of listed ones (P, 2), and further results.

    Tensors are the values of images and of captions, then `n_beside` tensors of items, of either side in turn, then the
    parameters, in whose dtype everything is computed.
    """

    images: Ragged
    captions: Ragged
    pairs: Tensor | None
    n_beside = 0

    @abstractmethod
    def limits(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> Limits:
        """Sizes of runs and blocks."""

    @abstractmethod
    def share(
        self, is_caption: bool, rows: Tensor, mask: Tensor, beside: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> ItemTensors:
        """Tensors of items alone, from padded rows (n, L, D) with zeros behind their ends and the mask (n, L)."""

    @property
    def fused(self) -> bool:
        """Whether a kernel takes all that pairs are."""
        return False

    @abstractmethod
    def score(
        self, images: ItemTensors, captions: ItemTensors, pairing: Pairing, parameters: Sequence[Tensor],
        graph_alone: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Scores of pairs, and further results; of their `graph_alone` fused kernels compute no values."""

    @abstractmethod
    def at_once(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Results of all pairs in one block, by operations that can be traced, transformed and differentiated twice."""

    def gradients(
        self, tensors: Sequence[Tensor], needed: Sequence[bool], gradients: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Gradients of the tensors that need them, from those of the results: of those pairs alone that have one, where
        these are few, as under a hardest-negative loss.
        """
        if self.pairs is None and not self.fused:
            pairs = gradients[0].nonzero()
            if FEW * len(pairs) <= gradients[0].numel():
                return self.of_few(pairs, tensors, needed, gradients[0][pairs.unbind(1)])
        return gradients_of(self, tensors, needed, gradients)

    def of_few(
        self, pairs: Tensor, tensors: Sequence[Tensor], needed: Sequence[bool], gradient: Tensor
    ) -> list[Tensor | None]:
        """Gradients from those (P,) of listed scores."""
        return gradients_of(replace(self, pairs=pairs), tensors, needed, [gradient])

    def results(self, like: Tensor) -> list[Tensor]:
        """Memory for the results."""
        return [like.new_empty(len(self.images), len(self.captions))]

    def compute(self, *others: Tensor) -> tuple[Tensor, ...]:
        """Results from the tensors of items besides values, and the parameters; the backward pass computes blocks
        again.
        """
        if not checkable() or transformed():
            return self.at_once(others[: self.n_beside], others[self.n_beside :])
        values = self.images.values, self.captions.values
        if not needs_gradient((*values, *others)):
            return _scores(self, (*values, *others))
        call = replace(self, images=self.images.joined(), captions=self.captions.joined())
        tensors = call.images.values, call.captions.values, *others
        return cast("tuple[Tensor, ...]", cast(Any, _Recomputed).apply(call, *tensors))


class _Recomputed(torch.autograd.Function):
    """Scores that keep their inputs alone; the backward pass computes and frees one block after the other.

    Nested checkpoints of torch would keep recomputed tensors until the whole pass is over.
    """

    @staticmethod
    def forward(ctx: Any, call: SharedScores, *tensors: Tensor) -> tuple[Tensor, ...]:
        device_type = tensors[0].device.type
        ctx.autocast = {"device_type": device_type, "enabled": autocasts(device_type)}
        if ctx.autocast["enabled"]:
            ctx.autocast["dtype"] = torch.get_autocast_dtype(device_type)
        ctx.call = replace(call, images=call.images.without_values(), captions=call.captions.without_values())
        ctx.save_for_backward(*tensors)
        return _scores(call, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        images, captions = ctx.call.images.with_values(tensors[0]), ctx.call.captions.with_values(tensors[1])
        call = replace(ctx.call, images=images, captions=captions)
        # Autocast of the forward pass, not of the backward pass.
        with torch.autocast(**ctx.autocast):
            if not torch.is_grad_enabled():
                return None, *call.gradients(tensors, needed, gradients)
            # Second derivatives go through the whole call.
            inputs = [x for x, requires in zip(tensors, needed, strict=True) if requires]
            first = 2 + call.n_beside
            outputs = call.at_once(tensors[2:first], tensors[first:])
            grads = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=True, materialize_grads=True))
            return None, *(next(grads) if requires else None for requires in needed)


def _scores(call: SharedScores, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    first = 2 + call.n_beside
    results = call.results(tensors[-1])
    with torch.no_grad():
        for outputs, where in _blocks(call, False, tensors[:first], tensors[first:], [None] * first):
            for result, values in zip(results, outputs, strict=False):  # weights are of listed pairs alone
                result[_places(where, values)] = values.to(result.dtype)
    return tuple(results)


def gradients_of(
    call: SharedScores, tensors: Sequence[Tensor], needed: Sequence[bool], gradients: Sequence[Tensor]
) -> list[Tensor | None]:
    first, dtype = 2 + call.n_beside, tensors[-1].dtype
    leaves = [x.detach().requires_grad_(requires) for x, requires in zip(tensors, needed, strict=True)]
    totals = [torch.zeros_like(x, dtype=dtype) if x.requires_grad else None for x in leaves[:first]]
    with torch.enable_grad():
        for results, where in _blocks(call, True, tensors[:first], leaves[first:], totals):
            outputs = results[: len(gradients)]
            parts = [x[_places(where, y)].to(y.dtype) for x, y in zip(gradients, outputs, strict=True)]
            torch.autograd.backward(outputs, parts)
    item_grads = [None if x is None else x.to(y.dtype) for x, y in zip(totals, tensors[:first], strict=True)]
    return item_grads + [torch.zeros_like(x) if x.requires_grad and x.grad is None else x.grad for x in leaves[first:]]


def _places(where: tuple[Tensor, Tensor] | Tensor, values: Tensor) -> Any:
    """Index of scores (…), or of listed pairs' weights, which are as wide as a block's longest item."""
    return where if isinstance(where, tuple) or values.dim() == 1 else (where, slice(values.size(1)))


def _blocks(
    call: SharedScores, graph_alone: bool, tensors: Sequence[Tensor], parameters: Sequence[Tensor],
    totals: Sequence[Tensor | None],
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, Tensor] | Tensor]]:  # fmt: skip
    """Results of each block and their places; gradients of its tensors are added to `totals` after the block's backward
    pass.
    """
    limits = call.limits(tensors[2:], parameters)
    if call.pairs is None:
        image_runs = _all_blocks(call.images, call.captions, limits)
    else:
        image_runs = _listed_blocks(call.images, call.captions, call.pairs, limits)
    captions: _RunItems | None = None  # stay for the next images where one run has all captions
    for image_run, caption_runs in image_runs:
        images = _RunItems(call, False, image_run, tensors, parameters, totals)
        for caption_run, blocks in caption_runs:
            if captions is not None and captions.run is not caption_run:
                captions.add_gradients()
                captions = None
            captions = captions or _RunItems(call, True, caption_run, tensors, parameters, totals)
            for block in blocks:
                parts = images.part(block.images), captions.part(block.captions)
                yield call.score(*parts, block.pairing, parameters, graph_alone), block.where
        images.add_gradients()
    if captions is not None:
        captions.add_gradients()


class _RunItems:
    """Rows of a run, leaves of a graph, and the tensors made of them."""

    def __init__(
        self, call: SharedScores, is_caption: bool, run: ItemRun, tensors: Sequence[Tensor],
        parameters: Sequence[Tensor], totals: Sequence[Tensor | None],
    ) -> None:  # fmt: skip
        self.side, self.run, self.totals = call.captions if is_caption else call.images, run, totals[is_caption::2]
        longest = max(run.lengths)
        rows, mask = gather_items(self.side, run.indices, longest if self.side.offsets is not None else self.side.width)
        self.mask = mask[:, :longest]
        beside = [x.index_select(0, run.indices) for x in tensors[2 + is_caption :: 2]]
        self.leaves = [
            x.detach().to(parameters[-1].dtype).requires_grad_(total is not None)
            for x, total in zip((rows[:, :longest], *beside), self.totals, strict=True)
        ]
        self.tensors = call.share(is_caption, self.leaves[0], self.mask, self.leaves[1:], parameters)
        self.parts: dict[RunPart, tuple[ItemTensors, ItemTensors]] = {}

    def part(self, part: RunPart) -> ItemTensors:
        """Tensors of some items, as leaves that gather gradients."""
        if part not in self.parts:
            tensors = self.tensors.part(*part)
            self.parts[part] = tensors, tensors._make(x.detach().requires_grad_(x.requires_grad) for x in tensors)
        return self.parts[part][1]

    def add_gradients(self) -> None:
        """Adds the gradients of all parts to the totals and the parameters."""
        parts = [pair for part in self.parts.values() for pair in zip(*part, strict=True) if pair[0].requires_grad]
        if parts:
            torch.autograd.backward([x for x, _ in parts], [leaf.grad for _, leaf in parts])
        row_total, *item_totals = self.totals
        if row_total is not None:
            self._add_rows(row_total, cast("Tensor", self.leaves[0].grad))
        for total, leaf in zip(item_totals, self.leaves[1:], strict=True):
            if total is not None:
                total.index_add_(0, self.run.indices, cast("Tensor", leaf.grad))

    def _add_rows(self, total: Tensor, gradient: Tensor) -> None:
        mask = self.mask & ~self.side.empty.index_select(0, self.run.indices)[:, None]
        width = mask.size(1)
        if self.side.offsets is None:
            total[:, :width].index_add_(0, self.run.indices, gradient.masked_fill(~mask[:, :, None], 0))
            return
        starts = self.side.offsets.to(total.device)[self.run.indices]
        rows = (starts[:, None] + torch.arange(width, device=total.device))[mask]
        total.index_add_(0, rows, gradient[mask])


def _all_blocks(images: Ragged, captions: Ragged, limits: Limits) -> Iterator[ImageRun]:
    """Rectangles of all pairs, items sorted by length, so that blocks hold little padding."""
    if not len(images) or not len(captions):
        return
    caption_runs = list(_by_length(captions, limits.rows[1]))
    for image_run in _by_length(images, limits.rows[0]):
        n_images = len(image_run.lengths)
        runs_of_captions = []
        for caption_run in caption_runs:
            n_captions = len(caption_run.lengths)
            height = min(n_images, max(math.isqrt(limits.pairs), limits.pairs // n_captions))
            width = max(1, limits.pairs // height)
            blocks = []
            for i in range(0, n_images, height):
                v_part = image_run.part(i, min(i + height, n_images))
                rows = image_run.indices[i : v_part.stop, None]
                for j in range(0, n_captions, width):
                    e_part = caption_run.part(j, min(j + width, n_captions))
                    blocks.append(PairBlock(v_part, e_part, Rectangle(), (rows, caption_run.indices[j : e_part.stop])))
            runs_of_captions.append((caption_run, blocks))
        yield image_run, runs_of_captions


def _by_length(side: Ragged, rows: int) -> Iterator[ItemRun]:
    lengths, order = side.extents.sort(stable=True)
    order = order.to(side.values.device)
    start = 0
    for run in runs(lengths.tolist(), rows):
        yield ItemRun(order[start : start + len(run)], run)
        start += len(run)


def _listed_blocks(images: Ragged, captions: Ragged, pairs: Tensor, limits: Limits) -> Iterator[ImageRun]:
    """Blocks of listed pairs (P, 2), grouped by items, so that few items are loaded twice and no others at all."""
    caption_runs = list(_group(captions, pairs[:, 1], limits.rows[1]))
    only = caption_runs[0] if len(caption_runs) == 1 else None  # one run of captions stays for all images
    if only is not None:
        in_run = torch.empty_like(only[1])
        in_run[only[2]] = only[1]
    for image_run, image_indices, places in _group(images, pairs[:, 0], limits.rows[0]):
        runs_of_captions = []
        if only is not None:
            groups = [(only[0], in_run[places], torch.arange(len(places), device=places.device))]
        else:
            groups = list(_group(captions, pairs[places, 1], limits.rows[1]))
        for caption_run, caption_indices, among in groups:
            indices, order = image_indices[among].sort(stable=True)
            pieces = (x.split(limits.pairs) for x in (indices, caption_indices[order], places[among][order]))
            blocks = [_listed_block(image_run, caption_run, *part) for part in zip(*pieces, strict=True)]
            runs_of_captions.append((caption_run, blocks))
        yield image_run, runs_of_captions


def _listed_block(image_run: ItemRun, caption_run: ItemRun, v: Tensor, e: Tensor, where: Tensor) -> PairBlock:
    """A block of pairs sorted by image: images from the first to the last of them, and all captions of the run."""
    first, last = v[[0, -1]].tolist()
    captions = caption_run.part(0, len(caption_run.lengths))
    counts = torch.bincount(v - first).tolist()
    e_counts = torch.bincount(e, minlength=captions.stop).tolist()
    return PairBlock(image_run.part(first, last + 1), captions, Listing(v - first, e, counts, e_counts), where)


def _group(side: Ragged, indices: Tensor, rows: int) -> Iterator[tuple[ItemRun, Tensor, Tensor]]:
    """Runs of the items that occur in `indices`: (run, indices into its items (p,), their places (p,))."""
    extents = side.extents
    items, inverse = indices.unique(return_inverse=True)
    ranks, order = inverse.sort(stable=True)
    start = 0
    for run in runs(extents[items.to(extents.device)].tolist(), rows):
        stop = start + len(run)
        first, last = torch.searchsorted(ranks, torch.tensor([start, stop], device=ranks.device)).tolist()
        yield ItemRun(items[start:stop], run), ranks[first:last] - start, order[first:last]
        start = stop
