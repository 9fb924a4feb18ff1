"""Launches through torch: they run on what tests choose, mistakes are errors in Python, and some are refused."""

from __future__ import annotations

import pytest
import torch

from tests.simt.launches import SCHEDULES, Device, Schedule

NUMBERS = torch.arange(128, dtype=torch.float32)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_mistakes_are_errors_in_python(device: Device, schedule: Schedule) -> None:
    device.choose(schedule)
    with pytest.raises(
        RuntimeError, match=r"race: kernel two_writers, block \([01], 0\), thread \d+: write after write"
    ):
        torch.ops.crossret_simt.reversed(NUMBERS, True, 2, 1, 0)
    made = torch.ops.crossret_simt.reversed(NUMBERS, False, 2, 1, 0)
    assert torch.equal(made, NUMBERS.view(2, 64).flip(1).flatten())


@pytest.mark.parametrize(
    ("blocks_x", "blocks_y", "shared_bytes", "why"),
    [
        (1, 65536, 0, "it has 1 by 65536 blocks"),
        (0, 1, 0, "it has 0 by 1 blocks"),
        (2**31, 1, 0, "it has 2147483648 by 1 blocks"),
        (1, 1, 300_000, "it needs 300000 bytes of shared memory, and the device has 232448"),
    ],
)
@pytest.mark.usefixtures("device")
def test_launches_that_no_gpu_takes_are_refused(blocks_x: int, blocks_y: int, shared_bytes: int, why: str) -> None:
    with pytest.raises(RuntimeError, match=f"the CUDA kernel two_writers was not launched: {why}"):
        torch.ops.crossret_simt.reversed(NUMBERS, False, blocks_x, blocks_y, shared_bytes)


@pytest.mark.usefixtures("device")
def test_what_a_kernel_declares_counts_besides() -> None:
    """Here 256 bytes, and as many as lie before the next 1,024; a GPU refuses the launch, and the device here its first
    block.
    """
    most = 232448
    torch.ops.crossret_simt.reversed(NUMBERS, False, 2, 1, most - 1024)
    with pytest.raises(RuntimeError, match=f"too much shared memory: .*{most + 128} bytes, and it may have {most}"):
        torch.ops.crossret_simt.reversed(NUMBERS, False, 2, 1, most - 896)
