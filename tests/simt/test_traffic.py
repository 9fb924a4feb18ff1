"""What kernels' accesses cost, counted warp by warp: passes through shared memory's banks, sectors of 32 bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from crossret_kernels.gpu.one_tile import wrong_assumptions
from crossret_kernels.gpu.tuning import CudaAttention
from tests.simt.launches import SCHEDULES, Device, Place, Schedule
from tests.simt.library import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


def features(count: int, rows: int, dim: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(count, rows, dim, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def attend(rows: tuple[int, int], counts: tuple[int, int], dtype: torch.dtype, **options: Any) -> None:
    """Scores and gradients."""
    sides = [features(n, own, 64, dtype, seed) for seed, (n, own) in enumerate(zip(counts, rows, strict=True))]
    scores = scan_scores(*sides, backend="cuda", **options)
    torch.autograd.grad(scores.sum(), sides)


# Calls that fill their tiles.
CALLS: list[Callable[[], None]] = [
    *(lambda dtype=dtype: attend((36, 20), (8, 12), dtype) for dtype in (torch.bfloat16, torch.float32)),
    lambda: attend((36, 20), (8, 12), torch.float16, direction="i2t", normalize=True),
    lambda: attend((197, 77), (2, 3), torch.bfloat16),
]
# Of each kernel, over all calls: passes and sectors, as multiples of the fewest that those bytes could take;
# 0 of kernels without shared memory.
BOUNDS: dict[str, tuple[float, float]] = {
    "add_gram_products": (0, 1.05),
    "attend": (1.11, 1.01),
    "attend_by_warpgroups": (1.17, 1.01),  # rows lie for those who attend; who stores them meets in half a pass
    "differentiate": (1.16, 1.01),
    "gram_matrices": (1.09, 1.08),
    "one_tile": (1, 1),
    "pack_rows": (0, 1),
    "store_gradients": (0, 1.03),  # a number of every part for each row of queries
}
MOST_PASSES, FEW = 4, 0.01  # of one access, for each that it needs; but for such a part of its kernel's


@pytest.fixture(scope="module")
def places(simulated: Device) -> list[Place]:
    """Of all kernels."""
    with simulated.traffic() as found, pytest.MonkeyPatch.context() as patch:
        simulated.choose(multiprocessors=3)
        for call in CALLS:
            call()
        patch.setattr(CudaAttention, "WARPGROUPS", True)
        simulated.choose(multiprocessors=3, capability=90)
        attend((36, 20), (8, 14), torch.bfloat16)
        assert not list(wrong_assumptions(torch.device("cpu")))
    return found


def test_every_kernel_is_counted(places: list[Place]) -> None:
    sources = (path.read_text() for path in (ROOT / "csrc").rglob("cuda*.cu"))
    launched = {name for text in sources for name in re.findall(r'\blaunch\("(\w+)"', text)}
    assert {place.kernel for place in places} == launched == set(BOUNDS)


@pytest.mark.parametrize("kind", ["shared", "global"])
def test_what_kernels_take_of_memory(places: list[Place], simulated: Device, kind: str) -> None:
    over = {}
    for kernel, bounds in BOUNDS.items():
        own = [place for place in places if (place.kernel, place.kind) == (kernel, kind)]
        cost, least = (sum(getattr(place, what) for place in own) for what in ("cost", "least"))
        bound = bounds[kind == "global"]
        assert (least > 0) == (bound > 0), f"{kernel} has {least} {kind} accesses"
        if cost > bound * least:
            worst = max(own, key=lambda place: place.cost - place.least)
            over[kernel] = f"{cost / least:.3f}, most at {simulated.source_of(worst)}"
    assert not over


def test_no_access_meets_in_a_bank_more_than_four_times(places: list[Place], simulated: Device) -> None:
    shared = [place for place in places if place.kind == "shared"]
    taken = Counter[str]()
    for place in shared:
        taken[place.kernel] += place.cost
    meeting = [
        place for place in shared
        if place.cost > max(MOST_PASSES * place.least, FEW * taken[place.kernel])
    ]  # fmt: skip
    assert not [simulated.source_of(place) for place in meeting]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("name", "words", "kind", "cost", "least"),
    [
        ("rows", 1, "shared", 1, 1),
        ("columns", 1, "shared", 16, 1),
        ("padded_columns", 1, "shared", 1, 1),
        ("one_word", 1, "shared", 1, 1),
        ("chunks_of_rows", 4, "shared", 16, 2),
        ("turned_chunks_of_rows", 4, "shared", 2, 2),
        ("odd_lanes", 4, "global", 16, 2),
    ],
)
def test_accesses_cost_what_can_be_told_by_hand(
    device: Device, name: str, words: int, kind: str, cost: int, least: int, schedule: Schedule
) -> None:
    numbers = torch.zeros(2 * 96, words, dtype=torch.int32)
    with device.traffic() as found:
        device.word(name, schedule, numbers, 1)
    read = [place for place in found if place.kind == kind and place.instructions == 2]  # by one warp of each block
    assert [(place.cost, place.least) for place in read] == [(2 * cost, 2 * least)]
    assert all(place.cost == place.least for place in found if place not in read)
