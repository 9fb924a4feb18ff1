"""Cost by size: batches from 64 × 64 to 1,000 × 5,000, a single query, odd shapes, calls of almost nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.cases import BATCH_SIZES, INTERACTIVE_SEARCH, ODD_SIZES, SETTINGS, TINY, WHOLE_TEST_SET, Case
from benchmarks.checks import check_scores
from benchmarks.implementations import EINSUMS, FASTEST, PRODUCT, sample, scan
from benchmarks.loops import scan_loop
from benchmarks.measure import Bench

# Warnings of torch's compiler are left out.
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")

SETTING = "t2i LSE"


def score(bench: Bench, operation: str, case: Case, name: str) -> None:
    case, options = bench.size(case), SETTINGS[SETTING]
    inputs = sample(name, case.inputs())
    call = scan(name, inputs, options, bench)
    check = None if name == PRODUCT else partial(check_scores, inputs=inputs, oracle=partial(scan_loop, **options))
    bench.describe(f"{SETTING}, {operation}", case, torch.float32, name)
    bench.measure(inputs, call, check)


@pytest.mark.parametrize(
    "name", [PRODUCT, "loop", EINSUMS[0], pytest.param(EINSUMS[1], marks=pytest.mark.full), "torch", FASTEST]
)
@pytest.mark.parametrize("case", BATCH_SIZES, ids=str)
def test_batch_sizes(bench: Bench, case: Case, name: str) -> None:
    score(bench, "by batch size", case, name)


@pytest.mark.full
@pytest.mark.parametrize("name", [FASTEST])
def test_a_whole_test_set(bench: Bench, name: str) -> None:
    score(bench, "by batch size", WHOLE_TEST_SET, name)


@pytest.mark.parametrize("name", [PRODUCT, "loop", "torch", FASTEST])
def test_interactive_search(bench: Bench, name: str) -> None:
    score(bench, "interactive search", INTERACTIVE_SEARCH, name)


@pytest.mark.parametrize("name", [PRODUCT, "loop", FASTEST])
@pytest.mark.parametrize("case", ODD_SIZES, ids=str)
def test_odd_sizes(bench: Bench, case: Case, name: str) -> None:
    score(bench, "odd sizes", case, name)


@pytest.mark.parametrize("name", [PRODUCT, "loop", FASTEST])
def test_a_call_of_almost_nothing(bench: Bench, name: str) -> None:
    score(bench, "overhead of a call", TINY, name)
