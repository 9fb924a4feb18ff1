"""The ten best of a corpus for every query: streamed, and from the whole matrix of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks.cases import CORPUS_OF_DOCUMENTS, CORPUS_OF_IMAGES, SETTINGS
from benchmarks.checks import check_topk
from benchmarks.implementations import FASTEST, PRODUCT, product, select
from benchmarks.loops import maxsim_loop, scan_loop
from benchmarks.measure import Bench
from crossret_kernels import maxsim_scores, maxsim_topk, scan_factors, scan_scores, scan_topk

WHOLE = "all scores, torch.topk"
BEST = 10
SCAN = SETTINGS["t2i LSE"]
OPERATIONS = {
    "t2i LSE": (CORPUS_OF_IMAGES, partial(scan_scores, **SCAN), partial(scan_topk, **SCAN), partial(scan_loop, **SCAN)),
    "Sum-Max": (CORPUS_OF_DOCUMENTS, maxsim_scores, maxsim_topk, maxsim_loop),
}


@pytest.mark.parametrize("name", [PRODUCT, WHOLE, FASTEST])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_topk(bench: Bench, operation: str, name: str) -> None:
    case, score, retrieve, loop = OPERATIONS[operation]
    case = bench.size(case)
    inputs = case.inputs()
    sides = inputs.packed_regions(), inputs.packed_words()
    backend = select(FASTEST, bench)

    def whole() -> Sequence[Tensor]:
        return torch.topk(score(*sides, backend=backend).T, min(BEST, case.n_images))

    def streamed() -> Sequence[Tensor]:
        return retrieve(*sides, k=BEST, backend=backend)

    call: Callable[[], Tensor | Sequence[Tensor]] = {PRODUCT: product(inputs), WHOLE: whole, FASTEST: streamed}[name]

    def check(best: Tensor | Sequence[Tensor]) -> None:
        check_topk(tuple(best), inputs, loop)
        if name == FASTEST:
            values, indices = whole()
            assert torch.equal(best[0], values)
            assert torch.equal(best[1], indices)

    bench.describe(f"{operation}, ten best", case, torch.float32, name)
    bench.measure(inputs, call, None if name == PRODUCT else check)


@pytest.mark.parametrize("name", ["factors made", "factors kept"])
def test_one_query(bench: Bench, name: str) -> None:
    """A caption against a corpus that is asked again and again."""
    case = replace(bench.size(CORPUS_OF_IMAGES), n_captions=1)
    inputs = case.inputs()
    sides = inputs.packed_regions(), inputs.packed_words()
    kept = {"factors": scan_factors(sides[0])} if name == "factors kept" else {}

    def call() -> Sequence[Tensor]:
        return scan_topk(*sides, k=BEST, backend="cpu", **SCAN, **kept)

    bench.describe("t2i LSE, ten best for one caption", case, torch.float32, name)
    bench.measure(inputs, call, lambda best: check_topk(tuple(best), inputs, OPERATIONS["t2i LSE"][-1]))
