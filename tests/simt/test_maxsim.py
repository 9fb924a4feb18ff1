"""Sum-Max's CUDA kernels on the CPU, by `maxsim_scores`, against the float64 oracle: forward, argmax and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import maxsim_argmax, maxsim_scores
from crossret_kernels.gpu.cuda_library import constant, constants
from crossret_kernels.gpu.tuning import CudaSumMax, SumMax
from crossret_kernels.maxsim import tables
from tests.kernels.maxsim_checks import (
    UNTIED,
    ByLengths,
    GpuCalls,
    Scores,
    check_argmax_of,
    check_long_items,
    directions,
    listed_or_all,
    randn,
)
from tests.kernels.strategies import Features, examples, features, maxsim_options
from tests.kernels.tolerance import Expectation
from tests.simt.launches import SCHEDULES, Device, Schedule

pytestmark = pytest.mark.usefixtures("simulated", "cut")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
schedules = st.sampled_from(SCHEDULES)


@pytest.fixture(params=["as it comes", "in many parts"], scope="module")
def cut(request: pytest.FixtureRequest) -> Iterator[str]:
    """In many parts, so that a few items take several of everything: and by the largest tiles."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in many parts":
            for module, name, value in (
                (SumMax, "UNPLANNED_PRODUCTS", 4000),
                (CudaSumMax, "WIDE_CELLS", 0),
                (CudaSumMax, "WELL_FILLED", 0.0),
                (CudaSumMax, "BLOCKS", 3),
                (CudaSumMax, "LEAST_STAGES", 1),
                (CudaSumMax, "SHARED_BY", 0),
                (CudaSumMax, "LISTED_BYTES", 1500),
                (SumMax, "WORKSPACE_BYTES", 700),
                (SumMax, "PAIRS_AT_ONCE", 3),
                (SumMax, "BLOCK_OF_CONTEXTS", 16),
                (tables, "PROCESSORS", 1),
                (CudaSumMax, "LEAST_UNITS", 1),
                (CudaSumMax, "GRADIENT_BLOCKS", 40),
            ):
                patch.setattr(module, name, value)
        yield request.param


@pytest.fixture(scope="module")
def backend() -> str:
    return "cuda"


@pytest.fixture(autouse=True)
def defaults(device: Device) -> None:
    device.choose()


@pytest.mark.parametrize("tf32", [False, True], ids=["ieee", "tf32"])
@examples(20)  # four times
@given(batch=features(UNTIED), options=maxsim_options(), schedule=schedules)
def test_float32(device: Device, tf32: bool, batch: Features, options: dict[str, Any], schedule: Schedule) -> None:
    device.choose(schedule)
    if tf32:  # of what TF32 holds, products are exact
        batch = batch.to(torch.bfloat16).to(torch.float64)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        Expectation.of(maxsim_scores, batch, torch.float32, **options).check("cuda")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@examples(20)
@given(batch=features(("none", "small")), options=maxsim_options(), schedule=schedules)
def test_half_precision_features(
    device: Device, cut: str, dtype: torch.dtype, batch: Features, options: dict[str, Any], schedule: Schedule
) -> None:
    device.choose(schedule)
    Expectation.of(maxsim_scores, batch, dtype, share=share_of_parts(cut, dtype), **options).check("cuda")


def share_of_parts(cut: str, dtype: torch.dtype) -> float:
    """What gradients lose where they are summed in up to seven parts, whose sums are rounded each."""
    return (6 if cut == "in many parts" and dtype is not torch.float32 else 0) * torch.finfo(dtype).eps / 2


@listed_or_all
@pytest.mark.parametrize(
    ("direction", "dtype", "pooling"), [("t2i", torch.float32, "sum"), ("i2t", torch.float16, "max")], ids=str
)
def test_items_longer_than_a_tile(direction: str, dtype: torch.dtype, pooling: str, listed: bool) -> None:
    options = {"pooling": pooling, "normalize": pooling == "sum"}
    check_long_items("cuda", constants("maxsim_tile_rows")[True] + 9, direction, dtype, listed, **options)


@listed_or_all
def test_negative_similarities_of_many_items(listed: bool) -> None:
    """The best query's too; and of more items of contexts than a warp looks at together."""
    pairs = torch.cartesian_prod(torch.arange(40), torch.arange(2)) if listed else None
    sides = [randn(40, 2, 8, seed=1).abs().double(), -randn(2, 35, 8, seed=2).abs().double()]
    batch = Features(*sides, torch.full((40,), 2), torch.full((2,), 35), pairs)
    Expectation.of(maxsim_scores, batch, torch.float32, pooling="max", normalize=True).check("cuda")


def test_gradients_of_rows_beside_others() -> None:
    """They begin at multiples of 16 bytes and end between those."""
    sides = [randn(n, 5, 16, seed=n)[..., :13] for n in (2, 3)]
    made = []
    for own in (sides, [side.contiguous() for side in sides]):
        leaves = [side.detach().requires_grad_() for side in own]
        made.append(torch.autograd.grad(maxsim_scores(*leaves, normalize=True, backend="cuda").sum(), leaves))
    for once, again in zip(*made, strict=True):
        torch.testing.assert_close(once, again)


def test_many_tiles_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles than blocks that run together share."""
    monkeypatch.setattr(CudaSumMax, "BLOCKS", 51)
    monkeypatch.setattr(CudaSumMax, "LEAST_STAGES", 1)
    contexts, queries = randn(45, 6, 4, seed=1), randn(17, 65, 4, seed=2)
    scores = maxsim_scores(contexts, queries, pooling="sum", normalize=False, backend="cuda")
    expected = maxsim_scores(contexts, queries, pooling="sum", normalize=False, backend="reference")
    torch.testing.assert_close(scores, expected)


@listed_or_all
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_ring_comes_round(cut: str, listed: bool, dtype: torch.dtype) -> None:
    """More bytes of rows than all stages hold, and more tiles of queries than one."""
    share = share_of_parts(cut, dtype)
    dim = (constant("maxsim_stages") + 3) * constant("maxsim_stage_bytes") // dtype.itemsize - 5
    batch = Features(
        randn(3, 70, dim, seed=1).double(), randn(20, 30, dim, seed=2).double(), torch.tensor([70, 3, 66]),
        torch.arange(11, 31), torch.tensor([[2, 3], [0, 19], [1, 0], [0, 7], [2, 19]]) if listed else None,
    )  # fmt: skip
    for normalize in (False, True):
        Expectation.of(maxsim_scores, batch, dtype, share=share, normalize=normalize).check("cuda")


@directions
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n_contexts", [17, 45])
def test_many_short_items_of_contexts_pass_side_by_side(dtype: torch.dtype, direction: str, n_contexts: int) -> None:
    contexts, queries = (randn(n, rows, 16, seed=n).to(dtype) for n, rows in ((n_contexts, 6), (9, 40)))
    lengths = torch.arange(n_contexts) % 6 + 1, torch.tensor([40, 1, 7, 33, 5, 40, 12, 2, 3])
    sides = (contexts, queries, *lengths) if direction == "t2i" else (queries, contexts, *lengths[::-1])
    batch = Features(*sides, None)
    for normalize in (False, True):
        options: dict[str, Any] = {"direction": direction, "normalize": normalize, "pooling": "sum"}
        scores = maxsim_scores(*batch.arguments(), backend="cuda", **options)
        expected = maxsim_scores(*batch.to(torch.float64).arguments(), backend="reference", **options)
        torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-4)
        check_argmax_of("cuda", dtype, batch, options)


@listed_or_all
@pytest.mark.parametrize(
    ("dtype", "normalize", "pooling"),
    [(torch.bfloat16, False, "sum"), (torch.float16, True, "max"), (torch.float32, False, "avg")],
    ids=str,
)
def test_schedules_do_not_show(device: Device, listed: bool, dtype: torch.dtype, normalize: bool, pooling: str) -> None:
    regions, words = randn(5, 37, 150, seed=3).to(dtype), randn(9, 21, 150, seed=4).to(dtype)
    lengths = torch.tensor([37, 1, 12, 30, 8]), torch.tensor([5, 21, 1, 9, 9, 14, 20, 2, 3])
    pairs = torch.randint(0, 5, (40, 2), generator=torch.Generator().manual_seed(1)) if listed else None
    options: dict[str, Any] = {"normalize": normalize, "pooling": pooling, "pairs": pairs}
    made: list[tuple[Tensor, ...]] = []
    for schedule in SCHEDULES:
        device.choose(schedule)
        sides = [side.clone().requires_grad_() for side in (regions, words)]
        scores, argmax = maxsim_argmax(*sides, *lengths, backend="cuda", **options)
        weights = randn(*scores.shape, seed=5)
        made.append((scores.detach(), argmax, *torch.autograd.grad((scores * weights).sum(), sides)))
    for results in made[1:]:
        assert all(torch.equal(result, first) for result, first in zip(results, made[0], strict=True))


@pytest.mark.parametrize("scale", [2.0**-80, 2.0**80])
def test_cosines_of_features_whose_squares_are_out_of_range(scale: float) -> None:
    sides = randn(2, 3, 8, seed=1), randn(3, 4, 8, seed=2)
    expected = maxsim_scores(*sides, normalize=True, backend="cuda")
    assert torch.equal(maxsim_scores(scale * sides[0], sides[1], normalize=True, backend="cuda"), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@examples(20)
@given(batch=features(("none", "none", "all negative", "large")), options=maxsim_options(), schedule=schedules)
def test_argmax(
    device: Device, dtype: torch.dtype, batch: Features, options: dict[str, Any], schedule: Schedule
) -> None:
    device.choose(schedule)
    check_argmax_of("cuda", dtype, batch, options)


class TestScores(Scores): ...


class TestCalls(GpuCalls): ...


class TestByLengths(ByLengths): ...
