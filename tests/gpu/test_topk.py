"""The best k merged by backend "cuda" on a GPU: what a stable sort begins with, and the host goes on meanwhile."""

from __future__ import annotations

import pytest
import torch
from crossret_kernels.topk.cuda import MOST, merge_in_cuda

from tests.gpu.device import DEVICE, gpu, needs_cuda_library, randn
from tests.kernels.rankings import assert_same_bits

pytestmark = [*gpu, needs_cuda_library]
SLEEP = 10**9  # cycles of the device, half a second


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "block", "k"), [(1448, 1448, 1), (1448, 1448, 10), (1000, 2097, 1000), (1, 2**20, 100), (20, 30_000, MOST)]
)
def test_merged_is_sorted(rows: int, block: int, k: int, transposed: bool) -> None:
    """Many scores are equal; none is −0."""
    scores = (randn(rows, 3 * block) * 1000).round() / 1000 + 0.0
    scores[:, ::1000] = torch.nan
    best = torch.empty(rows, 0, device=DEVICE), torch.empty(rows, 0, dtype=torch.int64, device=DEVICE)
    for start in range(0, 3 * block, block):
        part = scores[:, start : start + block]
        best = merge_in_cuda(*best, part.T.contiguous().T if transposed else part, start, k)
        values, indices = scores[:, : start + block].sort(dim=1, descending=True, stable=True)
        assert_same_bits(best, (values[:, :k], indices[:, :k]))


def test_the_host_does_not_wait() -> None:
    values, indices = randn(100, 10).sort(dim=1, descending=True)
    scores = randn(100, 1000, seed=1)
    merge_in_cuda(values, indices, scores, 10, 10)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    merge_in_cuda(values, indices, scores, 1010, 10)
    assert not torch.cuda.current_stream().query()
