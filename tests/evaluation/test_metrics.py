"""Retrieval figures against a brute force, ties, folds, and encoding and scoring block by block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crossret.data.memory import InMemoryCorpus
from crossret.data.vocabulary import Vocabulary
from crossret.evaluation import (
    encode_dataset,
    five_fold,
    metrics_from_ranks,
    retrieval_metrics,
    retrieval_ranks,
    score_matrix,
)
from crossret.models import Scan, ScanConfig


def ranks_by_sorting(scores: NDArray[np.floating], image_of_caption: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Both ranks from sorted lists, one query at a time."""
    n_images, n_captions = scores.shape
    i2t = []
    for image in range(n_images):
        ranking = sorted(range(n_captions), key=lambda caption: (-scores[image, caption], caption))
        i2t.append(min(ranking.index(caption) for caption in range(n_captions) if image_of_caption[caption] == image))
    t2i = []
    for caption in range(n_captions):
        ranking = sorted(range(n_images), key=lambda image: (-scores[image, caption], image))
        t2i.append(ranking.index(image_of_caption[caption]))
    return i2t, t2i


@st.composite
def scored(draw: st.DrawFn, values: st.SearchStrategy[float]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and owners; every image has a caption, captions are in any order."""
    n_images = draw(st.integers(1, 7))
    extra = draw(st.lists(st.integers(0, n_images - 1), max_size=12))
    owner = np.array(draw(st.permutations([*range(n_images), *extra])), dtype=np.int64)
    count = n_images * len(owner)
    scores = np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=np.float32)
    return scores.reshape(n_images, len(owner)), owner


few_values = st.sampled_from([0.0, -0.0, 1.0, 2.0, float("inf"), float("-inf")])
any_values = st.floats(-1, 1, width=32)


@given(scored(few_values) | scored(any_values), st.sampled_from([1, 10, 2**24]))
@settings(max_examples=150)
def test_ranks_are_places_in_the_sorted_list(case: tuple[NDArray[np.float32], NDArray[np.int64]], block: int) -> None:
    scores, owner = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossret.evaluation.metrics._RANK_BLOCK", block)
        i2t, t2i = retrieval_ranks(scores, owner)
    assert (i2t.tolist(), t2i.tolist()) == ranks_by_sorting(scores, owner)


@given(scored(any_values))
@settings(max_examples=30)
def test_figures_follow_from_ranks(case: tuple[NDArray[np.float32], NDArray[np.int64]]) -> None:
    scores, owner = case
    metrics = retrieval_metrics(scores, owner)
    for part, ranks in zip((metrics.i2t, metrics.t2i), ranks_by_sorting(scores, owner), strict=True):
        for k, recall in ((1, part.r1), (5, part.r5), (10, part.r10)):
            assert recall == pytest.approx(100 * sum(rank < k for rank in ranks) / len(ranks))
        assert part.meanr == pytest.approx(sum(ranks) / len(ranks) + 1)
    recalls = [metrics.i2t.r1, metrics.i2t.r5, metrics.i2t.r10, metrics.t2i.r1, metrics.t2i.r5, metrics.t2i.r10]
    assert metrics.rsum == pytest.approx(sum(recalls))
    assert metrics.mr == pytest.approx(sum(recalls) / 6)
    assert metrics_from_ranks(*retrieval_ranks(scores, owner)) == metrics


def test_median_rank_is_floored_and_counted_from_one() -> None:
    metrics = metrics_from_ranks(np.array([0, 1, 4, 20]), np.array([0, 0, 7]))
    assert (metrics.i2t.medr, metrics.i2t.meanr) == (3.0, 7.25)  # median of 0, 1, 4, 20 is 2.5
    assert (metrics.i2t.r1, metrics.i2t.r5, metrics.i2t.r10) == (25.0, 75.0, 75.0)
    assert (metrics.t2i.medr, metrics.t2i.r10) == (1.0, 100.0)


def test_five_fold_is_the_mean_over_blocks_of_images() -> None:
    random = np.random.default_rng(0)
    owner = random.permutation(np.repeat(np.arange(20), 3))
    scores = random.standard_normal((20, 60)).astype(np.float32)
    scores[owner, np.arange(60)] += 1
    parts = []
    for fold in range(5):
        captions = [caption for caption in range(60) if owner[caption] // 4 == fold]
        block = scores[4 * fold : 4 * fold + 4][:, captions]
        parts.append(metrics_from_ranks(*(np.array(r) for r in ranks_by_sorting(block, owner[captions] - 4 * fold))))
    metrics = five_fold(scores, owner)
    for name, value in metrics.as_dict().items():
        assert value == pytest.approx(np.mean([part.as_dict()[name] for part in parts])), name


@pytest.mark.parametrize(
    ("scores", "owner", "error", "message"),
    [
        (np.zeros((2, 2), np.int64), [0, 1], TypeError, "scores must be floating point, got int64"),
        (np.zeros((2, 0), np.float32), [], ValueError, "none of them 0"),
        (np.zeros((2, 3), np.float32), [0, 1], ValueError, r"image_of_caption must have shape \(3,\)"),
        (np.zeros((2, 2), np.float32), [0, 2], ValueError, r"image_of_caption\[1\] is 2, not in 0\.\.1"),
        (np.zeros((3, 3), np.float32), [0, 2, 2], ValueError, "image 1 has no caption"),
        (np.array([[1, 0], [0, np.nan]], np.float32), [0, 1], ValueError, "scores: row 1 has a NaN"),
    ],
)
def test_scores_that_cannot_be_ranked_are_errors(
    scores: NDArray[np.floating], owner: list[int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        retrieval_metrics(scores, np.array(owner, dtype=np.int64))


def test_ranks_and_folds_that_make_no_sense_are_errors() -> None:
    with pytest.raises(TypeError, match="t2i ranks must be integers"):
        metrics_from_ranks(np.array([0]), np.array([0.5]))
    with pytest.raises(ValueError, match="6 images cannot be divided into 5"):
        five_fold(np.zeros((6, 6), np.float32), np.arange(6))


def small_corpus() -> InMemoryCorpus:
    captions = ["a dog .", "a cat on a mat", "dog", "the mat", "a a a a a a", "cat ."]
    features = np.random.default_rng(0).standard_normal((3, 4, 7)).astype(np.float32)
    return InMemoryCorpus(features, captions, vocabulary=Vocabulary.build(captions, min_count=1))


@pytest.mark.parametrize(("batch_size", "block"), [(1, 1), (2, 4), (100, 100)])
def test_every_pair_is_scored_whatever_the_blocks(batch_size: int, block: int) -> None:
    corpus = small_corpus()
    torch.manual_seed(0)
    model = Scan(ScanConfig(image_dim=7, vocabulary_size=len(corpus.vocabulary), embed_dim=6, word_dim=5))
    model.train()
    seen: list[tuple[int, int]] = []
    images, captions = encode_dataset(
        model, corpus, batch_size=batch_size, progress=lambda done, total: seen.append((done, total))
    )
    assert (len(images), len(captions)) == (3, 6)
    assert seen[-1] == (9, 9)
    assert seen == sorted(seen)
    scores = score_matrix(model, images, captions, block=block)
    assert model.training
    assert scores.dtype == np.float32
    for image in range(3):
        features = torch.from_numpy(corpus.data.features[[image]])
        for caption, text in enumerate(corpus.data.captions):
            tokens = torch.tensor([corpus.vocabulary.encode(text)])
            with torch.no_grad():
                one = model.score(
                    model.encode_images(features), model.encode_captions(tokens, torch.tensor([tokens.shape[1]]))
                )
            assert scores[image, caption] == pytest.approx(one.item(), abs=1e-5)


def test_data_that_the_model_cannot_use_are_refused() -> None:
    sizes = {"image_dim": 7, "vocabulary_size": 9, "embed_dim": 3, "word_dim": 2}
    for fields, message in (
        ({"region_count": 5}, "corpus: images have 4 regions, fewer than the model's region_count 5"),
        ({"image_dim": 8}, "corpus: regions have 7 features, but the model's image_dim is 8"),
    ):
        with pytest.raises(ValueError, match=message):
            encode_dataset(Scan(ScanConfig(**{**sizes, **fields})), small_corpus())
