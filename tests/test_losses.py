"""The loss modules: every hyper-parameter reaches the operation; values by loops, gradients, what has no negatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from crossret.hyperparameters import HanConfig, ScanConfig
from crossret.losses import (
    DiversityLoss,
    InfoNceLoss,
    MatchingLoss,
    SigmoidLoss,
    StructurePreservingLoss,
    TripletLoss,
    matching_loss,
)
from crossret_kernels import infonce_loss, sigmoid_loss, triplet_loss
from tests.models.loss_loops import triplet_by_hand, within_by_hand

SCORES = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"margin": 0.7, "negatives": "sum"},
        {"negatives": "softmax", "p": 2.0, "reduction": "mean"},
    ],
)
def test_options_reach_the_loss(options: dict[str, Any]) -> None:
    ids = torch.tensor([3, 5, 3, 0])
    expected = triplet_loss(SCORES, image_ids=ids, **options)
    assert torch.equal(TripletLoss(**options)(SCORES, ids), expected)
    assert torch.equal(TripletLoss(**options)(SCORES), triplet_loss(SCORES, **options))
    assert TripletLoss(**options)(SCORES) != TripletLoss(**options)(SCORES, ids)
    assert all(f"{name}={value!r}" in repr(TripletLoss(**options)) for name, value in options.items())
    rows = TripletLoss(**options)(SCORES[1:3], ids, positive_offset=1)
    assert torch.equal(rows, triplet_loss(SCORES[1:3], image_ids=ids, positive_offset=1, **options))


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2, "reduction": "sum"}])
def test_infonce_learns_its_temperature(options: dict[str, Any]) -> None:
    """From CLIP's 1 / 0.07, with the operation's gradients."""
    ids, loss = torch.tensor([3, 5, 3, 0]), InfoNceLoss(**options)
    own = {"reduction": "mean", **options}
    scale = torch.tensor(1 / 0.07, requires_grad=True)
    expected = infonce_loss(SCORES[1:3], scale, image_ids=ids, positive_offset=1, **own)
    made = loss(SCORES[1:3], ids, positive_offset=1)
    torch.testing.assert_close(made, expected)
    made.backward()
    (gradient,) = torch.autograd.grad(expected, scale)
    torch.testing.assert_close(loss.log_scale.grad, gradient / 0.07)
    assert all(f"{name}={value!r}" in repr(loss) for name, value in own.items())


def test_the_temperature_is_bounded_as_clip_s() -> None:
    """Whatever a step made of the parameter; and below the bound it is left alone."""
    loss = InfoNceLoss()
    start = loss.log_scale.detach().clone()
    loss(SCORES)
    assert torch.equal(loss.log_scale, start)
    with torch.no_grad():
        loss.log_scale.fill_(9.0)
    first, second = loss(SCORES), loss(SCORES.T)  # of two matrices, before either goes backward
    assert 99.99 < loss.scale().item() <= 100
    assert loss.log_scale.item() <= math.log(100)
    (first + second).backward()
    assert loss.log_scale.grad != 0  # which may take it away from the bound
    torch.testing.assert_close(first, infonce_loss(SCORES, 100.0), rtol=1e-4, atol=0)


def test_sigmoid_learns_its_scale_and_bias() -> None:
    """From SigLIP's 10 and −10."""
    ids, loss = torch.tensor([3, 5, 3, 0]), SigmoidLoss()
    numbers = [torch.tensor(number, requires_grad=True) for number in (10.0, -10.0)]
    expected = sigmoid_loss(SCORES, *numbers, image_ids=ids)
    made = loss(SCORES, ids)
    torch.testing.assert_close(made, expected)
    made.backward()
    scale, bias = torch.autograd.grad(expected, numbers)
    torch.testing.assert_close(loss.log_scale.grad, 10 * scale)
    torch.testing.assert_close(loss.bias.grad, bias)
    torch.testing.assert_close(SigmoidLoss(reduction="sum")(SCORES), 4 * SigmoidLoss()(SCORES))


def test_hyper_parameters_choose_the_loss() -> None:
    sizes = {"image_dim": 4, "vocabulary_size": 9}

    def chosen(**fields: Any) -> MatchingLoss:
        return matching_loss(HanConfig(**sizes, **fields), reduction="mean")

    assert repr(chosen(p=3.0)) == "TripletLoss(margin=0.2, negatives='softmax', p=3.0, reduction='mean')"
    assert isinstance(chosen(loss="infonce"), InfoNceLoss)
    assert isinstance(chosen(loss="sigmoid"), SigmoidLoss)
    smoothed = chosen(loss="infonce", label_smoothing=0.1, loss_scale=3.0)
    torch.testing.assert_close(smoothed(SCORES), infonce_loss(SCORES, 3.0, label_smoothing=0.1))
    started = chosen(loss="sigmoid", loss_scale=3.0, loss_bias=-2.0)
    torch.testing.assert_close(started(SCORES), sigmoid_loss(SCORES, 3.0, -2.0))
    for name, wrong in (("label_smoothing", 1.5), ("loss_scale", 0.0), ("loss_scale", 101.0)):
        with pytest.raises(ValueError, match=f"{name} must"):
            chosen(loss="infonce", **{name: wrong})
    assert {"label_smoothing", "loss_scale", "loss_bias"} <= set(ScanConfig(**sizes).unused())
    assert ScanConfig(**sizes, loss="infonce").unused()[:2] == ["margin", "negatives"]
    assert {"margin", "negatives", "p"} <= set(HanConfig(**sizes, loss="infonce").unused())
    assert "margin" not in ScanConfig(**sizes).unused()


@pytest.mark.parametrize("squared", [False, True])
def test_heads_apart_have_no_diversity_loss_and_no_gradient(squared: bool) -> None:
    apart = torch.eye(3, dtype=torch.float64)[None, :, :2].requires_grad_()
    loss = DiversityLoss(squared=squared)(apart)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(apart.grad, torch.zeros_like(apart))  # not NaN, where the norm has no derivative


def cosine_matrices(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of images with captions, images with images, captions with captions."""
    generator = torch.Generator().manual_seed(seed)
    sides = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    images, captions = (side / side.norm(dim=1, keepdim=True) for side in sides)
    return images @ captions.T, images @ images.T, captions @ captions.T


@pytest.mark.parametrize("ids", [None, [3, 5, 3, 0, 5, 1], [3, 3, 3, 3, 3, 0]], ids=str)
@pytest.mark.parametrize("kind", ["own", "partner"])
@pytest.mark.parametrize("seed", range(3))
def test_structure_is_equations_9_to_12(kind: str, ids: list[int] | None, seed: int) -> None:
    matrices = cosine_matrices(6, seed)
    image_ids = None if ids is None else torch.tensor(ids)
    for negatives in ("hardest", "sum"):
        for margin in (0.3, 1.5):  # a few of the negatives are near enough, then most
            loss = StructurePreservingLoss(0.3, negatives, intra_negatives=kind, intra_margin=margin, intra_weight=0.7)
            inter, intra = loss(*matrices, image_ids)
            assert inter.item() == pytest.approx(triplet_by_hand(matrices[0], 0.3, negatives, ids=ids), rel=1e-12)
            expected = 0.7 * within_by_hand(*matrices, margin, kind, ids)
            assert intra.item() == pytest.approx(expected, rel=1e-12)
            assert expected > 0 or margin < 1.5


@pytest.mark.parametrize("kind", ["own", "partner", "none"])
@pytest.mark.parametrize("n", [1, 3])
def test_where_there_are_no_negatives_there_is_no_loss(kind: str, n: int) -> None:
    matrices = [matrix.requires_grad_() for matrix in cosine_matrices(n, 0)]
    ids = torch.full((n,), 4)  # all of one image
    inter, intra = StructurePreservingLoss(9.0, intra_negatives=kind, intra_margin=9.0)(*matrices, ids)
    assert inter.item() == intra.item() == 0
    (inter + intra).backward()
    assert all(matrix.grad is None or not matrix.grad.any() for matrix in matrices)


@pytest.mark.parametrize("kind", ["own", "partner"])
def test_structure_pushes_the_hardest_apart(kind: str) -> None:
    """The scores choose a partner, and have no gradient of the term within the modalities."""
    scores, images, captions = (matrix.requires_grad_() for matrix in cosine_matrices(4, 1))
    loss = StructurePreservingLoss(intra_negatives=kind, intra_margin=2.5, intra_weight=0.7)
    loss(scores, images, captions)[1].backward()
    assert scores.grad is None
    for own, other in ((images, scores), (captions, scores.T)):
        ranked = (own if kind == "own" else other).detach().clone().fill_diagonal_(-9)
        expected = 0.7 * torch.nn.functional.one_hot(ranked.argmax(1), 4).double()
        torch.testing.assert_close(own.grad, expected)


@pytest.mark.parametrize("kind", [InfoNceLoss, SigmoidLoss])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_scales_to_start_from_are_positive(kind: Callable[[float], MatchingLoss], scale: float) -> None:
    with pytest.raises(ValueError, match=f"^scale must be a positive number, got {scale}$"):
        kind(scale)
