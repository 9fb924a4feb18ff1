"""Scores of listed pairs on a GPU, beside what the same implementation takes for as many of all pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from benchmarks.cases import SETTINGS, Case, Inputs
from benchmarks.checks import TOLERANCES
from benchmarks.gpu.implementations import captured, scan
from benchmarks.gpu.inputs import DTYPES
from benchmarks.gpu.work import Calls, Floor
from crossret_kernels import scan_scores

CHECKED = 16  # pairs


@dataclass(frozen=True)
class ListCase:
    """Pairs of every image with `per_image` captions drawn at random, scored as a list.

    Attributes:
        setting: of `benchmarks.cases.SETTINGS`.
        targets: of ratios to all pairs' cost a pair.
    """

    setting: str
    case: Case
    precision: str
    per_image: int
    implementations: tuple[str, ...]
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        return f"{self.setting} listed pairs"

    @property
    def shape(self) -> str:
        return f"{self.per_image} of every image, {self.case}"

    def slower(self, name: str) -> dict[str, float] | None:
        """Nothing is wanted."""
        return None

    def work(self, device: torch.device) -> ListWork:
        return ListWork(self, device)


class ListWork:
    """A case's inputs on a device: one set, which the lists of its calls go through differently."""

    def __init__(self, case: ListCase, device: torch.device) -> None:
        self.case = case
        self.inputs = case.case.inputs(device).to(DTYPES[case.precision])
        generator = torch.Generator().manual_seed(0)
        images = torch.arange(case.case.n_images).repeat_interleave(case.per_image)
        captions = torch.randint(case.case.n_captions, (len(images),), generator=generator)
        self.listed = torch.stack([images, captions], 1)[torch.randperm(len(images), generator=generator)]
        self.pairs = self.listed.to(device)

    def calls(self, name: str) -> Calls:
        call = partial(self.score, self.inputs, self.pairs, name)
        rows = self.inputs.region_lengths[self.listed[:, 0]] * self.inputs.word_lengths[self.listed[:, 1]]
        work = 2 * int(rows.sum()) * self.inputs.regions.size(-1)
        whole = partial(scan(name, SETTINGS[self.case.setting]), self.inputs)
        floor = Floor("all pairs", [whole], work / self.inputs.flop)
        replay = partial(self.score, captured(self.inputs), self.pairs, name)
        return Calls([call], self.error(call()), len(self.pairs), work, floor, [replay])

    def score(self, inputs: Inputs, pairs: Tensor, backend: str) -> Tensor:
        lengths = None, inputs.word_lengths
        options = SETTINGS[self.case.setting]
        return scan_scores(inputs.regions, inputs.words, *lengths, pairs=pairs, backend=backend, **options)

    def error(self, scores: Tensor) -> float:
        """The largest difference to float64 of some of the pairs."""
        images, captions = self.listed[:CHECKED].unbind(1)
        own = torch.arange(len(images), device=scores.device)
        few = self.inputs.pick(images, captions).to(torch.float64)
        expected = self.score(few, torch.stack([own, own], 1), "reference")
        error = float((scores[:CHECKED].double() - expected).abs().max())
        assert error <= TOLERANCES[DTYPES[self.case.precision]], f"{self.case.operation}: off by {error:.3g}"
        return error
