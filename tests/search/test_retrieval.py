"""Searching with a model: the same as scoring everything and sorting, for every kind of scorer, without holding it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation import encode_dataset
from crossret.hyperparameters.scan import CrossAttention
from crossret.models import Scan, ScanConfig
from crossret.models.protocol import evaluating
from crossret.search.items import encode_texts
from crossret.search.retrieval import ranked, retrieve
from crossret.search.sources import SplitSource


@pytest.fixture
def corpus(tmp_path: Path) -> PrecomputedCorpus:
    """150 images, so that they are encoded in several runs, and five captions of each."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "test_ims.npy", rng.standard_normal((150, 3, 6), np.float32))
    lines = [f"picture {i % 7} {'abcde'[j]} {'x ' * (i % 4)}\n" for i in range(150) for j in range(5)]
    (tmp_path / "test_caps.txt").write_text("".join(lines))
    data = PrecomputedDataset(tmp_path, "test")
    return PrecomputedCorpus(data, Vocabulary.build(data.captions))


def model_of(corpus: PrecomputedCorpus, cross_attention: CrossAttention) -> Scan:
    torch.manual_seed(0)
    size = len(corpus.vocabulary)
    return Scan(ScanConfig(image_dim=6, vocabulary_size=size, embed_dim=8, word_dim=4, cross_attention=cross_attention))


@pytest.mark.parametrize("cross_attention", ["t2i", "ensemble", "sum_max_i2t"])
@pytest.mark.parametrize("k", [5, 2000])
def test_it_is_the_begin_of_all_scores_sorted(
    corpus: PrecomputedCorpus, cross_attention: CrossAttention, k: int
) -> None:
    model = model_of(corpus, cross_attention).train()
    images, captions = encode_dataset(model, corpus)
    with torch.inference_mode():
        scores = model.score(images, captions)
    seen: list[tuple[int, int]] = []
    # Equal captions have equal scores, so values are compared, and indices by the scores that they have.
    wanted = torch.tensor([7, 149])
    source = SplitSource(model, corpus)
    with evaluating(model):
        texts = encode_texts(model, corpus.data.captions[5:9], corpus.vocabulary)
    found = [
        (*retrieve(model, texts, source.side("images"), k=k, query="caption"), scores[:, 5:9].T),
        (
            *retrieve(
                model,
                source.picked(wanted.tolist()),
                source.side("captions"),
                k=k,
                query="image",
                progress=lambda *counts: seen.append(counts),
            ),
            scores[wanted],
        ),
    ]
    for values, indices, expected in found:
        torch.testing.assert_close(values, expected.sort(dim=1, descending=True).values[:, :k], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(values, expected.gather(1, indices), rtol=1e-5, atol=1e-6)
        assert all(len(set(row)) == min(k, expected.size(1)) for row in indices.tolist())
        assert not values.requires_grad and not values.is_inference()
    assert seen[0] == (128, 750)
    assert seen[-1] == (750, 750)
    assert model.training


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_json_cannot_hold_are_named(wrong: float) -> None:
    values, indices = torch.tensor([[1.0, 0.5], [2.0, wrong]]), torch.tensor([[3, 4], [5, 6]])
    with pytest.raises(ValueError, match=rf"query 1 has the score {wrong} with item 6: of 1 and 6"):
        ranked(values, indices, [{}, {}], lambda item: {}, lambda query, item: f"of {query} and {item}")
