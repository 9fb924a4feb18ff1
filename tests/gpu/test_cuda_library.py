"""Where the CUDA library launches: on torch's current stream and on the tensors' device, in CUDA graphs too."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels import triplet_loss
from tests.gpu.device import DEVICE, gpu, needs_cuda_library, randn

pytestmark = [*gpu, needs_cuda_library]
SLEEP = 10**9  # cycles of the device, half a second


def results(scores: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    leaf = scores.detach().requires_grad_()
    loss = triplet_loss(leaf, negatives="softmax", backend=backend)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def check(made: tuple[Tensor, ...], scores: Tensor) -> None:
    for result, expected in zip(made, results(scores.double(), "torch"), strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=2e-4, atol=1e-5)


def test_the_current_stream_is_waited_for() -> None:
    source, scores = randn(200, 200), torch.zeros(200, 200, device=DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
        scores.copy_(source)
        made = results(scores, "cuda")
    stream.synchronize()
    check(made, source)


def test_calls_are_captured_in_graphs() -> None:
    scores = randn(200, 300)
    results(scores, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = results(scores, "cuda")
    for seed in (1, 2):
        scores.copy_(randn(200, 300, seed=seed))
        graph.replay()
        check(made, scores)
