"""Features and scores that begin 2³¹ elements apart, in memory of which only they are ever touched, where kernels read
them as they lie: other operations copy them first.

Offsets that kernels make of shapes are held to 64 bits by tests/kernels/gpu/test_triton_addresses.py.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from crossret_kernels import (
    infonce_loss,
    maxsim_scores,
    scan_attend,
    scan_scores,
    sigmoid_loss,
    triplet_loss,
)
from tests.kernels.gpu.offline import tensors_of

DIM, ROWS, APART = 16, (5, 4, 3), 2**31 + 32
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
PAIRS = torch.tensor([[1, 2], [0, 0], [2, 1]])
Score = Callable[..., Tensor]


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def far_apart(values: Tensor, *strides: int) -> Tensor:
    """Half-precision values in memory where these strides lead."""
    elements = sum((n - 1) * stride for n, stride in zip(values.shape, strides, strict=True)) + 1
    unreserved = mmap.mmap(-1, 2 * elements, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(unreserved, dtype=torch.float16).as_strided(values.shape, strides).copy_(values)


def results(function: Score, *leaves: Tensor) -> list[Tensor]:
    """The function's result, and the gradients of its sum in all leaves."""
    for leaf in leaves:
        leaf.requires_grad_()
    made = function(*leaves)
    return [made, *torch.autograd.grad(made.sum(), leaves)]


def check(function: Score, near: Tensor, far: Tensor, *others: Tensor) -> None:
    assert torch.equal(near, far)
    given: list[int] = []
    launch = interpreter.GridExecutor.__call__

    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        given.extend(x.data_ptr() for x in tensors_of(arguments) if x.stride() == far.stride())
        launch(self, *arguments, **named)

    with patch.object(interpreter.GridExecutor, "__call__", noted):
        function(far, *others)
    assert far.data_ptr() in given, "no kernel reads them as they lie"
    torch.testing.assert_close(results(function, near, *others), results(function, far, *others), rtol=0, atol=0)


def attended(*sides: Any, **options: Any) -> Tensor:
    return scan_attend(*sides, pairs=PAIRS, **options).attended


SCORES: dict[str, Score] = {
    "cross attention": scan_scores,
    "of pairs": partial(scan_scores, pairs=PAIRS),
    "attended vectors": attended,
    "Sum-Max": partial(maxsim_scores, normalize=True),
    "Sum-Max of pairs": partial(maxsim_scores, pairs=PAIRS, normalize=True),
}


@pytest.mark.parametrize("far_side", [0, 1])
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_features(name: str, layout: str, far_side: int, direction: str) -> None:
    sides = [randn(len(ROWS), max(ROWS), DIM, seed=seed).half() for seed in (11, 12)]
    near = sides.pop(far_side)
    far = far_apart(near, APART, DIM, 1)
    if layout == "packed":
        near = randn(sum(ROWS), DIM, seed=11).half()
        far = far_apart(near, 2**29 + 8, 1)

    def score(own: Tensor, other: Tensor) -> Tensor:
        laid: list[Any] = [other]
        offsets = torch.tensor([0, *ROWS]).cumsum(0)
        laid.insert(far_side, (own, offsets) if layout == "packed" else own)
        return SCORES[name](*laid, direction=direction, backend="triton")

    check(score, near, far, *sides)


@pytest.mark.parametrize("negatives", ["hardest", "sum", "softmax"])
def test_scores_that_are_ranked(negatives: str) -> None:
    scores = randn(4, 4, seed=0).half()
    check(partial(triplet_loss, negatives=negatives, backend="triton"), scores, far_apart(scores, APART, 1))


@pytest.mark.parametrize("loss", [partial(infonce_loss, scale=2.0), partial(sigmoid_loss, scale=2.0, bias=-1.0)])
def test_scores_that_are_contrasted(loss: Callable[..., Tensor]) -> None:
    scores = randn(4, 4, seed=0).half()
    check(partial(loss, backend="triton"), scores, far_apart(scores, APART, 1))
