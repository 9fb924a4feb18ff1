"""What `triplet_loss` is to do by every backend: loops in float64, cases with degenerate hinges, and checks of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, triplet_loss

NEGATIVES = ("hardest", "sum", "softmax")
REDUCTIONS = ("sum", "mean", "none")
ORDERS = (1.0, 1.5, 2.0, 8.0, 64.0)

negatives_of_every_kind = pytest.mark.parametrize("negatives", NEGATIVES)
without_hinges = pytest.mark.parametrize(
    ("scores", "margin", "image_ids"),
    [
        (torch.eye(4) * 10, 0.2, None),
        (torch.zeros(4, 4), 0.0, None),
        (torch.ones(4, 4), 0.2, [3, 3, 3, 3]),
        (torch.ones(1, 1), 0.2, None),
        (torch.ones(0, 0), 0.2, None),
    ],
    ids=["negative hinges", "hinges of exactly zero", "one image", "one pair", "no pair"],
)
_values = pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
_places = pytest.mark.parametrize("place", [(0, 1), (2, 2), (0, 3), (4, 0)])
_ids = pytest.mark.parametrize("image_ids", [None, [0, 1, 2, 0, 1]])


def with_one_value(test: Any) -> Any:
    """For a test of scores of which one, at `place`, is `value`. (0, 3) are no negatives by the ids."""
    return _values(_places(_ids(test)))


def pooled(hinges: list[float], negatives: str, p: float) -> float:
    largest = max(hinges, default=0.0)
    if negatives == "sum":
        return sum(hinges)
    if negatives == "hardest" or largest == 0:
        return largest
    return largest * sum((hinge / largest) ** p for hinge in hinges) ** (1 / p)


def oracle(
    scores: np.ndarray,
    *,
    margin: float,
    negatives: str,
    p: float,
    image_ids: list[int] | None,
    caption_ids: list[int] | None,
    positive_offset: int,
) -> np.ndarray:
    """The loss of every positive, of its row plus its column."""
    n_rows, n_columns = scores.shape
    losses = np.zeros(n_rows)

    def differ(i: int, j: int) -> bool:
        return i != j and not any(ids is not None and ids[i] == ids[j] for ids in (image_ids, caption_ids))

    for i in range(n_rows):
        own = i + positive_offset
        hinge = margin - scores[i, own]
        row = [max(0.0, hinge + scores[i, j]) for j in range(n_columns) if differ(own, j)]
        column = [max(0.0, hinge + scores[k, own]) for k in range(n_rows) if differ(own, k + positive_offset)]
        losses[i] = pooled(row, negatives, p) + pooled(column, negatives, p)
    return losses


def check_zero_losses(backend: str, scores: Tensor, **options: Any) -> None:
    """Losses are zero where no hinge is above it, and so are gradients, whatever ∂L/∂loss is."""
    for reduction in REDUCTIONS:
        leaf = scores.clone().requires_grad_()
        loss = triplet_loss(leaf, reduction=reduction, backend=backend, **options)
        assert torch.equal(loss, torch.zeros_like(loss))
        for through in (1.0, float("inf")):
            if through == 1.0 or backend not in ("torch", "reference"):  # which multiply them by 0
                (gradient,) = torch.autograd.grad(loss, leaf, torch.full_like(loss, through), retain_graph=True)
                assert torch.equal(gradient, torch.zeros_like(scores))


def check_nan_is_where_hinges_meet_it(
    backend: str, negatives: str, value: float, place: tuple[int, int], image_ids: list[int] | None
) -> None:
    """Losses of rows and columns; gradients by "softmax", of hinges above zero."""
    results = []
    for served in ("torch", backend):
        scores = torch.zeros(5, 5)
        scores[1, 4] = -1.0
        scores[place] = value
        leaf = scores.requires_grad_()
        losses = triplet_loss(leaf, negatives=negatives, image_ids=image_ids, reduction="none", backend=served)
        results.append((losses, *torch.autograd.grad(losses.sum(), leaf)))
    if value != value and image_ids is None and place[0] != place[1]:
        assert results[1][0].isnan().nonzero().flatten().tolist() == sorted(place)
    if value == value and negatives == "softmax" and backend == "reference":
        return  # its formula knows the norm of ∞, which others divide by itself
    torch.testing.assert_close(results[1][0], results[0][0], equal_nan=True)
    torch.testing.assert_close(results[1][1], results[0][1], equal_nan=True)


def check_operations(name: str, negatives: str, reduction: str) -> None:
    """torch's own checks of ``crossret::<name>`` and of its gradient."""
    loss_of, gradient_of = (getattr(torch.ops.crossret, f"{name}{suffix}").default for suffix in ("", "_backward"))
    scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(8))
    ids = torch.tensor([0, 1, 1, 2, 3, 0])
    options = (0.2, NEGATIVES.index(negatives), 8.0, REDUCTIONS.index(reduction), 1)
    torch.library.opcheck(loss_of, (scores.clone().requires_grad_(), ids, None, *options))
    loss, statistics = loss_of(scores, None, ids, *options)
    gradient = torch.ones_like(loss), statistics, scores, None, ids
    torch.library.opcheck(gradient_of, (*gradient, *options))


def check_traced_for_any_size(backend: str, negatives: str) -> None:
    """Losses and gradients, under autocast too, which changes neither."""

    def loss(scores: Tensor, offset: int) -> Tensor:
        return triplet_loss(scores, negatives=negatives, positive_offset=offset, reduction="mean", backend=backend)

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for n_rows, n_columns, offset in ((3, 5, 2), (6, 9, 3), (7, 7, 0)):
        scores = torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(n_rows)).requires_grad_()
        expected = loss(scores, offset)
        gradient = torch.autograd.grad(expected, scores)
        with torch.autocast("cpu", torch.bfloat16):
            under_autocast = loss(scores, offset)
        for made in (compiled(scores, offset), under_autocast):
            assert made.dtype == torch.float32
            assert torch.equal(made, expected)
            assert torch.equal(*torch.autograd.grad(made, scores), *gradient)


def check_second_derivatives_are_refused(backend: str) -> None:
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(7)).requires_grad_()
    loss = triplet_loss(scores, negatives="softmax", backend=backend)
    (gradient,) = torch.autograd.grad(loss, scores, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated: second derivatives are served by"):
        torch.autograd.grad(gradient.square().sum(), scores)


def check_refused_transforms(backend: str) -> None:
    with pytest.raises(UnsupportedByBackend, match=r"torch\.func's transforms"):
        torch.func.grad(lambda scores: triplet_loss(scores, backend=backend))(torch.rand(4, 4))
