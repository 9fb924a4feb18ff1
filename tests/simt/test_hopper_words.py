"""Boxes, barriers that count and products of warpgroups mean on the CPU what the PTX manual says they do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.simt.launches import SCHEDULES, Device, Schedule

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
DTYPES = {"tfloat32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
every_kind = pytest.mark.parametrize("kind", DTYPES)


def random_rows(kind: str, *shape: int) -> Tensor:
    """Random numbers of a shape whose last size is in bytes."""
    dtype = DTYPES[kind]
    numbers = torch.randn(*shape[:-1], shape[-1] // dtype.itemsize, generator=torch.Generator().manual_seed(shape[0]))
    return numbers.to(dtype)


def exact(numbers: Tensor, kind: str) -> Tensor:
    """As products take them: of TF32's lower 13 bits nothing."""
    if kind == "tfloat32":
        numbers = (numbers.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return numbers.double()


@every_schedule
@pytest.mark.parametrize("box_rows", [8, 20, 144])
def test_boxes_are_copied(device: Device, box_rows: int, schedule: Schedule) -> None:
    """Zeros lie beyond the rows and beyond their bytes."""
    rows, bytes_ = 150, 3 * 128 - 48
    numbers = torch.randint(1, 256, (rows, bytes_), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    places = [(0, 0), (3, 1), (0, 2), (rows - box_rows, 0), (rows - box_rows + 5, 2), (rows - 1, 1), (rows, 0), (0, 3)]
    padded = torch.zeros(rows + 200, 4 * 128, dtype=torch.uint8)
    padded[:rows, :bytes_] = numbers
    out = torch.full((len(places), box_rows, 128), 99, dtype=torch.uint8)
    at = torch.tensor(places, dtype=torch.int32)
    device.run_scheduled("run_boxes", schedule, numbers, rows, bytes_, box_rows, at, len(places), out)
    for box, (row, column) in zip(out, places, strict=True):
        assert torch.equal(box, padded[row : row + box_rows, 128 * column : 128 * (column + 1)])


@every_schedule
@pytest.mark.parametrize("columns", [8, 144, 256])
@every_kind
def test_products_of_steps(device: Device, kind: str, columns: int, schedule: Schedule) -> None:
    """Each of four steps of 32 bytes, added to what was there and alone."""
    left, right = random_rows(kind, 64, 128), random_rows(kind, columns, 128)
    before, out = torch.randn(64, columns), torch.empty(2, 4, 64, columns)
    number = list(DTYPES).index(kind)
    device.run_scheduled("run_products", schedule, number, left, right, before, out, columns)
    of_step = left.shape[1] // 4
    for step in range(4):
        own = slice(step * of_step, (step + 1) * of_step)
        product = exact(left[:, own], kind) @ exact(right[:, own], kind).T
        torch.testing.assert_close(out[0, step].double(), before.double() + product, rtol=0, atol=1e-5)
        torch.testing.assert_close(out[1, step].double(), product, rtol=0, atol=1e-5)


@every_schedule
@pytest.mark.parametrize("cluster", [1, 2])
@every_kind
def test_pipelines(device: Device, kind: str, cluster: int, schedule: Schedule) -> None:
    """One thread copies seven steps through three stages, a warpgroup multiplies them."""
    steps, blocks = 7, 4
    left, right = random_rows(kind, 64 * blocks, 128 * steps), random_rows(kind, 144, 128 * steps)
    out = torch.empty(64 * blocks, 144)
    number = list(DTYPES).index(kind)
    with device.traffic() as found:
        device.run_scheduled("run_pipelined", schedule, number, left, right, out, cluster, blocks, steps)
    assert {place.kind for place in found} == {"global"}  # what threads store: copies and products are not theirs
    expected = exact(left, kind) @ exact(right, kind).T
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-4)


@every_schedule
@pytest.mark.parametrize("cluster", [1, 2])
def test_numbers_go_round_a_ring(device: Device, cluster: int, schedule: Schedule) -> None:
    """Rings whose consumers arrive by all lanes, or by one of each warp."""
    count = 50
    numbers = torch.arange(count, dtype=torch.int32) * 7 % 31
    out = torch.empty(2 * cluster, 128, dtype=torch.int32)
    device.run_scheduled("run_rounds", schedule, numbers, count, out, cluster, 2 * cluster)
    expected = int((numbers.long() * torch.arange(1, count + 1)).sum())
    assert out.unique().tolist() == [expected]
