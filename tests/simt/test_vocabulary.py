"""What kernels are written in: shuffles, votes, barriers and conversions mean on the CPU what they mean on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

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


def bits_of(*numbers: Tensor) -> Tensor:
    """(threads, numbers) as words, filled up with ones to whole blocks."""
    words = torch.stack([n.view(torch.int32) for n in numbers], 1)
    return torch.cat([words, torch.ones(-len(words) % 96, len(numbers), dtype=torch.int32)])


SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e-45, -1e-39, 2.0**-126, 3.4e38, -3.4e38, -127.0, -149.0, 128.0]
)
NONE = torch.tensor([torch.inf, -torch.inf, torch.nan])


def test_arithmetic(device: Device) -> None:
    """Functions of numbers within rounding, subnormal ones zero; words of other types and of their bits exactly."""
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(1000, generator=generator) * 2.0 ** torch.randint(-40, 40, (1000,), generator=generator)
            for _ in range(2))  # fmt: skip
    x, y = torch.cat([x, SPECIAL, NONE]), torch.cat([y, SPECIAL.flip(0), NONE.roll(1)])
    made = device.word("calculated", SCHEDULES[0], bits_of(x, y), 7)[: len(x)]

    def flushed(numbers: Tensor) -> Tensor:
        return torch.where(numbers.abs() < 2.0**-126, torch.zeros(()).copysign(numbers), numbers)

    taken = flushed(x)
    for at, function in ((0, torch.exp2), (1, torch.log2), (5, torch.sqrt), (6, torch.reciprocal)):
        expected = flushed(function(taken.double()).float())
        torch.testing.assert_close(
            made[:, at].contiguous().view(torch.float32), expected, rtol=1e-6, atol=1e-7, equal_nan=True
        )

    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    rounded = torch.where(x.isfinite(), (bits + 0x1000) & 0xFFFFE000, torch.where(x.isnan(), 0x7FFFFFFF, bits))
    assert torch.equal(made[:, 2].long() & 0xFFFFFFFF, rounded)
    pairs = made[:, 3].contiguous().view(torch.bfloat16).view(-1, 2)
    torch.testing.assert_close(pairs, torch.stack([x, y], 1).to(torch.bfloat16), rtol=0, atol=0, equal_nan=True)
    assert made[:, 4].tolist() == [(int(word) & -int(word)).bit_length() - 1 for word in bits]


@pytest.mark.parametrize("cluster", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_votes_of_blocks(device: Device, cluster: int, schedule: Schedule) -> None:
    """Those of a cluster have barriers and memory of their own."""
    numbers = torch.zeros(4, 96, dtype=torch.int32)
    numbers[1, 33], numbers[2, 94], numbers[3] = 5, 7, torch.arange(96, dtype=torch.int32)
    made = device.word("voted", schedule, numbers.view(-1, 1), 4, cluster).view(4, 96, 4)
    for block, votes in enumerate([(0, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]):
        assert made[block, :, :3].unique(dim=0).tolist() == [list(votes)]
        assert torch.equal(made[block, :, 3], numbers[block].flip(0))
