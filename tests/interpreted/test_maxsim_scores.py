"""`maxsim_scores` by backend "triton" against the float64 oracle: forward, argmax and backward, in any tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossret_kernels import maxsim_scores
from crossret_kernels.gpu.tuning import SumMax
from tests.kernels.maxsim_checks import (
    check_argmax_of,
    check_features_too_short_to_be_inverted,
    check_first_of_equal_maxima,
    check_gradients_of_cosines,
    check_gradients_of_equal_maxima,
    check_gradients_of_finite_items,
    check_long_items,
    check_padding_is_never_read,
    check_what_is_not_finite,
    directions,
    ignore_no_numbers,
    listed_or_all,
    poolings_and_norms,
    randn,
)
from tests.kernels.strategies import FEW_ITEMS, Features, examples, features, maxsim_options
from tests.kernels.test_maxsim_scores import UNTIED
from tests.kernels.tolerance import Expectation


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
            ):
                patch.setattr(module, name, value)
        yield request.param


@pytest.fixture(params=[False, True], ids=["ieee", "tf32"])
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """The interpreter multiplies float32 as it is, but tiles are not the same."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("precision")
@examples(10)  # twice, and as often again in the other tiles
@given(batch=features(UNTIED, FEW_ITEMS), options=maxsim_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    Expectation.of(maxsim_scores, batch, torch.float32, **options).check("triton")


@examples(12)
@given(batch=features(("none", "small"), FEW_ITEMS), options=maxsim_options())
def test_float16(tiles: str, batch: Features, options: dict[str, Any]) -> None:
    later = 3 if tiles == "small tiles" else 0  # of four parts, whose sums are rounded each
    share = later * torch.finfo(torch.float16).eps / 2
    expected = Expectation.of(maxsim_scores, batch, torch.float16, share=share, **options)
    expected.check("triton")
    expected.check_faults()


@pytest.mark.parametrize(("direction", "dtype"), [("t2i", torch.float32), ("i2t", torch.float16)], ids=str)
def test_items_longer_than_a_tile(direction: str, dtype: torch.dtype) -> None:
    check_long_items("triton", SumMax.LARGEST_TILE + 9, direction, dtype)


@listed_or_all
def test_gradients_of_cosines(listed: bool) -> None:
    check_gradients_of_cosines("triton", listed)


@directions
@pytest.mark.usefixtures("precision")
def test_largest_tiles(direction: str) -> None:
    """Of the small ones such hold three items of ten queries, and the next smaller ones one."""
    batch = Features(randn(5, 10, 64, seed=1).double(), randn(7, 10, 64, seed=2).double(), None, None, None)
    Expectation.of(maxsim_scores, batch, torch.float32, direction=direction, normalize=False).check("triton")


@directions
def test_features_too_short_to_be_inverted_have_similarity_zero(direction: str) -> None:
    check_features_too_short_to_be_inverted("triton", direction)


# --- argmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@examples(12)
@given(batch=features(("none", "none", "all negative", "large"), FEW_ITEMS), options=maxsim_options())
def test_argmax(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    check_argmax_of("triton", dtype, batch, options)


@directions
def test_of_equal_maxima_the_first_is_the_argmax(direction: str) -> None:
    check_first_of_equal_maxima("triton", direction)


@examples(12)
@given(seed=st.integers(0, 2**32), options=maxsim_options(), listed=st.booleans())
def test_of_equal_maxima_the_first_gets_the_gradient(seed: int, options: dict[str, Any], listed: bool) -> None:
    check_gradients_of_equal_maxima("triton", seed, options, listed)


# --- what is not finite


@ignore_no_numbers
@poolings_and_norms
def test_what_is_not_finite_stays_in_its_item(direction: str, pooling: str, normalize: bool, listed: bool) -> None:
    check_what_is_not_finite("triton", direction, pooling, normalize, listed)


@directions
@ignore_no_numbers
def test_gradients_of_finite_items_stay_finite(direction: str) -> None:
    check_gradients_of_finite_items("triton", direction)


@ignore_no_numbers  # of norms, of which those are never read either
@examples(6)
@given(batch=features(("none",), FEW_ITEMS), options=maxsim_options())
def test_padding_is_never_read(batch: Features, options: dict[str, Any]) -> None:
    check_padding_is_never_read("triton", batch, options)
