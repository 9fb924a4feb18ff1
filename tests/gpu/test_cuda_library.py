"""Streams of the CUDA library: launches wait for what torch's current stream does before."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels import scan_scores
from tests.gpu.device import gpu, needs_cuda_library, randn

pytestmark = [*gpu, needs_cuda_library]
SLEEP = 10**9  # cycles of the device, half a second
WORDS = 5, 7, 64


def results(regions: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    leaf = regions.detach().requires_grad_()
    scores = scan_scores(leaf, words, backend="cuda")
    return scores.detach(), torch.autograd.grad(scores.sum(), leaf)[0]


def test_the_current_stream_is_waited_for() -> None:
    source, words = randn(8, 9, 64, dtype=torch.bfloat16), randn(*WORDS, seed=1, dtype=torch.bfloat16)
    regions, expected = torch.zeros_like(source), results(source, words)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
        regions.copy_(source)
        made = results(regions, words)
    stream.synchronize()
    torch.testing.assert_close(made, expected, rtol=0, atol=0)
