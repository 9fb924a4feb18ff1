"""What the lengths of a call's two sides come to: jobs of the CUDA kernels, and parts that fit a bounded workspace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.cuda.steps import attention_job_rows
from crossret_kernels.gpu.cuda_library import constant, constants
from crossret_kernels.gpu.kept_plans import kept_plan, on_device
from crossret_kernels.gpu.planning import cut
from crossret_kernels.gpu.sides import Geometry, HostSide, shared_memory
from crossret_kernels.gpu.tuning import CudaAttention

TUNED = CudaAttention
_PACKED = (torch.float32, torch.bfloat16, torch.float16)  # in the order of csrc's Dtype


class Kind(NamedTuple):
    """What a call computes with.

    Attributes:
        packed: dtype of packed rows.
        tfloat32: whether products of float32 may be made so.
        softmax: whether similarities are normalised by it.
        gradients: whether gradients are wanted.
    """

    packed: torch.dtype
    tfloat32: bool
    softmax: bool
    gradients: bool

    @property
    def fragment_rows(self) -> int:
        """Of Gram matrices (csrc/cross_attention/gram.cuh)."""
        rows = constants("attention_fragment_rows")
        if self.packed is torch.float32:
            return rows[self.tfloat32]
        return rows[2 if self.packed is torch.bfloat16 else 3]

    def job_rows(self, longest: int, most_queries: int, most_shared: int) -> tuple[int, int]:
        """Of queries and of contexts, beside items of contexts of up to `longest`."""
        packed = _PACKED.index(self.packed)
        rows: list[int] = attention_job_rows(
            packed, self.tfloat32, self.softmax, longest, most_queries, self.gradients, most_shared
        )
        return rows[0], rows[1]


class Part(NamedTuple):
    """Successive items of a side, as kernels take them at a time.

    Attributes:
        numbers: the first item, how many, their rows, and those of the longest.
        jobs: (jobs + 1,) int32, the items at which jobs begin, from the part's first on.
        grams: of contexts, (items,) int32 where their Gram matrices begin, in fragments, and in numbers.
        n_fragments, n_numbers: all of those.
    """

    numbers: list[int]
    jobs: Tensor
    grams: tuple[Tensor, ...] = ()
    n_fragments: int = 0
    n_numbers: int = 0

    @property
    def first(self) -> int:
        return self.numbers[0]

    @property
    def n_items(self) -> int:
        return self.numbers[1]


class Plan:
    """What the lengths of both sides come to, on the host and on the device.

    Attributes:
        shape: of the scores of all pairs, (contexts, queries).
        filled: whether both sides have a row at all.
        most_columns, most_queries: rows of contexts and items of queries in a job.
        parts: of contexts and of queries.
        starts: of either side (items + 1,) int32, where items would begin if packed.
        places: (rows,) int32, where in its item a row lies, of a side with a mask.
        tables: all that the device has.
    """

    def __init__(self, contexts: HostSide, queries: HostSide, may_be_empty: bool, kind: Kind, most_shared: int) -> None:
        sides = contexts.geometry(may_be_empty), queries.geometry(may_be_empty)
        features = contexts.features
        self.shape = len(sides[0].lengths), len(sides[1].lengths)
        self.filled = sides[0].n_rows > 0 and sides[1].n_rows > 0
        longest = sides[0].longest
        _check_fits(longest, sides[1].longest, features.device, kind.gradients)
        most_items = constant("attention_items")
        # Items of contexts beyond it fill a job each.
        self.most_queries = TUNED.MOST_QUERIES_OF_LONG if longest > constant("attention_long") else most_items
        rows, self.most_columns = kind.job_rows(longest, self.most_queries, most_shared)

        most_rows = [max(1, TUNED.ROW_BYTES // max(features.size(-1) * features.element_size(), 1))] * 2
        if kind.gradients and sides[0].n_rows * sides[1].n_rows > TUNED.CELLS:
            most_rows[1] = min(most_rows[1], max(int(TUNED.CELLS**0.5), TUNED.CELLS // max(sides[0].n_rows, 1)))
            most_rows[0] = min(most_rows[0], TUNED.CELLS // max(most_rows[1], sides[1].longest))
        lengths = sides[0].lengths.astype(np.int64)
        fragments = _starts(-(-lengths // kind.fragment_rows) * -(-lengths // 8))
        numbers = _starts(lengths**2)
        of_grams = (
            (fragments, TUNED.GRAM_BYTES // constant("attention_fragment_bytes")),
            (numbers, TUNED.GRAM_BYTES // 4),
        )
        cuts = cut((sides[0].starts, most_rows[0]), *of_grams), cut((sides[1].starts, most_rows[1]))
        bounds = [list(pairwise(of_side)) for of_side in cuts]
        sizes = (self.most_columns, most_items), (rows, self.most_queries)

        tables: list[Any] = [side.starts for side in sides]
        tables += [side.places for side in sides if side.places is not None]
        for side, of_side, size in zip(sides, bounds, sizes, strict=True):
            tables += [_jobs_of(side, *part, *size) for part in of_side]
        tables += [of[first:last] - of[first] for of in (fragments, numbers) for first, last in bounds[0]]
        self.tables = on_device(features.device, *(np.asarray(table, np.int32) for table in tables))
        there = iter(self.tables)
        self.starts = next(there), next(there)
        self.places = tuple(None if side.places is None else next(there) for side in sides)
        of_contexts, of_queries = (
            [(_numbers(side, *part), next(there)) for part in of_side]
            for side, of_side in zip(sides, bounds, strict=True)
        )
        grams = zip(*([next(there) for _ in bounds[0]] for _ in range(2)), strict=True)
        self.parts = (
            [
                Part(*part, starts, int(fragments[last] - fragments[first]), int(numbers[last] - numbers[first]))
                for part, starts, (first, last) in zip(of_contexts, grams, bounds[0], strict=True)
            ],
            [Part(*part) for part in of_queries],
        )


def most_attended_rows(device: torch.device, gradients: bool) -> int:
    """Of an item of contexts whose similarities with 16 queries fit a block's shared memory."""
    room, of_row = (TUNED.GRADIENT_ROOM, TUNED.GRADIENT_ROW_ROOM) if gradients else (TUNED.ROOM, TUNED.ROW_ROOM)
    return (shared_memory(device) - room) // of_row


def _check_fits(longest: int, longest_query: int, device: torch.device, gradients: bool) -> None:
    """Refuses longer items."""
    most = most_attended_rows(device, gradients)
    if longest_query > TUNED.MOST_ROWS:
        raise UnsupportedByBackend(
            f"backend 'cuda' cannot serve this call: it takes attending items of up to {TUNED.MOST_ROWS} rows, the "
            f"longest has {longest_query}"
        )
    if longest > most:
        raise UnsupportedByBackend(
            f"backend 'cuda' cannot serve this call: on {device} it takes attended items of up to {most} rows"
            f"{' for gradients' if gradients else ''}, the longest has {longest}"
        )


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], counts.cumsum()])


def _numbers(side: Geometry, first: int, last: int) -> list[int]:
    longest = int(side.lengths[first:last].max(initial=0))
    return [first, last - first, int(side.starts[last] - side.starts[first]), longest]


def _jobs_of(side: Geometry, first: int, last: int, size: int, most: int) -> list[int]:
    """At which of the items first to last jobs begin, counted from the first, and where the last one ends.

    Jobs are of at most `size` rows and `most` items, of one item where that is longer.
    """
    return cut((side.starts[first : last + 1], size), most_items=most)


class Call:
    """One call: its sides as contexts and queries, and its plan.

    Attributes:
        plan: of its lengths.
        sides: of contexts and queries features, starts and, of a mask, places.
        by_images: whether images are the contexts ("t2i").
        pairs: (P, 2) int64 (image, caption); None for all pairs.
        shape: of the scores.
        empty_score: what a pair without rows scores.
        tfloat32: whether products of float32 may be made so.
        wide: whether rows are packed as float32.
        options: of steps: normalize, raw_feature_norm, clip_slope, lambda_softmax, pooling, lambda_lse.
    """

    def __init__(self, arguments: Sequence[Any], gradients: bool) -> None:
        """From what the operation `crossret::scan_scores_cuda` takes."""
        images, captions = HostSide.of(*arguments[:4]), HostSide.of(*arguments[4:8])
        self.pairs: Tensor | None = arguments[8]
        self.empty_score, reduced, direction, *self.options = arguments[9:]
        self.by_images = direction == 0
        contexts, queries = (images, captions) if self.by_images else (captions, images)
        features = contexts.features
        self.device = features.device
        full = features.dtype is torch.float32
        self.tfloat32 = full and reduced
        # Of float16 gradients have too little room: rows are packed as float32, of which TF32 holds all of float16.
        self.wide = gradients and features.dtype is torch.float16
        packed = torch.float32 if self.wide else features.dtype
        softmax = self.options[1] == 0
        kind = Kind(packed, self.tfloat32 or self.wide, softmax, gradients)
        made_of = contexts, queries, self.empty_score is not None, kind, shared_memory(self.device)
        key = (
            self.device, features.dtype, *made_of[2:], contexts.layout, contexts.key, queries.layout, queries.key
        )  # fmt: skip
        self.plan = kept_plan(Plan, key, self.device, lambda: Plan(*made_of))
        self.sides = [
            [side.features, starts, *([] if places is None else [places])]
            for side, starts, places in zip((contexts, queries), self.plan.starts, self.plan.places, strict=True)
        ]
        self.shape = self.in_order(self.plan.shape) if self.pairs is None else (self.pairs.size(0),)

    def in_order(self, of_sides: tuple[Any, ...]) -> tuple[Any, ...]:
        """What there is of contexts and queries as of images and captions, and the other way round."""
        return of_sides if self.by_images else of_sides[::-1]

    def shared(self, of_contexts: Part, of_queries: Part, scores: Tensor) -> tuple[Any, ...]:
        """What the steps of two parts take alike (`steps`)."""
        plan = self.plan
        strides = self.in_order(scores.stride()) if scores.dim() == 2 else (0, 0)
        return (
            of_contexts.jobs, of_queries.jobs, of_contexts.grams[0], of_contexts.n_fragments, plan.most_columns,
            plan.most_queries, *strides, self.tfloat32 or self.wide,
            0.0 if self.empty_score is None else self.empty_score, *self.options,
        )  # fmt: skip
