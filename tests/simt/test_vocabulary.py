"""What kernels are written in: shuffles, votes, barriers and conversions mean on the CPU what they mean on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.simt.launches import SCHEDULES, Device, Schedule

NAN = 0x7FFFFFFF


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_words_of_warps_and_blocks(device: Device, schedule: Schedule) -> None:
    words = device.words(schedule)
    for block in range(4):
        first = block * 96
        for thread in range(96):
            warp, lane = thread // 32 * 32, thread % 32
            votes = sum(1 << i for i in range(32) if (warp + i) % 3 == 0)
            # Their bits are tiny floats beside 1, or meet a NaN.
            greater = 0x3F800000 if thread % 2 == 0 else NAN
            assert words[block, thread].tolist() == [
                first + warp + thread % 7,
                first + warp + (lane ^ 5),
                votes - (1 << 32) if votes >> 31 else votes,
                int(warp < 64),
                first + (thread ^ 1),
                first + 63 - thread if thread < 64 else -1,
                first + 95 - thread,
                greater,
            ]


def test_conversions_are_torchs(device: Device) -> None:
    """Every number of both 16-bit types, the middles between neighbours, what lies beside those, and no numbers."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).short()
    exact = torch.cat([every.view(dtype).float() for dtype in (torch.float16, torch.bfloat16)])
    exact = exact[exact.isfinite()].unique()
    middles = ((exact[1:].double() + exact[:-1].double()) / 2).float()
    beside = [torch.nextafter(middles, torch.tensor(towards)) for towards in (-torch.inf, torch.inf)]
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 65519.99, 65520.0, -65520.0, 3.4e38, 1e-45])
    numbers = torch.cat([exact, middles, *beside, ends])
    bfloats, halves, *wide = device.converted(numbers)
    for narrow, again, dtype in ((bfloats, wide[0], torch.bfloat16), (halves, wide[1], torch.float16)):
        expected = numbers.to(dtype)
        torch.testing.assert_close(narrow, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(narrow.signbit()[~expected.isnan()], expected.signbit()[~expected.isnan()])
        torch.testing.assert_close(again, expected.float(), rtol=0, atol=0, equal_nan=True)
