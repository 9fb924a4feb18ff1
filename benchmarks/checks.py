"""Checks of what is timed: scores, gradients and retrieved items beside those of the loop in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.cases import Inputs

# The loop and the einsums round every intermediate to the inputs' precision.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}
SAMPLE = 8  # items of either side

Oracle = Callable[[Inputs], Tensor]


def sample_items(count: int) -> Tensor:
    """First, last and up to `SAMPLE` - 2 other indices of `count` items, the same for every call."""
    if count <= SAMPLE:
        return torch.arange(count)
    between = torch.randperm(count - 2, generator=torch.Generator().manual_seed(count))[: SAMPLE - 2] + 1
    return torch.cat([torch.tensor([0]), between.sort().values, torch.tensor([count - 1])])


def check_scores(scores: Tensor, inputs: Inputs, oracle: Oracle) -> None:
    """Compares scores of `inputs` with the oracle's, in the pairs of a sample of images with a sample of captions.

    Raises:
        AssertionError: they differ.
    """
    images, captions = sample_items(len(inputs.regions)), sample_items(len(inputs.words))
    expected = oracle(inputs.pick(images, captions).to(torch.float64))
    _check(scores[images[:, None], captions], expected, TOLERANCES[inputs.regions.dtype])


def check_gradients(gradients: Sequence[Tensor], weights: Tensor, inputs: Inputs, oracle: Oracle) -> None:
    """Compares gradients of sum(weights * scores) with the oracle's: of the first and last image and caption.

    Raises:
        AssertionError: they differ by more than the tolerance, relative to the largest.
    """
    everything = torch.arange(len(inputs.regions)), torch.arange(len(inputs.words))
    for side in range(2):
        chosen = list(everything)
        chosen[side] = everything[side][[0, -1]]
        picked = inputs.pick(*chosen).to(torch.float64)
        leaf = (picked.regions, picked.words)[side].detach().requires_grad_()
        picked = Inputs(
            picked.regions.detach() if side else leaf,
            picked.region_lengths,
            leaf if side else picked.words.detach(),
            picked.word_lengths,
        )
        loss = (weights[chosen[0][:, None], chosen[1]].double() * oracle(picked)).sum()
        (expected,) = torch.autograd.grad(loss, leaf)
        tolerance = TOLERANCES[inputs.regions.dtype] * float(expected.abs().max())
        _check(gradients[side][[0, -1]], expected, tolerance)


def check_topk(best: Sequence[Tensor], inputs: Inputs, oracle: Oracle) -> None:
    """Compares the values (n_captions, k) with the oracle's scores of the images that the indices name, for a sample.

    Raises:
        AssertionError: they differ.
    """
    values, indices = best
    for caption in sample_items(len(inputs.words)):
        expected = oracle(inputs.pick(indices[caption], caption[None]).to(torch.float64))[:, 0]
        _check(values[caption], expected, TOLERANCES[inputs.regions.dtype])


def _check(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual.detach().double(), expected, rtol=0, atol=tolerance)
