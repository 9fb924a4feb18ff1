"""The front door of late interaction: what its names cost a call, and both directions of one product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.cases import CORPUS_OF_DOCUMENTS, TINY, Inputs
from benchmarks.checks import check_scores
from benchmarks.loops import maxsim_loop
from benchmarks.measure import Bench
from crossret_kernels import maxsim_scores
from crossret_kernels.late_interaction import maxsim, maxsim_both_ways


def _sides(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Queries and documents."""
    return inputs.words, inputs.regions


CALLS: dict[str, Callable[[Inputs], Tensor]] = {
    "maxsim_scores": lambda inputs: maxsim_scores(inputs.regions, inputs.words),
    "late_interaction.maxsim": lambda inputs: maxsim(*_sides(inputs)).T,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_almost_nothing(bench: Bench, name: str) -> None:
    case = bench.size(TINY)
    inputs = case.inputs()
    bench.describe("MaxSim, overhead of a call", case, torch.float32, name)
    bench.measure(inputs, lambda: CALLS[name](inputs), None)


def _one_after_the_other(inputs: Inputs) -> Sequence[Tensor]:
    queries, documents = _sides(inputs)
    of_queries = maxsim(queries, documents, document_lengths=inputs.region_lengths)
    return of_queries, maxsim(queries, documents, document_lengths=inputs.region_lengths, direction="d2q")


def _both(inputs: Inputs) -> Sequence[Tensor]:
    return maxsim_both_ways(*_sides(inputs), document_lengths=inputs.region_lengths)


WAYS = {"one after the other": _one_after_the_other, "maxsim_both_ways": _both}


@pytest.mark.parametrize("name", WAYS)
def test_both_directions(bench: Bench, name: str) -> None:
    case = bench.size(CORPUS_OF_DOCUMENTS)
    inputs = case.inputs()

    def check(made: Sequence[Tensor]) -> None:
        check_scores(made[0].T, inputs, maxsim_loop)
        for ours, theirs in zip(made, _one_after_the_other(inputs), strict=True):
            torch.testing.assert_close(ours, theirs)

    bench.describe("MaxSim, both directions", case, torch.float32, name)
    bench.measure(inputs, lambda: WAYS[name](inputs), check)
