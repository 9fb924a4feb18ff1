"""VSE++: vectors and scores of single pairs from the paper's formulas, in float64; order in chunks; loss by loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.models import vse
from crossret.models.vse import order_similarities
from tests.encoders.test_regions_and_words import gru_by_hand
from tests.models.batch import FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, double, encode, items, make

pytestmark = pytest.mark.usefixtures("one_thread")
RANDOM = torch.Generator().manual_seed(2)
IMAGES, CAPTIONS = (torch.randn(n, 8, generator=RANDOM, dtype=torch.float64) for n in (5, 4))


def vectors_by_hand(model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Of the batch W φ(i) + b, where φ is the mean of the regions, and the GRU's last state, of length 1."""
    of_images, of_captions = [], []
    for regions in items(FEATURES, REGION_LENGTHS):
        embedded = model.image.fc.weight @ (sum(regions) / len(regions)) + model.image.fc.bias
        of_images.append(embedded / embedded.norm() if model.config.image_norm else embedded)
    for tokens, length in zip(TOKENS, LENGTHS.tolist(), strict=True):
        words = model.text.embed.weight[tokens[:length]]
        for layer in range(model.text.rnn.num_layers):
            words = torch.stack(gru_by_hand(model.text.rnn, words, f"_l{layer}"))
        of_captions.append(words[-1] / words[-1].norm())
    if model.config.use_abs:
        return [one.abs() for one in of_images], [one.abs() for one in of_captions]
    return of_images, of_captions


def order_by_hand(image: Tensor, caption: Tensor) -> float:
    """By how much a caption is above its image, entry by entry: −‖max(0, c − i)‖."""
    above = [max(0.0, c - i) for i, c in zip(image.tolist(), caption.tolist(), strict=True)]
    return -(sum(x * x for x in above) ** 0.5)


@pytest.mark.parametrize("measure", ["cosine", "order"])
@pytest.mark.parametrize("fields", [{}, {"image_norm": False}, {"use_abs": True}, {"text_layers": 2}], ids=str)
def test_scores_are_the_paper_s(fields: dict[str, Any], measure: str) -> None:
    model = double(make("vse", measure=measure, **fields))
    with torch.no_grad():
        images, captions = encode(model)
        scores = model.score(images, captions)
        of_images, of_captions = vectors_by_hand(model)
        for i, image in enumerate(of_images):
            torch.testing.assert_close(images.sequences[i, 0], image, rtol=1e-12, atol=1e-14)
            for c, caption in enumerate(of_captions):
                expected = order_by_hand(image, caption) if measure == "order" else float(image @ caption)
                assert scores[i, c].item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("workspace", "sizes"), [(1, [1] * 5), (2 * 4 * 8 * 8, [2, 2, 1]), (2**25, [5])])
def test_order_in_chunks_is_that_of_pairs(monkeypatch: pytest.MonkeyPatch, workspace: int, sizes: list[int]) -> None:
    """One image at a time, two beside four captions of eight doubles, and all; gradients too."""
    violation, seen = vse._violation, []

    def remember(images: Tensor, captions: Tensor) -> Tensor:
        seen.append(len(images))
        return violation(images, captions)

    monkeypatch.setattr(vse, "WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(vse, "_violation", remember)
    sides = [side.clone().requires_grad_() for side in (IMAGES, CAPTIONS)]
    every = torch.cartesian_prod(torch.arange(5), torch.arange(4))
    found = order_similarities(*sides, None)
    assert seen == sizes
    expected = order_similarities(*sides, every).view(5, 4)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gradients = [torch.autograd.grad((scores * upstream).sum(), sides) for scores in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_order_is_zero_where_a_caption_is_below_its_image_with_gradient_zero() -> None:
    images, captions = IMAGES.abs().requires_grad_(), (-CAPTIONS.abs()).requires_grad_()
    scores = order_similarities(images, captions, None)
    assert not scores.any()
    scores.sum().backward()
    assert images.grad is not None and captions.grad is not None
    assert not images.grad.any() and not captions.grad.any()
    assert (order_similarities(-IMAGES.abs(), CAPTIONS.abs(), None) < 0).all()


def test_order_keeps_no_pairs_for_the_backward_pass() -> None:
    """A matrix of 64 × 64 pairs of 512 entries is 8 MB; what is kept is the scores and both sides, of 0.3 MB."""
    images, captions = (torch.randn(64, 512, requires_grad=True) for _ in range(2))
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        order_similarities(images, captions, None)
    assert kept < 2**20
