"""How a call is cut up for the CUDA kernels: parts that fit a bounded workspace, and where lengths decide, jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.backends import NOT_IN_TF32, UnsupportedByBackend
from crossret_kernels.cross_attention.cuda import library as steps
from crossret_kernels.cross_attention.cuda.library import constant, constants, numbers
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.gpu.planning import cut, most_of_parts, on_device
from crossret_kernels.gpu.sides import Side, both_sides, shared_memory
from crossret_kernels.gpu.tuning import CudaAttention

TUNED = CudaAttention
_PACKED = (torch.float32, torch.bfloat16, torch.float16)  # in the order of csrc's Dtype


class CudaPart(NamedTuple):
    """Successive items of a side, as kernels take them at a time.

    Attributes:
        first, n_items, n_rows: the first item, how many, and their rows once packed.
        numbers: those, the side's longest, rows of an item's slots, 0 where lengths decide, and whether no slot is
            empty, as kernels take them.
        jobs: (jobs + 1,) int32, the items at which jobs begin, from the part's first on, where lengths decide.
    """

    first: int
    n_items: int
    n_rows: int
    numbers: Tensor
    jobs: Tensor | None


def _part(
    side: Side, first: int, n_items: int, n_rows: int, longest: int, slots: int, jobs: Tensor | None = None
) -> CudaPart:
    full = slots == 0 or side.extents is None
    own = numbers("attention_part", first=first, items=n_items, rows=n_rows, longest=longest, slots=slots, full=full)
    return CudaPart(first, n_items, n_rows, own, jobs)


class CudaCall:
    """One call: its sides as contexts and queries, and how it is cut up.

    Where it fits one part with every item as long as any may be, that is known from shapes alone, and nothing is
    looked at: each item is given so many slots. So it is where items have all their rows. Else lengths decide.

    Attributes:
        sides: of contexts and queries.
        by_images: whether images are the contexts ("t2i").
        pairs: (P, 2) int64 (image, caption); None for all pairs.
        n_items: of contexts and of queries.
        shape: of the scores.
        empty_score: what a pair without rows scores.
        packed: dtype of packed rows.
        choices: what is computed, as kernels take it.
        kept: both sides packed by the forward pass, if it was asked to.
        starts: of either side (items + 1,) int32, where items begin once packed, where lengths decide.
    """

    def __init__(self, arguments: Sequence[Any], gradients: bool, kept: Sequence[Tensor] = ()) -> None:
        """From what the operation `crossret::scan_scores_cuda` takes; `kept` is what it kept for gradients.

        Raises UnsupportedByBackend where float32 features are not to be multiplied in TF32.
        """
        self.pairs: Tensor | None = arguments[8]
        empty_score, reduced, *codes = arguments[9:]
        options = dict(zip(ScanOptions.coded(), codes, strict=True))
        del options["relevance"], options["focal"], options["threshold"]  # which `ScanOptions.unsupported` names
        self.by_images, self.gradients = options.pop("direction") == 0, gradients
        self.empty_score = 0.0 if empty_score is None else empty_score
        images, captions = both_sides(arguments[:8], empty_score is not None)
        self.sides = (images, captions) if self.by_images else (captions, images)
        features = images.features
        if features.dtype is torch.float32 and not reduced:
            raise UnsupportedByBackend(f"backend 'cuda' cannot serve this call: {NOT_IN_TF32}")
        self.device = features.device
        # Gradients overflow float16: rows are packed as float32, and TF32 holds all digits of float16.
        wide = gradients and features.dtype is torch.float16
        self.packed = torch.float32 if wide else features.dtype
        self.softmax = options["raw_feature_norm"] == 0
        self.choices = numbers(
            "attention_choices",
            True,
            wide=wide,
            warpgroups=TUNED.WARPGROUPS,
            empty_score=self.empty_score,
            **options,
        )
        self.n_items = self.sides[0].n_items, self.sides[1].n_items
        self.shape = self.in_order(self.n_items) if self.pairs is None else (self.pairs.size(0),)
        self.starts: list[Tensor | None] = [None, None]
        self.kept = [packed for packed in kept if packed.numel()]

    def in_order(self, of_sides: tuple[Any, ...]) -> tuple[Any, ...]:
        """Values of contexts and queries in the order of images and captions, and the other way round."""
        return of_sides if self.by_images else of_sides[::-1]

    def fits(self, gradients: bool) -> bool:
        """Whether one part has room for all, with every item as long as any may be."""
        n_contexts, n_queries = self.n_items
        longest, longest_query = self.sides[0].slots, self.sides[1].slots
        rows, query_rows, most_rows = n_contexts * longest, n_queries * longest_query, self._most_rows()
        return (
            rows <= most_rows
            and query_rows <= most_rows
            and n_contexts <= self._most_contexts(longest)
            and (not gradients or rows * query_rows <= TUNED.CELLS)
            and longest <= most_attended_rows(self.device, gradients)
            and longest_query <= constant("attention_most_rows")
        )

    def parts(self) -> tuple[list[CudaPart], list[CudaPart]]:
        """Parts of contexts and of queries; none where a side has no rows at all.

        Raises:
            UnsupportedByBackend: an item is longer than kernels take.
            RuntimeError: lengths decide, and a CUDA graph is being captured.
        """
        (n_contexts, n_queries), longest, longest_query = self.n_items, self.sides[0].slots, self.sides[1].slots
        if 0 in (n_contexts, n_queries, longest, longest_query):
            return [], []
        if not self.fits(self.gradients):
            return self._cut_up()
        of_contexts, of_queries = self.sides
        contexts = _part(of_contexts, 0, n_contexts, n_contexts * longest, longest, longest)
        queries = _part(of_queries, 0, n_queries, n_queries * longest_query, longest_query, longest_query)
        return [contexts], [queries]

    def _most_rows(self) -> int:
        return max(1, TUNED.ROW_BYTES // max(self.sides[0].features.size(-1) * self.packed.itemsize, 1))

    def _most_contexts(self, longest: int) -> int:
        """Items whose Gram matrices have room."""
        rows = constants("attention_fragment_rows")[_PACKED.index(self.packed)]
        fragments = -(-longest // rows) * -(-longest // 8)
        return max(1, TUNED.GRAM_BYTES // (constant("attention_fragment_bytes") * max(fragments, 1)))

    def _cut_up(self) -> tuple[list[CudaPart], list[CudaPart]]:
        counts = [side.known_counts() for side in self.sides]
        longest = [int(of_side.max()) for of_side in counts]
        if 0 in longest:
            return [], []
        _check_fits(longest[0], longest[1], self.device, self.gradients)
        starts = [np.concatenate([[0], of_side.cumsum()]) for of_side in counts]
        rows = [int(of_side[-1]) for of_side in starts]
        most_rows, most_items = (self._most_rows(),) * 2, (self._most_contexts(longest[0]), None)
        if self.gradients:
            most_rows = most_of_parts((rows[0], rows[1]), longest[1], most_rows[0], TUNED.CELLS)
        query_rows, context_rows, *most = steps.attention_job_sizes(
            _PACKED.index(self.packed), self.softmax, longest[0], self.gradients, shared_memory(self.device)
        )
        sizes = (context_rows, most[1]), (query_rows, most[0])
        bounds, tables = [], []
        for own, side in enumerate(self.sides):
            bounds.append(list(pairwise(cut((starts[own], most_rows[own]), most_items=most_items[own]))))
            if side.extents is not None:  # else items have all their rows
                size, most_of_job = sizes[own]
                jobs = [cut((starts[own][i : j + 1], size), most_items=most_of_job) for i, j in bounds[own]]
                tables += [starts[own], *map(np.asarray, jobs)]
        there = iter(on_device(self.device, *tables) if tables else ())
        made: tuple[list[CudaPart], list[CudaPart]] = [], []
        for own, side in enumerate(self.sides):
            slots = longest[own] if side.extents is None else 0
            self.starts[own] = None if slots else next(there)
            for i, j in bounds[own]:
                of_rows = int(starts[own][j] - starts[own][i])
                made[own].append(_part(side, i, j - i, of_rows, longest[own], slots, None if slots else next(there)))
        return made

    def located(self, own: int) -> tuple[Tensor | None, ...]:
        """Layout of the features of contexts (0) or queries (1), as kernels take it."""
        extents, places = self.sides[own].extents, self.sides[own].places
        return None if extents is None else extents.contiguous(), places, self.starts[own]

    def pack(self, own: int, part: CudaPart) -> Tensor:
        """A part's rows and what is told of them, or all that the forward pass kept: in one part, as gradients are."""
        if self.kept:
            return self.kept[own]
        return steps.pack_side(self.sides[own].features, *self.located(own), part.numbers, self.choices, own == 0)


@cache
def _most_attended_rows(shared: int, gradients: bool) -> int:
    return int(steps.most_attended_rows(gradients, shared))


def most_attended_rows(device: torch.device, gradients: bool) -> int:
    """Most rows of an item of contexts whose similarities with 16 queries fit a block's shared memory."""
    return _most_attended_rows(shared_memory(device), gradients)


def _check_fits(longest: int, longest_query: int, device: torch.device, gradients: bool) -> None:
    """Refuses longer items."""
    most, most_query = most_attended_rows(device, gradients), constant("attention_most_rows")
    if longest_query > most_query:
        raise UnsupportedByBackend(
            f"backend 'cuda' cannot serve this call: it takes attending items of up to {most_query} rows, the longest "
            f"has {longest_query}"
        )
    if longest > most:
        raise UnsupportedByBackend(
            f"backend 'cuda' cannot serve this call: on {device} it takes attended items of up to {most} rows"
            f"{' for gradients' if gradients else ''}, the longest has {longest}"
        )
