"""Streams of the CUDA library: launches wait for what torch's current stream does before."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels import scan_scores
from tests.gpu.device import DEVICE, gpu, needs_cuda_library, randn

pytestmark = [*gpu, needs_cuda_library]
SLEEP = 10**9  # cycles of the device, half a second
WORDS = 5, 7, 64


def results(regions: Tensor, words: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    leaf = regions.detach().requires_grad_()
    scores = scan_scores(leaf, words, backend=backend)
    return scores.detach(), torch.autograd.grad(scores.sum(), leaf)[0]


def check(made: tuple[Tensor, ...], regions: Tensor, words: Tensor) -> None:
    for result, expected in zip(made, results(regions.double(), words.double(), "torch"), strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=2e-4, atol=1e-5)


def test_the_current_stream_is_waited_for() -> None:
    source, regions, words = randn(8, 9, 64), torch.zeros(8, 9, 64, device=DEVICE), randn(*WORDS, seed=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
        regions.copy_(source)
        made = results(regions, words, "cuda")
    stream.synchronize()
    check(made, source, words)
