"""Copies into shared memory, matrices out of it and their products mean on the CPU what the PTX manual says they do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.simt.launches import SCHEDULES, Device, Schedule

THREADS = 96
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)


def random_words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(3)).int()


@every_schedule
def test_chunks_are_copied(device: Device, schedule: Schedule) -> None:
    words = random_words(2 * THREADS, 8)
    made = device.word("copied", schedule, words, 8)
    assert torch.equal(made.view(2, THREADS, 8), words.view(2, THREADS, 8).flip(1))


@every_schedule
def test_matrices_are_loaded(device: Device, schedule: Schedule) -> None:
    words = random_words(THREADS, 4)
    made = device.word("loaded", schedule, words, 6).view(3, 32, 6)
    for warp, rows in enumerate(words.view(3, 32, 4)):
        for lane in range(32):
            four = [rows[5 * (8 * matrix + lane // 4) % 32, lane % 4] for matrix in range(4)]
            two = [rows[31 - (8 * matrix + lane // 4), lane % 4] for matrix in range(2)]
            assert made[warp, lane].tolist() == [int(word) for word in four + two]


# The manual's fragments: of an element of each lane its row and its column.
Place = tuple[int, int]


def half_places(lane: int) -> tuple[list[Place], list[Place]]:
    """Of m16n8k16: eight elements of A and four of B, two a word."""
    group, thread = lane >> 2, lane % 4
    a = [(group if i < 2 or 4 <= i < 6 else group + 8, thread * 2 + (i & 1) + (8 if i >= 4 else 0)) for i in range(8)]
    b = [(thread * 2 + (i & 1) + (8 if i >= 2 else 0), group) for i in range(4)]
    return a, b


def tfloat_places(lane: int) -> tuple[list[Place], list[Place]]:
    """Of m16n8k8: four elements of A and two of B."""
    group, thread = lane >> 2, lane % 4
    a = [(group, thread), (group + 8, thread), (group, thread + 4), (group + 8, thread + 4)]
    return a, [(thread, group), (thread + 4, group)]


def sum_places(lane: int) -> list[Place]:
    group, thread = lane >> 2, lane % 4
    return [(group if i < 2 else group + 8, thread * 2 + (i & 1)) for i in range(4)]


def gathered(matrix: Tensor, places: list[Place]) -> Tensor:
    """Words of the elements."""
    rows, columns = zip(*places, strict=True)
    return matrix[list(rows), list(columns)].view(torch.int32)


@every_schedule
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "tfloat32"])
def test_products(device: Device, kind: str, schedule: Schedule) -> None:
    places = tfloat_places if kind == "tfloat32" else half_places
    inner = 8 if kind == "tfloat32" else 16
    dtype = torch.float32 if kind == "tfloat32" else getattr(torch, kind)
    generator = torch.Generator().manual_seed(4)
    a, b, c = (torch.randn(3, *shape, generator=generator) for shape in ((16, inner), (inner, 8), (16, 8)))
    a, b = a.to(dtype), b.to(dtype)
    words = [
        torch.cat([gathered(a[warp], at[0]), gathered(b[warp], at[1]), gathered(c[warp], sum_places(lane))])
        for warp in range(3)
        for lane in range(32)
        for at in [places(lane)]
    ]
    if kind == "tfloat32":  # of which the lower 13 bits are nothing
        a, b = ((matrix.view(torch.int32) & ~0x1FFF).view(torch.float32) for matrix in (a, b))
    expected = c.double() + a.double() @ b.double()
    made = device.word(f"multiplied {kind}", schedule, torch.stack(words), 4).view(torch.float32).view(3, 32, 4)
    for warp in range(3):
        for lane in range(32):
            rows, columns = zip(*sum_places(lane), strict=True)
            right = expected[warp, list(rows), list(columns)]
            torch.testing.assert_close(made[warp, lane].double(), right, rtol=0, atol=2e-6)
