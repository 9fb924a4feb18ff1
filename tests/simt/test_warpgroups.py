"""Scores by warpgroups, of devices of compute capability 9.0: those of the kernel for all devices, to the bit, in every
schedule; and what its instructions are taken for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from crossret_kernels.gpu import one_tile
from crossret_kernels.gpu.tuning import CudaAttention
from tests.simt.launches import SCHEDULES, Device, Schedule

pytestmark = pytest.mark.usefixtures("one_thread")
schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
DTYPES = torch.bfloat16, torch.float16, torch.float32
OURS = "attend_by_warpgroups"


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warpgroups multiply."""
    monkeypatch.setattr(CudaAttention, "WARPGROUPS", True)


def drawn(count: int, rows: int, dim: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Random features (count, rows, dim) that bfloat16 holds, and so does TF32."""
    values = torch.randn(count, rows, dim, generator=torch.Generator().manual_seed(seed))
    return values.bfloat16().to(dtype)


def both_ways(
    device: Device, schedule: Schedule, call: Callable[[], Tensor], multiprocessors: int = 3
) -> tuple[Tensor, Tensor, set[str]]:
    """Scores of devices of compute capability 9.0 and 8.0, and the kernels of the first."""
    device.choose(schedule, multiprocessors, capability=90)
    with device.traffic() as found:
        ours = call()
    device.choose(schedule, multiprocessors, capability=80)
    return ours, call(), {place.kernel for place in found}


def check(device: Device, schedule: Schedule, call: Callable[[], Tensor], multiprocessors: int = 3) -> Tensor:
    ours, expected, kernels = both_ways(device, schedule, call, multiprocessors)
    assert OURS in kernels and "attend" not in kernels
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)
    return ours


def lengths(count: int, most: int, least: int = 1) -> Tensor:
    return torch.randint(least, most + 1, (count,), generator=torch.Generator().manual_seed(count))


def by_lengths(patch: pytest.MonkeyPatch, rows: int, dim: int) -> None:
    """A part has room for so many rows of bfloat16: for all there are, and not with every item as long as any."""
    patch.setattr(CudaAttention, "ROW_BYTES", 2 * rows * dim)


@schedules
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_scores_are_those_of_every_device(
    simulated: Device, schedule: Schedule, dtype: torch.dtype, direction: str
) -> None:
    """A ring that comes round, with a last stage that is not full; of queries an odd number of jobs."""
    sides = (
        drawn(8, 36, 4 * 128 // dtype.itemsize + 8, dtype, 1),
        drawn(14, 20, 4 * 128 // dtype.itemsize + 8, dtype, 2),
    )
    ours = check(simulated, schedule, lambda: scan_scores(*sides, direction=direction, backend="cuda"))
    true = scan_scores(*(side.double() for side in sides), direction=direction, backend="reference")
    torch.testing.assert_close(ours.double(), true, rtol=0, atol=2e-6)


@pytest.mark.parametrize("multiprocessors", [1, 2, 5, 132])
def test_jobs_of_ragged_items(simulated: Device, monkeypatch: pytest.MonkeyPatch, multiprocessors: int) -> None:
    """Captions of any length by images that fill a tile, in blocks that have many jobs, one, or none."""
    by_lengths(monkeypatch, 700, 72)
    regions, words = drawn(7, 36, 72, torch.bfloat16, 3), drawn(30, 30, 72, torch.bfloat16, 4)
    for number, direction in enumerate(("t2i", "i2t")):
        check(
            simulated,
            SCHEDULES[(multiprocessors + number) % 4],
            lambda direction=direction: scan_scores(
                regions, words, word_lengths=lengths(30, 30), direction=direction, backend="cuda"
            ),
            multiprocessors,
        )


CASES: dict[str, tuple[tuple[int, int], tuple[int, int], dict[str, Any]]] = {
    "items that fill a tile": ((3, 144), (4, 128), {}),
    "images by the row": ((300, 1), (20, 16), {"pooling": "sum"}),
    "one job of contexts": ((2, 36), (20, 16), {"pooling": "avg"}),
    "longer than one step": ((3, 70), (20, 16), {"pooling": "max", "clip_slope": 0.3}),
    "rows of one's length": ((5, 36), (20, 16), {"normalize": True, "pooling": "softmax", "lambda_lse": 3.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_options(simulated: Device, name: str) -> None:
    images, captions, options = CASES[name]
    sides = drawn(*images, 40, torch.bfloat16, 5), drawn(*captions, 40, torch.bfloat16, 6)
    number = list(CASES).index(name)
    check(simulated, SCHEDULES[number % 4], lambda: scan_scores(*sides, backend="cuda", **options))


def test_empty_items_and_what_is_not_finite(simulated: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    by_lengths(monkeypatch, 300, 64)
    regions, words = drawn(7, 36, 64, torch.bfloat16, 7), drawn(33, 12, 64, torch.bfloat16, 8)
    counts = lengths(33, 12, 0)
    counts[3:20] = 0  # a job of nothing else
    regions[2, 5, 3], words[30, 0, 0], counts[30] = torch.nan, torch.inf, 4
    ours = check(
        simulated, SCHEDULES[2],
        lambda: scan_scores(regions, words, word_lengths=counts, empty_score=-7.0, backend="cuda"),
    )  # fmt: skip
    assert (ours[:, 3:20] == -7).all() and ours[2][counts > 0].isnan().all() and ours[:, 30].isnan().all()
    assert ours.isnan().sum() == (counts > 0).sum() + 6


def test_contexts_that_cancel(simulated: Device) -> None:
    """Attended vectors are made of the features where the Gram matrix cannot tell them from zero."""
    regions, words = drawn(5, 12, 40, torch.bfloat16, 9), drawn(24, 16, 40, torch.bfloat16, 10)
    regions[:, 1::2] = -regions[:, ::2]
    check(simulated, SCHEDULES[3], lambda: scan_scores(regions, words, lambda_softmax=0.001, backend="cuda"))


@pytest.mark.parametrize(
    "options",
    [
        {"raw_feature_norm": "softmax"},
        {"lambda_softmax": 50.0},
        {"clip_slope": 1.5},
        {"pairs": torch.tensor([[0, 0], [1, 19], [1, 3]])},
        {"word_lengths": torch.full((20,), 15)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_calls_are_for_the_kernel_of_all_devices(simulated: Device, options: dict[str, Any]) -> None:
    sides = drawn(4, 36, 40, torch.bfloat16, 11), drawn(20, 16, 40, torch.bfloat16, 12)
    ours, expected, kernels = both_ways(simulated, SCHEDULES[0], lambda: scan_scores(*sides, backend="cuda", **options))
    assert OURS not in kernels and torch.equal(ours, expected)


@schedules
def test_one_tile_does_what_it_is_taken_for(simulated: Device, schedule: Schedule) -> None:
    simulated.choose(schedule, capability=90)
    assert not list(one_tile.wrong_assumptions(torch.device("cpu")))


@pytest.mark.parametrize(
    ("result", "turned", "told"),
    [
        (0, lambda copies: copies.roll(16), "boxes lie otherwise in shared memory, from byte 0"),
        (1, lambda sums: sums.roll(1, 0), "rows of queries come out otherwise, step 0"),
        (1, lambda sums: sums.roll(1, 1), "rows of contexts come out otherwise, step 0"),
        (1, lambda sums: sums - (sums < 0) * 1.0, "products of a tile are wrong"),
    ],
    ids=["copies", "rows", "columns", "sums"],
)
def test_one_tile_says_which_assumption_fails(
    simulated: Device, monkeypatch: pytest.MonkeyPatch, result: int, turned: Callable[[Tensor], Tensor], told: str
) -> None:
    def otherwise(*tensors: Tensor) -> None:
        own(*tensors)
        tensors[result].copy_(turned(tensors[result].clone()))

    own = one_tile.one_tile
    monkeypatch.setattr(one_tile, "one_tile", otherwise)
    simulated.choose(capability=90)
    assert any(told in line for line in one_tile.wrong_assumptions(torch.device("cpu")))
