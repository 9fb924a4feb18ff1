"""A block of scores merged into the best k so far on a GPU, beside reading it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from crossret_kernels.topk.cuda import merge_in_cuda
from torch import Tensor

from benchmarks.gpu.inputs import rotated
from benchmarks.gpu.work import Calls, Floor
from crossret_kernels.topk.streamed import _merge

MERGES = {"cuda": merge_in_cuda, "torch": _merge}


@dataclass(frozen=True)
class MergeCase:
    """The second of two blocks, each of `block` items: most rows of the best change."""

    rows: int
    block: int
    k: int
    implementations: tuple[str, ...] = tuple(MERGES)
    targets: Mapping[str, float] = field(default_factory=dict)
    precision: str = "float32"

    @property
    def operation(self) -> str:
        return f"best {self.k:,} merged"

    @property
    def shape(self) -> str:
        return f"{self.rows:,} × {self.block:,}"

    def slower(self, name: str) -> dict[str, float] | None:
        """Nothing is wanted."""
        return None

    def work(self, device: torch.device) -> MergeWork:
        return MergeWork(self, device)


class MergeWork:
    """A case's scores on a device, and the best of those before."""

    def __init__(self, case: MergeCase, device: torch.device) -> None:
        self.case = case
        whole = torch.randn(case.rows, 2 * case.block, generator=torch.Generator().manual_seed(0)).to(device)
        before, scores = whole[:, : case.block], whole[:, case.block :].contiguous()
        self.expected = whole.sort(dim=1, descending=True, stable=True)
        self.best = tuple(part[:, : case.k].contiguous() for part in before.sort(dim=1, descending=True, stable=True))
        self.sets = rotated(scores, scores.nbytes, Tensor.clone)
        self.floor = Floor("one read", [partial(torch.sum, scores) for scores in self.sets])

    def calls(self, name: str) -> Calls:
        for made, expected in zip(self.merge(self.sets[0], name), self.expected, strict=True):
            assert torch.equal(made, expected[:, : self.case.k]), f"{self.case.operation}: not the begin of all sorted"
        calls = [partial(self.merge, scores, name) for scores in self.sets]
        return Calls(calls, 0.0, self.sets[0].numel(), self.sets[0].nbytes, self.floor)

    def merge(self, scores: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Of copies: the best so far are changed in place."""
        values, indices = self.best
        return MERGES[name](values.clone(), indices.clone(), scores, self.case.block, self.case.k)
