"""Checks of `triplet_loss` by any backend: an oracle of loops in float64, batches, degenerate hinges."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, triplet_loss

NEGATIVES = ("hardest", "sum", "softmax")
REDUCTIONS = ("sum", "mean", "none")
ORDERS = (1.0, 1.5, 2.0, 4.0, 8.0, 64.0, 1e6)

negatives_of_every_kind = pytest.mark.parametrize("negatives", NEGATIVES)
WITHOUT_HINGES = {
    "negative hinges": (torch.eye(4) * 10, 0.2, None),
    "hinges of exactly zero": (torch.zeros(4, 4), 0.0, None),
    "one image": (torch.ones(4, 4), 0.2, [3, 3, 3, 3]),
    "one pair": (torch.ones(1, 1), 0.2, None),
    "no pair": (torch.ones(0, 0), 0.2, None),
}


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


@st.composite
def batches(draw: st.DrawFn, on_grid: bool = False) -> tuple[Tensor, dict[str, Any]]:
    """Scores in float64 and options; on a grid of eighths hinges are exact in every dtype, and many of them tie."""
    n_rows = draw(st.integers(0, 7) | st.sampled_from((17, 40) if on_grid else (9,)))
    before, behind = draw(st.sampled_from((0, 0, 1, 5))), draw(st.sampled_from((0, 0, 2, 30, 130)))
    n_columns = before + n_rows + behind
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scores = torch.randn(n_rows, n_columns, generator=generator, dtype=torch.float64)
    scores = (scores * 4).round() / 8 if on_grid else scores * draw(st.sampled_from((0.1, 1.0, 10.0)))
    few = draw(st.sampled_from((0, 2, 3 * n_rows)))
    ids = st.none() | st.lists(st.integers(-1, few), min_size=n_columns, max_size=n_columns)
    return scores, {
        "margin": draw(st.sampled_from((0.0, 0.25, 1.0) if on_grid else (0.0, 0.2, 1.0))),
        "negatives": draw(st.sampled_from(NEGATIVES)),
        "p": draw(st.sampled_from(ORDERS)),
        "image_ids": draw(ids),
        "caption_ids": draw(ids),
        "positive_offset": before,
    }


def check_gradients(
    scores: Tensor, options: dict[str, Any], dtype: torch.dtype, backend: str, unit: float = 2e-5, **more: Any
) -> None:
    """Losses and gradients are those of "torch" in float64, gradients but for their rounding and such a unit."""
    results = []
    for kind, served in ((torch.float64, "torch"), (dtype, backend)):
        leaf = scores.to(kind, copy=True).requires_grad_()
        loss = triplet_loss(leaf, backend=served, **options, **more)
        weights = torch.linspace(1, 2, loss.numel(), dtype=loss.dtype).view_as(loss)  # rounded too
        results.append((loss.double(), torch.autograd.grad(loss, leaf, weights)[0].double()))
    (expected, slope), (loss, gradient) = results
    rounding, largest = 2 * torch.finfo(dtype).eps, float(slope.abs().max()) if scores.numel() else 0.0
    torch.testing.assert_close(loss, expected, rtol=rounding + 3e-6, atol=1e-6)
    torch.testing.assert_close(gradient, slope, rtol=rounding + unit, atol=(rounding + 1e-5) * largest)


class Losses:
    """Checks of losses and gradients by the fixture `backend`."""

    @negatives_of_every_kind
    @pytest.mark.parametrize(("scores", "margin", "image_ids"), WITHOUT_HINGES.values(), ids=WITHOUT_HINGES)
    @pytest.mark.parametrize("p", (1.0, 1.5, 64.0))
    def test_zero_losses_have_zero_gradients(
        self, backend: str, negatives: str, p: float, scores: Tensor, margin: float, image_ids: list[int] | None
    ) -> None:
        """Whatever ∂L/∂loss is."""
        for dtype, reduction in itertools.product((torch.float32, torch.float16), REDUCTIONS):
            leaf = scores.to(dtype, copy=True).requires_grad_()
            options: dict[str, Any] = {"margin": margin, "negatives": negatives, "p": p, "image_ids": image_ids}
            loss = triplet_loss(leaf, reduction=reduction, backend=backend, **options)
            assert torch.equal(loss, torch.zeros_like(loss))
            for through in (1.0, float("inf")):
                if through == 1.0 or backend not in ("torch", "reference"):  # which multiply them by 0
                    (gradient,) = torch.autograd.grad(loss, leaf, torch.full_like(loss, through), retain_graph=True)
                    assert torch.equal(gradient, torch.zeros_like(leaf))

    @negatives_of_every_kind
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("place", [(0, 1), (2, 2), (0, 3), (4, 0)])
    @pytest.mark.parametrize("image_ids", [None, [0, 1, 2, 0, 1]])
    def test_nan_is_where_hinges_meet_it(
        self, backend: str, negatives: str, value: float, place: tuple[int, int], image_ids: list[int] | None
    ) -> None:
        """In losses of rows and columns; in gradients by "softmax", of hinges above zero. (0, 3) is none by the ids."""
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


class Kernels(Losses):
    """Checks of kernels' operations too."""

    @negatives_of_every_kind
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_operations(self, backend: str, negatives: str, reduction: str) -> None:
        """torch's own checks of ``crossret::<name>`` and of its gradient."""
        name = f"triplet_loss_{backend}"
        loss_of, gradient_of = (getattr(torch.ops.crossret, f"{name}{suffix}").default for suffix in ("", "_backward"))
        scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(8))
        ids = torch.tensor([0, 1, 1, 2, 3, 0])
        options = (0.2, NEGATIVES.index(negatives), 8.0, REDUCTIONS.index(reduction), 1)
        torch.library.opcheck(loss_of, (scores.clone().requires_grad_(), ids, None, *options))
        loss, statistics = loss_of(scores, None, ids, *options)
        gradient = torch.ones_like(loss), statistics, scores, None, ids
        torch.library.opcheck(gradient_of, (*gradient, *options))

    @negatives_of_every_kind
    def test_traced_for_any_size(self, backend: str, negatives: str) -> None:
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

    def test_second_derivatives_are_refused(self, backend: str) -> None:
        scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(7)).requires_grad_()
        loss = triplet_loss(scores, negatives="softmax", backend=backend)
        (gradient,) = torch.autograd.grad(loss, scores, create_graph=True)
        with pytest.raises(RuntimeError, match="cannot be differentiated: second derivatives are served by"):
            torch.autograd.grad(gradient.square().sum(), scores)

    def test_transforms_are_refused(self, backend: str) -> None:
        with pytest.raises(UnsupportedByBackend, match=r"torch\.func's transforms"):
            torch.func.grad(lambda scores: triplet_loss(scores, backend=backend))(torch.rand(4, 4))
