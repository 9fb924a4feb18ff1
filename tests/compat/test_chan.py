"""compat.chan against CHAN's published formulas, pair by pair."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from torch import Tensor

from crossret.compat.chan import CODINGS, POOLINGS, SimsEncoder
from tests.compat.test_scan import check

OPT = Namespace(alpha=0.3, belta=0.2)
REGIONS, WORDS = (5, 2, 1), (4, 1, 6, 3)


def coded(image: Tensor, caption: Tensor, coding: str) -> Tensor:
    """Similarities of one image's regions, or of one caption's words."""
    s = image @ caption.T
    if coding == "VHACoding":
        return s.amax(0)
    if coding == "THACoding":
        return s.amax(1)
    attended = torch.softmax(s / OPT.alpha, 1) @ caption
    return (image * attended).sum(1) / attended.norm(dim=1)  # the published code adds 1e-8


def pooled(values: Tensor, pooling: str) -> Tensor:
    if pooling == "LSEPooling":
        return torch.logsumexp(values / OPT.belta, 0)
    if pooling == "SoftmaxPooling":
        return (torch.softmax(values / OPT.belta, 0) * values).sum()
    return {"MaxPooling": values.amax(), "MeanPooling": values.mean(), "SumPooling": values.sum()}[pooling]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("coding", CODINGS)
def test_scores_and_gradients_are_those_of_the_formulas(coding: str, pooling: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    captions = torch.randn(4, 6, 4, generator=generator, dtype=torch.float64)
    encoder = SimsEncoder(coding, pooling, opt=OPT)

    def theirs(images: Tensor, captions: Tensor) -> Tensor:
        pairs = [
            (v[:n], e[:m]) for v, n in zip(images, REGIONS, strict=True) for e, m in zip(captions, WORDS, strict=True)
        ]
        return torch.stack([pooled(coded(*pair, coding), pooling) for pair in pairs]).view(3, 4)

    check(lambda v, e: encoder(v, e, torch.tensor(REGIONS), torch.tensor(WORDS)), theirs, dtype, images, captions)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="coding_type must be one of VHACoding, THACoding, VSACoding, not 'TSACoding'"):
        SimsEncoder("TSACoding", "MaxPooling", opt=OPT)
    with pytest.raises(ValueError, match=r"opt\.alpha must be above 0, not 0"):
        SimsEncoder("VSACoding", "MaxPooling", opt=Namespace(alpha=0, belta=0.1))
    with pytest.raises(AttributeError, match="belta"):
        SimsEncoder("VHACoding", "LSEPooling", opt=Namespace())
