"""PyLate itself on crossret: losses by `score_metric`, patched functions, and scores beside its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.compat import pylate as compat
from tests.compat.oracles import embeddings, some
from tests.peers.training import DOCUMENTS, NEGATIVES, QUERIES, check_same, gradients

WHY = "PyLate is not installed: `make peers` installs and runs it"
models = pytest.importorskip("pylate.models", reason=WHY, exc_type=ImportError)
losses = pytest.importorskip("pylate.losses", reason=WHY, exc_type=ImportError)
scores = pytest.importorskip("pylate.scores", reason=WHY, exc_type=ImportError)
rank = pytest.importorskip("pylate.rank", reason=WHY, exc_type=ImportError)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return models.ColBERT(str(tiny), device="cpu", embedding_size=16, query_length=10, document_length=16)


def features(model: Any) -> list[dict[str, torch.Tensor]]:
    return [
        model.tokenize(QUERIES, is_query=True),
        *(model.tokenize(texts, is_query=False, pad=True) for texts in (DOCUMENTS, NEGATIVES)),
    ]


@pytest.mark.parametrize("kind", ["Contrastive", "CachedContrastive"])
def test_contrastive(model: Any, kind: str) -> None:
    def step(metric: Any) -> tuple[float, torch.Tensor]:
        loss = getattr(losses, kind)(model, score_metric=metric)
        return gradients(model, lambda: loss(copy.deepcopy(features(model)), None))

    with torch.enable_grad():
        check_same(step(compat.colbert_scores), step(scores.ColBERTScores()))


def test_distillation(model: Any) -> None:
    own = model.tokenize([text for both in zip(DOCUMENTS, NEGATIVES, strict=True) for text in both], is_query=False)
    labels = torch.tensor([[0.9, 0.1], [0.8, 0.3], [0.7, 0.2], [1.0, 0.0]])

    def step(metric: Any) -> tuple[float, torch.Tensor]:
        # Of two documents normalised scores are always 0 and 1, without a gradient.
        loss = losses.Distillation(model, score_metric=metric, normalize_scores=False)
        return gradients(model, lambda: loss(copy.deepcopy([features(model)[0], own]), labels))

    check_same(step(compat.colbert_kd_scores), step(scores.colbert_kd_scores))


def test_scores_beside_pylate() -> None:
    """Of positive similarities, where masked rows cannot win there either."""
    queries, documents, own = embeddings(3, 5).abs(), embeddings(4, 6, seed=1).abs(), embeddings(3, 2, 6).abs()
    mask, of_each, query_mask = some(4, 6), some(3, 2, 6), some(3, 5)
    for ours, theirs in (
        (compat.colbert_scores, scores.colbert_scores),
        (compat.colbert_kd_scores, scores.colbert_kd_scores),
    ):
        given = (documents, query_mask, mask) if ours is compat.colbert_scores else (own, query_mask, of_each)
        torch.testing.assert_close(ours(queries, *given), theirs(queries, *given))
        listed = given[0].numpy(), query_mask.numpy(), given[2].float().numpy()
        torch.testing.assert_close(ours(queries.numpy(), *listed), theirs(queries.numpy(), *listed))
    pairs = list(queries), [item[: index + 2] for index, item in enumerate(documents[:3])]
    torch.testing.assert_close(compat.colbert_scores_pairwise(*pairs), scores.colbert_scores_pairwise(*pairs))
    stacked, groups = own.repeat(2, 1, 1, 1), of_each.repeat(2, 1, 1)
    expected = scores.ColBERTScores()(queries, stacked, query_mask, groups)
    torch.testing.assert_close(compat.colbert_scores(queries, stacked, query_mask, groups), expected)


def test_patch() -> None:
    modules = scores, scores.colbert, losses.distillation, rank.rank
    names = "colbert_scores", "colbert_kd_scores", "colbert_scores_pairwise"
    before = [(module, name, getattr(module, name)) for module in modules for name in names if hasattr(module, name)]
    assert len(before) == 8
    default = losses.Distillation.__init__.__defaults__
    try:
        for _ in range(2):
            compat.patch()
            for module, name, _own in before:
                assert getattr(module, name) is getattr(compat, name)
            assert compat.colbert_kd_scores in losses.Distillation.__init__.__defaults__
            query, document = embeddings(1, 3).abs(), -embeddings(1, 4, seed=1).abs()
            mask = torch.tensor([[1.0, 1, 0, 0]])
            stacked = scores.ColBERTScores()(query, document[:, None], documents_mask=mask[:, None])
            torch.testing.assert_close(stacked, compat.colbert_scores(query, document[:, :2]))
            assert stacked.item() < 0
    finally:
        compat.unpatch()
    assert all(getattr(module, name) is own for module, name, own in before)
    assert losses.Distillation.__init__.__defaults__ == default


def test_rerank(model: Any) -> None:
    """A document's score does not depend on what pads the others."""
    queries, documents = (model.encode(texts, is_query=own) for texts, own in ((QUERIES, True), (DOCUMENTS, False)))
    ids = [list("abcd")] * len(queries)
    theirs = rank.rerank(ids, queries, [documents] * len(queries))
    compat.patch()
    try:
        ours = rank.rerank(ids, queries, [documents] * len(queries))
    finally:
        compat.unpatch()
    for own, their in zip(ours, theirs, strict=True):
        assert [result["id"] for result in own] == [result["id"] for result in their]
        found = torch.tensor([result["score"] for result in own])
        torch.testing.assert_close(found, torch.tensor([result["score"] for result in their]))


def test_the_example_trains_and_reranks(tiny: Path, tmp_path: Path) -> None:
    example = pytest.importorskip("examples.pylate_training", reason=WHY, exc_type=ImportError)
    try:
        found = example.main(str(tiny), str(tmp_path), steps=2)
    finally:
        compat.unpatch()
    assert [len(best) for best in found] == [8] * 4
