"""`maxsim_scores` by backend "triton" against the float64 oracle: forward, argmax and backward, in any tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given

from crossret_kernels import maxsim_scores
from crossret_kernels.gpu.tuning import SumMax
from tests.kernels.maxsim.checks import UNTIED, Scores, check_argmax_of, check_long_items, directions, randn
from tests.kernels.strategies import FEW_ITEMS, Features, examples, features, maxsim_options, one_pair_listed_often
from tests.kernels.tolerance import Expectation

SOFT = {"context_pooling": "lse", "temperature": 0.3, "clip_slope": 0.1}


@pytest.fixture(params=["usual tiles", "small tiles"], autouse=True, scope="module")
def tiles(request: pytest.FixtureRequest) -> Iterator[str]:
    """Small ones, so that a few items take several of everything, longer ones pass in pieces, and some are planned."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small tiles":
            for module, name, value in (
                (SumMax, "UNPLANNED_PRODUCTS", 4000),
                (SumMax, "LARGEST_TILE", 16),
                (SumMax, "LARGER_TILE", 32),
                (SumMax, "CELLS", 16 * 32),
                (SumMax, "COLUMNS", 16),
                (SumMax, "LARGEST_RESIDENT", 16),
                (SumMax, "PROGRAMS", 3),
                (SumMax, "BLOCK_OF_CONTEXTS", 16),
                (SumMax, "WORKSPACE_BYTES", 700),
                (SumMax, "PAIRS_AT_ONCE", 3),
                (SumMax, "LEAST_STEPS", 1),
                (SumMax, "RUNS_BYTES", 6000),
                (SumMax, "QUERIES", 16),
                (SumMax, "ITEMS", 2),
                (SumMax, "WIDTH", 32),
                (SumMax, "SOFT_WIDTH", 32),
            ):
                patch.setattr(module, name, value)
        yield request.param


@pytest.fixture(scope="module")
def backend() -> str:
    return "triton"


@pytest.fixture(params=[False, True], ids=["ieee", "tf32"])
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """The interpreter multiplies float32 as it is, but tiles are not the same."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("precision")
@examples(14)  # twice, and as often again in the other tiles
@given(batch=features(UNTIED, FEW_ITEMS), options=maxsim_options(soft=True))
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    Expectation.of(maxsim_scores, batch, torch.float32, **options).check("triton")


def parts_of(batch: Features) -> int:
    """In how many parts gradients come at most, each rounded: of a query's best 12 bytes are kept, or fewer."""
    items, rows = (max(sizes) for sizes in zip(batch.regions.shape[:2], batch.words.shape[:2], strict=True))
    count, most, kept = items, items, 12 * rows * items
    if batch.pairs is not None:
        count, most, kept = len(batch.pairs), SumMax.PAIRS_AT_ONCE, 12 * rows
    return -(-count // max(1, min(most, SumMax.WORKSPACE_BYTES // kept)))


@examples(16)
@given(batch=features(("none", "small"), FEW_ITEMS), options=maxsim_options(soft=True))
@example(batch=one_pair_listed_often(), options={"direction": "both", "normalize": True})
def test_float16(batch: Features, options: dict[str, Any]) -> None:
    roundings = parts_of(batch) - 1 + (options["direction"] == "both")  # both: of all parts, then of the sum
    expected = Expectation.of(maxsim_scores, batch, torch.float16, roundings=roundings, **options)
    expected.check("triton")
    expected.check_faults()


@pytest.mark.parametrize(
    ("direction", "dtype", "options"),
    [
        ("t2i", torch.float32, {}),
        ("i2t", torch.float16, {}),
        ("t2i", torch.float32, SOFT),
        ("i2t", torch.float32, {"listed": True, "normalize": True, "pooling": "avg", **SOFT}),
    ],
    ids=str,
)
def test_items_longer_than_a_tile(direction: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    check_long_items("triton", SumMax.LARGEST_TILE + 9, direction, dtype, **options)


@directions
@pytest.mark.usefixtures("precision")
def test_largest_tiles(direction: str) -> None:
    """Of the small ones such hold three items of ten queries, and the next smaller ones one."""
    batch = Features(randn(5, 10, 64, seed=1).double(), randn(7, 10, 64, seed=2).double(), None, None, None)
    Expectation.of(maxsim_scores, batch, torch.float32, direction=direction, normalize=False).check("triton")


def opposed() -> Features:
    """Similarities of −256, beside which exponentials of places that are not there would overflow."""
    ones, one = torch.ones(2, 1, 64, dtype=torch.float64), torch.ones(2, dtype=torch.int64)
    return Features(2 * ones[:1], -2 * ones, one[:1], one, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@examples(12)
@given(batch=features(("none", "none", "all negative", "large"), FEW_ITEMS), options=maxsim_options(one_way=True))
@example(batch=opposed(), options={"direction": "t2i", "normalize": False, "pooling": "lse", "lambda_lse": 6.0})
def test_argmax(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    check_argmax_of("triton", dtype, batch, options)


class TestScores(Scores): ...
