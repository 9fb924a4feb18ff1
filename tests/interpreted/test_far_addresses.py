"""Features, logits and scores that begin 2³¹ elements apart, in memory of which only they are ever touched.

What kernels make of calls' shapes themselves is held to 64 bits by tests/kernels/test_triton_addresses.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    attention_pool,
    gated_attention_scores,
    heterogeneous_scores,
    maxsim_scores,
    scan_attend,
    scan_scores,
    triplet_loss,
)
from tests.kernels.gated import gated_parameters
from tests.kernels.heterogeneous import make_layers

DIM, ROWS, APART = 16, (5, 4, 3), 2**31 + 32
PAIRS = torch.tensor([[1, 2], [0, 0], [2, 1]])
Score = Callable[..., Tensor]


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def far_apart(values: Tensor, *strides: int) -> Tensor:
    """Half-precision values in memory where these strides lead."""
    elements = sum((n - 1) * stride for n, stride in zip(values.shape, strides, strict=True)) + 1
    memory = torch.from_numpy(np.memmap("/dev/zero", np.float16, "c", shape=(elements,)))
    return memory.as_strided(values.shape, strides).copy_(values)


def results(function: Score, *leaves: Tensor) -> list[Tensor]:
    """What it gives, and the gradients of its sum."""
    for leaf in leaves:
        leaf.requires_grad_()
    made = function(*leaves)
    return [made, *torch.autograd.grad(made.sum(), leaves)]


def check(function: Score, near: Tensor, far: Tensor, *others: Tensor) -> None:
    assert torch.equal(near, far)
    for one, distant in zip(results(function, near, *others), results(function, far, *others), strict=True):
        assert torch.equal(one, distant)


def attended(*sides: Any, **options: Any) -> Tensor:
    return scan_attend(*sides, pairs=PAIRS, **options).attended


def heterogeneous(*sides: Any, **options: Any) -> Tensor:
    return heterogeneous_scores(*sides, layers=make_layers(1, DIM, torch.float16), **options)


def gated(*sides: Any, **options: Any) -> Tensor:
    contexts = {f"{side}_contexts": randn(3, 2, DIM, seed=seed).half() for seed, side in enumerate(("region", "word"))}
    parameters = gated_parameters(DIM, DIM, DIM, DIM, DIM, torch.Generator().manual_seed(0)).to(torch.float16)
    return gated_attention_scores(*sides, **contexts, parameters=parameters, **options)


SCORES: dict[str, Score] = {
    "cross attention": scan_scores,
    "of pairs": partial(scan_scores, pairs=PAIRS),
    "attended vectors": attended,
    "Sum-Max": partial(maxsim_scores, normalize=True),
    "Sum-Max of pairs": partial(maxsim_scores, pairs=PAIRS, normalize=True),
    "heterogeneous attention": heterogeneous,
    "gated attention": gated,
}


@pytest.mark.parametrize("far_side", [0, 1])
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize(
    ("name", "direction"),
    [
        (name, direction)
        for name in SCORES
        for direction in ("t2i", "i2t")
        if (name, direction) != ("gated attention", "i2t")
    ],
)
def test_features(name: str, layout: str, far_side: int, direction: str) -> None:
    sides = [randn(len(ROWS), max(ROWS), DIM, seed=seed).half() for seed in (11, 12)]
    near = sides.pop(far_side)
    far = far_apart(near, APART, DIM, 1)
    if layout == "packed":
        near = randn(sum(ROWS), DIM, seed=11).half()
        far = far_apart(near, 2**29 + 8, 1)
    options: dict[str, Any] = {"backend": "triton"}
    if name != "gated attention":  # which scores by both
        options["direction"] = direction

    def score(own: Tensor, other: Tensor) -> Tensor:
        laid: list[Any] = [other]
        offsets = torch.tensor([0, *ROWS]).cumsum(0)
        laid.insert(far_side, (own, offsets) if layout == "packed" else own)
        return SCORES[name](*laid, **options)

    check(score, near, far, *sides)


@pytest.mark.parametrize("far", ["values", "logits"])
def test_rows_that_are_pooled(far: str) -> None:
    values, logits = randn(3, 5, DIM, seed=0).half(), randn(3, 5, 2, seed=1).half()
    if far == "values":
        check(partial(attention_pool, backend="triton"), values, far_apart(values, APART, DIM, 1), logits)
    else:
        check(
            lambda own, other: attention_pool(other, own, backend="triton"),
            logits, far_apart(logits, APART, 2, 1), values,
        )  # fmt: skip


@pytest.mark.parametrize("negatives", ["hardest", "sum", "softmax"])
@pytest.mark.parametrize("strides", [(APART, 1), (1, APART)])
def test_scores_that_are_ranked(strides: tuple[int, int], negatives: str) -> None:
    scores = randn(4, 4, seed=0).half()
    check(partial(triplet_loss, negatives=negatives, backend="triton"), scores, far_apart(scores, *strides))
