"""Images with different numbers of regions: what lies behind them is read by nothing that reads a split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crossret.data import InMemoryCorpus, PrecomputedCorpus, PrecomputedDataset, Vocabulary
from crossret.data.clustered import cluster_directory
from crossret.data.clustering import centres_of, cluster_regions
from crossret.data.perturbing import perturb_data
from crossret.evaluation import encode_dataset, score_matrix
from crossret.explain import photographs
from crossret.models.protocol import evaluating
from crossret.search.encoding import encode_split
from crossret.search.items import EncodedImages, encode_texts
from crossret.search.retrieval import retrieve
from crossret.training import TrainingConfig, train
from tests.models.batch import make

LENGTHS = [3, 6, 1, 4]
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal((4, 6, 5)).astype(np.float32)
BOXES = np.sort(RNG.random((4, 6, 2, 2)), axis=2).reshape(4, 6, 4).astype(np.float32) * 30
CAPTIONS = [f"a {colour} {thing}" for thing in ("dog", "cat") for colour in ("red", "green", "blue", "grey", "white")]
CAPTIONS += [f"the {caption}" for caption in CAPTIONS]
VOCABULARY = Vocabulary.build(CAPTIONS, 1)
CONFIGS = {
    "scan": {"cross_attention": "ensemble"}, "sman": {"spatial_order": True}, "han": {"clusters": 2}, "mhsan": {},
    "oan": {}, "vse": {}, "laps": {},
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A split "test" whose padding would spoil all that read it."""
    directory = tmp_path / "data"
    directory.mkdir()
    padding = np.arange(6) >= np.array(LENGTHS)[:, None]
    for name, array in (("ims", FEATURES), ("boxes", BOXES)):
        spoilt = array.copy()
        spoilt[padding] = np.nan
        np.save(directory / f"test_{name}.npy", spoilt)
    np.save(directory / "test_lengths.npy", np.array(LENGTHS, np.uint8))
    (directory / "test_caps.txt").write_text("".join(f"{caption}\n" for caption in CAPTIONS))
    (directory / "test_ids.txt").write_text("11\n12\n13\n14\n")
    return directory


def corpus_of(directory: Path) -> PrecomputedCorpus:
    return PrecomputedCorpus(PrecomputedDataset(directory, "test"), VOCABULARY)


def model_of(kind: str) -> Any:
    """Its biases are random, too: without them a mean that counts padding has the same direction."""
    return make(kind, image_dim=5, vocabulary_size=len(VOCABULARY), **CONFIGS[kind])


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_image_has_the_scores_and_the_results_that_it_has_alone(data: Path, kind: str, tmp_path: Path) -> None:
    model, corpus = model_of(kind), corpus_of(data)
    scores = score_matrix(model, *encode_dataset(model, corpus), corpus=corpus)
    for image, length in enumerate(LENGTHS):
        if length >= (model.config.needed_regions()[1]):
            own = np.s_[image : image + 1, :length]
            alone = InMemoryCorpus(FEATURES[own], CAPTIONS, vocabulary=VOCABULARY, boxes=BOXES[own])
            expected = score_matrix(model, *encode_dataset(model, alone))
            np.testing.assert_allclose(scores[image], expected[0], rtol=1e-4, atol=1e-5)
    with evaluating(model):
        texts = encode_texts(model, CAPTIONS, corpus.vocabulary)
    values, _ = retrieve(model, texts, EncodedImages(model, corpus), k=4, query="caption")
    np.testing.assert_allclose(values, -np.sort(-scores.T), rtol=1e-4, atol=1e-5)
    encode_split(model, corpus, tmp_path / "encoded")
    assert len(np.load(tmp_path / "encoded/images/values.npy")) < 4 * 7
    assert np.isfinite(np.load(tmp_path / "encoded/images/values.npy")).all()


@pytest.mark.parametrize("chunk", [None, 3])
def test_training_is_that_of_data_with_more_padding(data: Path, tmp_path: Path, chunk: int | None) -> None:
    config = TrainingConfig(epochs=1, decay_epochs=(), batch_size=7, encode_chunk=chunk)
    wider = np.pad(FEATURES, ((0, 0), (0, 3), (0, 0)))
    memory = InMemoryCorpus(wider, CAPTIONS, vocabulary=VOCABULARY, lengths=torch.tensor(LENGTHS))
    trained = []
    for name, corpus in (("stored", corpus_of(data)), ("memory", memory)):
        model = model_of("scan")
        train(model, corpus, corpus, config, tmp_path / name, progress=False)
        trained.append(score_matrix(model, *encode_dataset(model, corpus)))
    np.testing.assert_allclose(*trained, rtol=1e-4, atol=1e-5)


def test_other_lengths_are_other_data_and_other_padding_is_not(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossret.data.corpus._SAMPLED", 2)  # the first and the last
    before = corpus_of(data).fingerprint()
    np.save(data / "test_ims.npy", FEATURES)
    np.save(data / "test_boxes.npy", BOXES)
    assert corpus_of(data).fingerprint() == before
    np.save(data / "test_lengths.npy", np.array([3, 5, 1, 4]))
    assert corpus_of(data).fingerprint() != before


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 6, 0, 4], "item 2 has length 0, expected 1 to 6"),
        ([3, 7, 1, 4], "item 1 has length 7, expected 1 to 6"),
        ([3, 6, 1], r"test_ims.npy has 4 items, so expected shape \(4,\)"),
        ([3.0, 6.0, 1.0, 4.0], "expected dtype int8"),
    ],
)
def test_lengths_that_do_not_fit_are_named(data: Path, lengths: list[float], message: str) -> None:
    np.save(data / "test_lengths.npy", np.array(lengths))
    with pytest.raises(ValueError, match=rf"test_lengths\.npy: {message}"):
        corpus_of(data)
    with pytest.raises(ValueError, match=r"corpus: lengths"):
        InMemoryCorpus(FEATURES, CAPTIONS, lengths=lengths)


def test_a_box_of_the_regions_is_looked_at(data: Path) -> None:
    boxes = np.load(data / "test_boxes.npy")
    boxes[0, 2] = np.nan
    np.save(data / "test_boxes.npy", boxes)
    with pytest.raises(ValueError, match="row 0: the box of region 2 is not finite"):
        corpus_of(data)


def test_data_made_of_others_have_their_regions_and_names(data: Path, tmp_path: Path) -> None:
    perturb_data(data, tmp_path / "perturbed", split="test")
    perturbed = PrecomputedDataset(tmp_path / "perturbed", "test")
    assert perturbed.lengths.tolist() == LENGTHS
    assert perturbed.ids == ["11", "12", "13", "14"]
    assert cluster_directory(data, tmp_path / "clustered", clusters=3) == {"test": 4}
    clustered = PrecomputedDataset(tmp_path / "clustered", "test")
    assert clustered.lengths is None
    assert clustered.ids == perturbed.ids
    regions = torch.from_numpy(FEATURES)
    found, counts = centres_of(regions, cluster_regions(regions, torch.tensor(LENGTHS), clusters=3), 3)
    assert counts.tolist() == [3, 3, 1, 3]
    np.testing.assert_allclose(clustered.features[1], found[1], rtol=1e-5)
    np.testing.assert_array_equal(clustered.features[2], FEATURES[2, [0, 0, 0]])


@pytest.mark.parametrize("kind", ["scan", "han"])
def test_pictures_show_the_boxes_of_the_regions_alone(
    data: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in range(11, 15):
        Image.new("RGB", (40, 40)).save(tmp_path / f"{name}.png")
    drawn = []

    def noted(pixels: Any, boxes: Any, title: str, panels: list[Any], *more: Any) -> None:
        drawn.append((boxes, panels))

    monkeypatch.setattr(photographs, "attention_sheet", noted)
    monkeypatch.setattr(photographs, "write_sheet", lambda path, sheet: None)
    photographs.draw_photographs(tmp_path / "drawn", model_of(kind), corpus_of(data), tmp_path, [0, 5, 10])
    each = len(drawn) // 3
    for number, (boxes, panels) in enumerate(drawn):
        image = number // each
        np.testing.assert_array_equal(boxes, BOXES[image, : LENGTHS[image]])
        assert all(len(panel.weights) == LENGTHS[image] for panel in panels)
