"""Calls by one thread and by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def by_any_threads(make: Callable[[], Sequence[Tensor]], counts: tuple[int, ...] = (1, 2, 3)) -> Sequence[Tensor]:
    """Results of a call, of which any of these numbers of threads makes the same bits."""
    before, results = torch.get_num_threads(), []
    try:
        for count in counts:
            torch.set_num_threads(count)
            results.append(make())
    finally:
        torch.set_num_threads(before)
    for first, *others in zip(*results, strict=True):
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=0, equal_nan=True)
    return results[0]
