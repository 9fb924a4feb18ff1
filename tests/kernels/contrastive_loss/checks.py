"""Checks of `infonce_loss` and `sigmoid_loss` by any backend: oracles over pairs in float64 and batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, infonce_loss, sigmoid_loss

LOSSES: dict[str, Callable[..., Tensor]] = {"infonce": infonce_loss, "sigmoid": sigmoid_loss}
NUMBERS: dict[str, tuple[float, ...]] = {"infonce": (2.0,), "sigmoid": (2.0, -1.0)}  # scale and bias
REDUCTIONS = ("mean", "sum", "none")
NONE = -math.inf

WITHOUT_DIAGONAL = torch.zeros(4, 4).fill_diagonal_(NONE)
both_losses = pytest.mark.parametrize("name", LOSSES)


def are_positive(i: int, j: int, ids: tuple[list[int] | None, ...]) -> bool:
    """Whether two pairs are of one image or caption."""
    return i == j or any(each is not None and each[i] == each[j] for each in ids)


def cross_entropy(logits: list[float], positive: list[bool], smoothing: float) -> float:
    """−Σ t log p over what is not left out; p by a softmax, told from the greatest logit."""
    here = [(z, y) for z, y in zip(logits, positive, strict=True) if z != NONE]
    count = sum(y for _, y in here)
    if not count:
        return 0.0
    greatest = max(z for z, _ in here)
    whole = math.fsum(math.exp(z - greatest) for z, _ in here)
    terms = []
    for z, y in here:
        target = (1 - smoothing) * y / count + smoothing / len(here)
        terms.append(-target * (z - greatest - math.log(whole)))
    return math.fsum(terms)


def infonce_oracle(
    scores: np.ndarray, scale: float, *, image_ids: list[int] | None, caption_ids: list[int] | None,
    positive_offset: int, label_smoothing: float,
) -> np.ndarray:  # fmt: skip
    """The loss of every positive, half of its row's and its column's."""
    n_rows, n_columns = scores.shape
    ids = (image_ids, caption_ids)
    z = [[scale * s if s != NONE else NONE for s in row] for row in scores.tolist()]
    losses = np.zeros(n_rows)
    for i in range(n_rows):
        own = i + positive_offset
        row = cross_entropy(z[i], [are_positive(own, j, ids) for j in range(n_columns)], label_smoothing)
        rows = [are_positive(own, k + positive_offset, ids) for k in range(n_rows)]
        column = cross_entropy([z[k][own] for k in range(n_rows)], rows, label_smoothing)
        losses[i] = (row + column) / 2
    return losses


def sigmoid_oracle(
    scores: np.ndarray, scale: float, bias: float, *, image_ids: list[int] | None, caption_ids: list[int] | None,
    positive_offset: int,
) -> np.ndarray:  # fmt: skip
    """The loss of every row, −log σ(z (scale · S + bias)) = log (1 + e^−…) summed over its pairs."""
    losses = np.zeros(len(scores))
    for (i, j), s in np.ndenumerate(scores):
        if s != NONE:
            sign = 1 if are_positive(i + positive_offset, j, (image_ids, caption_ids)) else -1
            x = -sign * (scale * s + bias)
            losses[i] += max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    return losses


ORACLES: dict[str, Callable[..., np.ndarray]] = {"infonce": infonce_oracle, "sigmoid": sigmoid_oracle}


def reduced(losses: Any, reduction: str) -> Any:
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / max(len(losses), 1)}[reduction]


@st.composite
def batches(draw: st.DrawFn, name: str) -> tuple[Tensor, tuple[float, ...], dict[str, Any]]:
    """Scores in float64, their scale and perhaps bias, and options."""
    n_rows = draw(st.integers(0, 7) | st.sampled_from((17, 40)))
    before, behind = draw(st.sampled_from((0, 0, 1, 5))), draw(st.sampled_from((0, 0, 2, 30, 130)))
    n_columns = before + n_rows + behind
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scores = torch.randn(n_rows, n_columns, generator=generator, dtype=torch.float64).clamp(-3, 3) / 3
    scores = (scores * 64).round() / 64 * draw(st.sampled_from((0.125, 1.0, 16.0)))  # exact in every dtype
    left_out = draw(st.sampled_from((0.0, 0.0, 0.2, 0.9)))
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < left_out, NONE)
    few = draw(st.sampled_from((0, 2, 3 * n_rows)))
    ids = st.none() | st.lists(st.integers(-1, few), min_size=n_columns, max_size=n_columns)
    options = {"image_ids": draw(ids), "caption_ids": draw(ids), "positive_offset": before}
    scale = draw(st.sampled_from((1 / 16, 1.0, 14.0, 100.0)))
    if name == "sigmoid":
        return scores, (scale, draw(st.sampled_from((-10.0, 0.0, 3.0)))), options
    return scores, (scale,), {**options, "label_smoothing": draw(st.sampled_from((0.0, 0.1, 1.0)))}


def derived(
    name: str, scores: Tensor, numbers: tuple[float, ...], dtype: torch.dtype, backend: str, **options: Any
) -> tuple[Tensor, ...]:
    """The loss and its gradients by scores, scale and bias, in float64; losses of rows are weighed."""
    leaves = [scores.to(dtype, copy=True).requires_grad_()]
    wide = torch.promote_types(dtype, torch.float32)
    leaves += [torch.tensor(number, dtype=wide).requires_grad_() for number in numbers]
    loss = LOSSES[name](*leaves, backend=backend, **options)
    weights = (1 + torch.arange(loss.numel(), device=loss.device) % 8 / 8).to(loss.dtype).view_as(loss)  # exact
    return tuple(made.detach().double() for made in (loss, *torch.autograd.grad(loss, leaves, weights)))


def check_close(
    name: str, scores: Tensor, numbers: tuple[float, ...], dtype: torch.dtype, backend: str, **options: Any
) -> None:
    """Values and gradients are those of "torch" in float64, but for what float32 arithmetic and the dtype round."""
    expected = derived(name, scores, numbers, torch.float64, "torch", **options)
    made = derived(name, scores, numbers, dtype, backend, **options)
    # Logits are rounded at their size, and probabilities by as much; sums at the size of what they add up.
    here = scores[~scores.isneginf()]
    size = 1 + float(here.abs().max()) if here.numel() else 1.0
    logits = 1 + size * abs(numbers[0]) + sum(map(abs, numbers[1:]))
    eps, single = torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    largest = float(expected[1].abs().max()) if scores.numel() else 0.0
    unit = 8 * single * logits
    # A sum may be beyond the dtype's range.
    most = torch.finfo(dtype).max
    torch.testing.assert_close(made[0].clamp(max=most), expected[0].clamp(max=most), rtol=eps + unit, atol=unit)
    torch.testing.assert_close(made[1], expected[1], rtol=eps + unit, atol=(eps + unit) * largest + 1e-7)
    # Of the numbers, Σ s ∂L/∂z and Σ ∂L/∂z.
    sizes = (expected[1] / numbers[0]).abs()
    for found, wanted, each in zip(made[2:], expected[2:], (scores.masked_fill(scores.isneginf(), 0), 1), strict=False):
        torch.testing.assert_close(found, wanted, rtol=unit, atol=unit * float((sizes * each).abs().sum()) + 1e-7)


class Checks:
    """Checks of losses and gradients by the fixture `backend`."""

    @both_losses
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize(
        ("scores", "ids"),
        [
            pytest.param(torch.ones(0, 0), {}, id="no pair"),
            pytest.param(torch.ones(0, 3), {}, id="no row"),
            pytest.param(torch.ones(1, 1), {}, id="one pair"),
            pytest.param(torch.ones(4, 4), {}, id="equal"),
            pytest.param(torch.eye(4), {"image_ids": [3, 3, 3, 3]}, id="one image"),
            pytest.param(torch.full((3, 5), NONE), {}, id="nothing"),
            pytest.param(WITHOUT_DIAGONAL, {}, id="no positive"),
            pytest.param(WITHOUT_DIAGONAL, {"caption_ids": [0, 1, 1, 0]}, id="another positive"),
        ],
    )
    def test_degenerate(self, backend: str, name: str, reduction: str, scores: Tensor, ids: dict[str, Any]) -> None:
        options = {"image_ids": None, "caption_ids": None, "positive_offset": 0} | ids
        smoothings: tuple[dict[str, float], ...] = ({},)
        if name == "infonce":
            smoothings = ({"label_smoothing": 0.0}, {"label_smoothing": 0.25})
        for smoothing, dtype in itertools.product(smoothings, (torch.float32, torch.float16)):
            made = derived(name, scores, NUMBERS[name], dtype, backend, reduction=reduction, **options, **smoothing)
            losses = ORACLES[name](scores.double().numpy(), *NUMBERS[name], **options, **smoothing)
            expected = reduced(losses, reduction)
            np.testing.assert_allclose(made[0].numpy(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
            assert all(gradient.isfinite().all() for gradient in made[1:])
            assert not made[1][scores.isneginf()].any()

    @both_losses
    def test_nothing_overflows(self, backend: str, name: str) -> None:
        """At a scale of 100 and scores of 10⁴."""
        scores = torch.full((5, 7), -1e4)
        scores[0, 1:3], scores[3] = 1e4, 0.0
        for turned in (scores, -scores):
            numbers: tuple[float, ...] = (100.0,) if name == "infonce" else (100.0, -10.0)
            made = derived(name, turned, numbers, torch.float32, backend, positive_offset=1)
            ids: dict[str, Any] = {"image_ids": None, "caption_ids": None, "positive_offset": 1}
            ids |= {"label_smoothing": 0.0} if name == "infonce" else {}
            expected = reduced(ORACLES[name](turned.double().numpy(), *numbers, **ids), "mean")
            assert made[0].item() == pytest.approx(float(expected), rel=1e-5)
            assert all(gradient.isfinite().all() for gradient in made[1:])

    @both_losses
    def test_nan_stays_in_its_row_and_column(self, backend: str, name: str) -> None:
        scores = torch.zeros(5, 6)
        scores[1, 4] = math.nan
        leaf = scores.requires_grad_()
        losses = LOSSES[name](leaf, *NUMBERS[name], positive_offset=1, reduction="none", backend=backend)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        reached = torch.zeros(5, 6, dtype=torch.bool)
        reached[1, 4] = True
        if name == "infonce":
            reached[1], reached[:, 4] = True, True
        assert losses.isnan().nonzero().flatten().tolist() == ([1, 3] if name == "infonce" else [1])
        assert torch.equal(gradient.isnan(), reached)


class Kernels(Checks):
    """Checks of kernels' operations too."""

    @both_losses
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_operations(self, backend: str, name: str, reduction: str) -> None:
        """torch's own checks of ``crossret::<name>`` and of its gradient."""
        operation = f"{name}_loss_{backend}"
        loss_of, gradient_of = (
            getattr(torch.ops.crossret, f"{operation}{suffix}").default for suffix in ("", "_backward")
        )
        scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(8))
        numbers = [torch.tensor(number) for number in NUMBERS[name]]
        ids = torch.tensor([0, 1, 1, 2, 3, 0])
        smoothing = (0.1,) if name == "infonce" else ()
        options = (*smoothing, ("sum", "mean", "none").index(reduction), 1)
        leaves = [x.clone().requires_grad_() for x in (scores, *numbers)]
        torch.library.opcheck(loss_of, (*leaves, ids, None, *options))
        made = loss_of(scores, *numbers, None, ids, *options)
        kept = made if name == "infonce" else (made,)
        given = torch.ones_like(kept[0]), *kept[1:], scores, *numbers, None, ids, *options
        for wanted in itertools.product((True, False), repeat=1 + len(numbers)):
            torch.library.opcheck(gradient_of, (*given, *wanted))

    @both_losses
    def test_traced_for_any_size(self, backend: str, name: str) -> None:
        """Losses and gradients, under autocast too, which changes neither."""

        def loss(scores: Tensor, scale: Tensor, offset: int) -> Tensor:
            numbers = (scale,) if name == "infonce" else (scale, -2.0)
            return LOSSES[name](scores, *numbers, positive_offset=offset, backend=backend)

        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
        for n_rows, n_columns, offset in ((3, 5, 2), (6, 9, 3), (7, 7, 0)):
            scores = torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(n_rows)).requires_grad_()
            scale = torch.tensor(3.0, requires_grad=True)
            expected = loss(scores, scale, offset)
            gradients = torch.autograd.grad(expected, (scores, scale))
            with torch.autocast("cpu", torch.bfloat16):
                under_autocast = loss(scores, scale, offset)
            for made in (compiled(scores, scale, offset), under_autocast):
                assert made.dtype == torch.float32
                assert torch.equal(made, expected)
                torch.testing.assert_close(torch.autograd.grad(made, (scores, scale)), gradients, rtol=0, atol=0)

    @both_losses
    def test_second_derivatives_are_refused(self, backend: str, name: str) -> None:
        scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(7)).requires_grad_()
        loss = LOSSES[name](scores, *NUMBERS[name], backend=backend)
        (gradient,) = torch.autograd.grad(loss, scores, create_graph=True)
        with pytest.raises(RuntimeError, match="cannot be differentiated: second derivatives are served by"):
            torch.autograd.grad(gradient.square().sum(), scores)

    def test_transforms_are_refused(self, backend: str) -> None:
        with pytest.raises(UnsupportedByBackend, match=r"torch\.func's transforms"):
            torch.func.grad(lambda scores: infonce_loss(scores, 2.0, backend=backend))(torch.rand(4, 4))
