"""compat.laps against LAPS's published formulas, pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from crossret.compat.laps import mask_xattn_one_text, matching_max_mean, xattn_score
from tests.compat import published
from tests.compat.published import batch
from tests.compat.test_scan import check

LENGTHS = (4, 1, 6)


def clipped(s: Tensor, scan: bool) -> Tensor:
    return torch.where(s >= 0, s, 0.1 * s) if scan else s


def max_mean(image: Tensor, caption: Tensor, i2t: bool, scan: bool) -> Tensor:
    """Score of one image and one caption without padding."""
    s = clipped(F.normalize(caption, dim=-1) @ F.normalize(image, dim=-1).T, scan)
    of_words, of_patches = s.amax(1).mean(), s.amax(0).mean()
    return (of_words + of_patches) / 2 if i2t else of_words


def scan_score(image: Tensor, caption: Tensor, direction: str, smooth: float) -> Tensor:
    opt = published.options(direction, "clipped_l2norm", "Mean")
    opt.lambda_softmax = smooth
    return published.score(F.normalize(image, dim=-1), F.normalize(caption, dim=-1), opt)


def scan_all(image: Tensor, caption: Tensor) -> Tensor:
    return (scan_score(image, caption, "t2i", 9.0) + scan_score(image, caption, "i2t", 4.0)) / 2


def of_pairs(score: Callable[[Tensor, Tensor], Tensor], images: Tensor, captions: Tensor) -> Tensor:
    """(n_image, n_caption)."""
    columns = [torch.stack([score(v, e[:n]) for v in images]) for e, n in zip(captions, LENGTHS, strict=True)]
    return torch.stack(columns, 1)


SCORES: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "scan_t2i": ({"xattn_type": "scan_t2i"}, lambda v, e: scan_score(v, e, "t2i", 9.0)),
    "scan_i2t": ({"xattn_type": "scan_i2t"}, lambda v, e: scan_score(v, e, "i2t", 4.0)),
    "scan_all": ({"xattn_type": "scan_all"}, scan_all),
    "max_mean": ({}, lambda v, e: max_mean(v, e, True, True)),
    "max_mean of words": ({"i2t": False}, lambda v, e: max_mean(v, e, False, True)),
    "max_mean, no clip": ({"scan": False}, lambda v, e: max_mean(v, e, True, False)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_scores_and_gradients_are_those_of_the_formulas(name: str, dtype: torch.dtype) -> None:
    options, score = SCORES[name]
    check(
        lambda images, captions: xattn_score(images, captions, list(LENGTHS), **options),
        lambda images, captions: of_pairs(score, images, captions),
        dtype,
        *batch(lengths=LENGTHS),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("i2t", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_images_with_one_caption(masked: bool, i2t: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    patches, words = (torch.randn(3, n, 5, generator=generator, dtype=torch.float64) for n in (6, 4))
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1]]) if masked else None

    def theirs(patches: Tensor, words: Tensor) -> Tensor:
        made = []
        for k in range(3):
            kept = patches[k] if mask is None else patches[k][mask[k] > 0]
            s = clipped(words[k] @ kept.T, True)
            made.append(s.amax(1).mean() + (s.amax(0).mean() if i2t else 0))
        return torch.stack(made)[:, None]

    check(lambda v, e: mask_xattn_one_text(v, e, mask, i2t), theirs, dtype, patches, words)


def test_mistakes_are_named() -> None:
    images, captions = batch(lengths=LENGTHS)
    with pytest.raises(ValueError, match="bi_norm=True has no kernel"):
        matching_max_mean(images, captions, LENGTHS, bi_norm=True)
    with pytest.raises(ValueError, match="xattn_type must be one of max_mean, scan_t2i, scan_i2t, scan_all, not 'max'"):
        xattn_score(images, captions, LENGTHS, "max")
    with pytest.raises(ValueError, match=r"region_mask\[1\] has no True"):
        mask_xattn_one_text(images, captions[:, :1], torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]))
