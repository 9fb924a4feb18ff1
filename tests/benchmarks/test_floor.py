"""The micro-benchmarks of the floor compile and give rates, whatever the processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.floor import Floor


@pytest.mark.parametrize("threads", [2])
def test_rates_of_any_number_of_threads(threads: int, tmp_path: Path) -> None:
    floor = Floor(tmp_path)
    # Slower by far than any processor that runs torch: what is tested is that a rate comes back, not how high it is.
    assert floor.flop_per_second(torch.float32, threads) > 1e7
    assert floor.flop_per_second(torch.bfloat16, threads) > 1e7
    assert floor.bytes_per_second(threads) > 1e7
