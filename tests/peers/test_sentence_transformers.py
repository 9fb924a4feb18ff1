"""sentence-transformers itself on crossret: losses by `similarity_fct`, patched functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.compat import sentence_transformers as compat
from tests.compat.oracles import chosen, embeddings, some
from tests.peers.training import DOCUMENTS, NEGATIVES, QUERIES, check_same, gradients

WHY = "sentence-transformers 6 is not installed: `make peers` installs and runs it"
package = pytest.importorskip("sentence_transformers.multi_vector_encoder", reason=WHY, exc_type=ImportError)
losses = pytest.importorskip("sentence_transformers.multi_vector_encoder.losses", reason=WHY, exc_type=ImportError)
scoring = pytest.importorskip("sentence_transformers.multi_vector_encoder.scoring", reason=WHY, exc_type=ImportError)
util = pytest.importorskip("sentence_transformers.util", reason=WHY, exc_type=ImportError)

MARGINS = torch.tensor([0.5, 0.2, 0.7, 0.1])
LOSSES: dict[str, tuple[str, torch.Tensor | None]] = {
    "MultiVectorMultipleNegativesRankingLoss": ("colbert_scores", None),
    "CachedMultiVectorMultipleNegativesRankingLoss": ("colbert_scores", None),
    "MultiVectorMarginMSELoss": ("colbert_scores_pairwise", MARGINS),
    "MultiVectorDistillKLDivLoss": ("colbert_kd_scores", torch.stack([MARGINS, -MARGINS], 1)),
}


@pytest.fixture
def model(tiny: Path) -> Any:
    return package.MultiVectorEncoder(str(tiny), device="cpu")


def features(model: Any) -> list[dict[str, torch.Tensor]]:
    texts = (QUERIES, "query"), (DOCUMENTS, "document"), (NEGATIVES, "document")
    return [model.preprocess(own, task=task) for own, task in texts]


@pytest.mark.parametrize("name", LOSSES)
def test_losses(model: Any, name: str) -> None:
    function, labels = LOSSES[name]

    def step(own: Any) -> tuple[float, torch.Tensor]:
        loss = getattr(losses, name)(model, similarity_fct=getattr(own, function))
        torch.manual_seed(0)
        return gradients(model, lambda: loss(features(model), labels))

    check_same(step(compat), step(scoring))


def check(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """The same to the rounding of float32, which theirs have of float64, too, with a mask as their dtype."""
    torch.testing.assert_close(ours.float(), theirs.float())
    assert theirs.dtype in (ours.dtype, torch.float32)


def test_scores_beside_theirs() -> None:
    queries, documents, query_mask, mask = embeddings(3, 5), embeddings(4, 6, seed=1), some(3, 5), some(4, 6, seed=1)
    mask[1] = False
    arrays = [item.numpy() for item in chosen(queries, query_mask)], [item.numpy() for item in documents]
    layouts: list[tuple[Any, ...]] = [
        (queries, documents, query_mask, mask),
        (queries.double(), documents.double().numpy(), query_mask.float(), mask.long()),
        (queries * query_mask[..., None], documents * mask[..., None]),
        (chosen(queries, query_mask), chosen(documents, mask)),
        arrays,
        (queries[0], documents[2], query_mask[0], mask[2]),
        ((queries * 9).to(torch.int8), documents.float()),
        (list(queries), list(documents), query_mask, list(mask)),
        ([], documents),
        (queries, documents[:0]),
    ]
    for layout in layouts:
        for name in ("maxsim", "mean_maxsim"):
            check(getattr(compat, name)(*layout), getattr(util, name)(*layout))
    for layout in layouts[:5]:
        own, others, *masks = layout
        pairs = own, others[:3], *([*masks][:1] + [part[:3] for part in masks[1:]])
        for name in ("maxsim_pairwise", "mean_maxsim_pairwise"):
            check(getattr(compat, name)(*pairs), getattr(util, name)(*pairs))


def test_stacks_beside_theirs() -> None:
    queries, documents, query_mask, mask = embeddings(3, 5), embeddings(3, 2, 6, seed=1), some(3, 5), some(3, 2, 6)
    mask[1, 0] = False
    layouts: list[tuple[Any, ...]] = [
        (queries, documents, query_mask, mask),
        (queries, documents * mask[..., None]),
        (list(queries), list(documents)),
    ]
    for layout in layouts:
        for name in ("colbert_scores", "colbert_kd_scores"):
            for mean in (False, True):
                ours, theirs = (getattr(own, name)(*layout, length_normalize=mean) for own in (compat, scoring))
                torch.testing.assert_close(ours, theirs)


def test_patch(model: Any) -> None:
    modules = util, util.similarity, package, scoring, scoring.colbert, losses.margin_mse
    before = [
        (module, name, getattr(module, name)) for module in modules for name in compat.__all__ if hasattr(module, name)
    ]
    assert len(before) > 12
    queries, documents = ([torch.as_tensor(item) for item in model.encode(own)] for own in (QUERIES, DOCUMENTS))
    theirs = model.similarity(queries, documents)
    try:
        for _ in range(2):
            compat.patch()
            assert all(getattr(module, name) is getattr(compat, name) for module, name, _ in before)
            assert losses.MultiVectorMultipleNegativesRankingLoss(model).similarity_fct is compat.colbert_scores
    finally:
        compat.unpatch()
    assert all(getattr(module, name) is own for module, name, own in before)
    torch.testing.assert_close(compat.maxsim(queries, documents), theirs)
