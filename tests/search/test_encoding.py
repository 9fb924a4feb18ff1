"""encode_split: what a model makes of a split, packed on the disk, whatever the model, in bounded memory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.data import PrecomputedDataset
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.vocabulary import Vocabulary
from crossret.evaluation import encode_dataset
from crossret.files.features import StoredItems
from crossret.models import MODELS, Scan, ScanConfig
from crossret.models.encoded import Encoded
from crossret.search.encoding import encode_split
from crossret.search.reranking import rerank
from crossret.search.retrieval import retrieve
from crossret.search.score_files import score_encoded
from crossret.search.sharding import cut_corpus
from crossret.search.stored import StoredEncoded
from tests.kernels.subprocesses import run_python

Change = Callable[[Path], object]

WORDS = ["a", "b", "c"]
SIZES = {"image_dim": 6, "vocabulary_size": len(Vocabulary(WORDS)), "embed_dim": 8, "word_dim": 4}
MODELS_OF_TESTS = {
    "scan": {"region_count": 2},
    "sman": {},
    "han": {"heads": 2, "clusters": 2, "matching": "global"},
    "mhsan": {"feature_dim": 8, "attention_dim": 4, "heads": 2},
    "oan": {"heads": 2},
    "vse": {"use_abs": True},
}


@pytest.fixture
def corpus(tmp_path: Path) -> PrecomputedCorpus:
    rng = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    regions = rng.standard_normal((7, 3, 6), np.float32)
    regions[4, 1:] = regions[4, 0]  # fewer different ones: of HAN's centres this image has fewer than others
    np.save(data / "test_ims.npy", regions)
    lines = [" ".join(rng.choice(WORDS, rng.integers(1, 6))) + "\n" for _ in range(35)]
    (data / "test_caps.txt").write_text("".join(lines))
    return PrecomputedCorpus(PrecomputedDataset(data, "test"), Vocabulary(WORDS))


def make_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config_class, model_class = MODELS[kind]
    model: torch.nn.Module = model_class(config_class(**SIZES, **MODELS_OF_TESTS[kind]))  # type: ignore[operator]
    return model


def assert_stored(directory: Path, expected: Encoded) -> None:
    items = StoredItems.of_directory(directory)
    assert items.offsets is not None and items.values.dtype == np.float32
    assert items.offsets.tolist() == [0, *expected.lengths.cumsum(0).tolist()]
    for item, (begin, end) in enumerate(zip(items.offsets, items.offsets[1:], strict=False)):
        rows = expected.sequences[item, : end - begin]
        np.testing.assert_allclose(items.values[begin:end], rows.numpy(), rtol=1e-5, atol=1e-6)
    names = {f"vectors_{name}.npy" for name in expected.vectors}
    assert {path.name for path in directory.iterdir()} == {"values.npy", "offsets.npy", "model.json"} | names
    for name, vector in expected.vectors.items():
        stored = np.load(directory / f"vectors_{name}.npy", allow_pickle=False)
        assert stored.dtype == (np.float32 if vector.is_floating_point() else np.int64)
        np.testing.assert_allclose(stored, vector.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [3, 128])
@pytest.mark.parametrize("kind", MODELS_OF_TESTS)
def test_all_that_is_kept_of_every_item_is_written(
    corpus: PrecomputedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, batch: int
) -> None:
    for module in ("encoding", "items"):
        monkeypatch.setattr(f"crossret.search.{module}.BATCH", batch)
    model = make_model(kind).train()
    done: list[tuple[int, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_split(model, corpus, tmp_path / "out", progress=lambda *counts: done.append(counts))  # type: ignore[arg-type]
    assert model.training
    images, captions = encode_dataset(model, corpus)  # type: ignore[arg-type]
    assert_stored(tmp_path / "out" / "images", images)
    assert_stored(tmp_path / "out" / "captions", captions)
    if kind == "han":  # whose regions are clustered first
        assert done.pop(0) == (7, 7)
    assert done == sorted(done) and done[-1] == (42, 42) and len(done) == -(-7 // batch) + -(-35 // batch)


def test_nothing_is_there_before_all_is(
    corpus: PrecomputedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossret.search.encoding.BATCH", 5)

    def interrupt(done: int, total: int) -> None:
        assert not (tmp_path / "out").exists()
        if done == 12:  # images are written, captions partly
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_split(make_model("scan"), corpus, tmp_path / "out", progress=interrupt)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("kind", ["scan", "mhsan"])
def test_an_image_that_is_not_finite_is_written_with_a_warning(
    corpus: PrecomputedCorpus, tmp_path: Path, kind: str
) -> None:
    regions = np.load(tmp_path / "data" / "test_ims.npy")
    regions[5, 0, 0] = regions[6, 0, 0] = np.nan
    np.save(tmp_path / "data" / "test_ims.npy", regions)
    again = PrecomputedCorpus(PrecomputedDataset(tmp_path / "data", "test"), corpus.vocabulary)
    with pytest.warns(UserWarning) as caught:
        encode_split(make_model(kind), again, tmp_path / "out")  # type: ignore[arg-type]
    why = f"{tmp_path}/data/test_ims.npy: item 5 has features that are not finite in float32"
    assert [str(one.message) for one in caught] == [
        f"{tmp_path}/out/images: the embedding of item 5 is not finite: {why}"
    ]
    items = StoredItems.of_directory(tmp_path / "out" / "images")
    assert [items.is_finite(item) for item in range(7)] == [True] * 5 + [False] * 2


def test_memory_is_bounded_by_batches(tmp_path: Path) -> None:
    """64 MB of features and 32 MB of embeddings, in little more memory than a split of two batches takes."""
    program = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from crossret.data import PrecomputedDataset
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.vocabulary import Vocabulary
from crossret.files.arrays import write_rows
from crossret.models import Scan, ScanConfig
from crossret.search.encoding import encode_split

rng, words = np.random.default_rng(0), Vocabulary(["a"])
model = Scan(ScanConfig(image_dim=1024, vocabulary_size=len(words), embed_dim=512, word_dim=4))
for n in (256, 4000):
    data = Path(sys.argv[1]) / str(n)
    data.mkdir()
    with write_rows(data / "test_ims.npy", (4, 1024), "<f4") as write:
        for _ in range(0, n, 8):
            write(rng.standard_normal((8, 4, 1024), np.float32))
    (data / "test_caps.txt").write_text("a\\n" * n)
    encode_split(model, PrecomputedCorpus(PrecomputedDataset(data, "test"), words), data.with_suffix(".encoded"))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    process = run_python("-c", program, str(tmp_path))
    assert process.returncode == 0, process.stderr
    small, large = map(int, process.stdout.split())
    assert large - small <= 20
    assert StoredItems.of_directory(tmp_path / "4000.encoded" / "images").values.shape == (16_000, 512)


@pytest.mark.parametrize("kind", MODELS_OF_TESTS)
def test_what_is_on_the_disk_is_what_the_model_scores(
    corpus: PrecomputedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Searched and reranked, both ways, in one directory and in shards, in small blocks: the scores of all, sorted."""
    model: Any = make_model(kind).train()
    encode_split(model, corpus, tmp_path / "out")
    cut_corpus(tmp_path / "out" / "images", tmp_path / "shards", shards=3)
    images, captions = encode_dataset(model, corpus)
    with torch.inference_mode():
        scores = model.eval().score(images, captions)
    model.train()
    monkeypatch.setattr("crossret_kernels.inputs.blocks.BLOCK_BYTES", 5000)
    candidates = np.random.default_rng(0).integers(-1, 7, (35, 4))
    for place in (tmp_path / "out", tmp_path / "shards"):
        of_images = StoredEncoded.of_directory(place, "images")
        of_captions = StoredEncoded.of_directory(tmp_path / "out", "captions")
        assert len(of_images) == 7 and len(of_captions) == 35
        searches = [(of_captions, of_images, "caption", scores.T), (of_images, captions, "image", scores)]
        for queries, items, query, wanted in searches:
            values, indices = retrieve(model, queries, items, k=3, query=query)
            torch.testing.assert_close(values, wanted.sort(dim=1, descending=True).values[:, :3], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(values, wanted.gather(1, indices), rtol=1e-4, atol=1e-5)
        values, indices = rerank(model, of_captions, of_images, candidates, k=2)
        for row, (found, chosen) in enumerate(zip(indices.tolist(), candidates.tolist(), strict=True)):
            best = scores[sorted(set(chosen) - {-1}), row].sort(descending=True).values[:2]
            torch.testing.assert_close(values[row, : len(best)], best, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(scores[[i for i in found if i >= 0], row], best, rtol=1e-4, atol=1e-5)
    assert score_encoded(model, of_images, of_captions, tmp_path / "scores.npy") == (7, 35)
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), scores.numpy(), rtol=1e-4, atol=1e-5)
    assert model.training


def test_another_model_s_are_refused(corpus: PrecomputedCorpus, tmp_path: Path) -> None:
    model: Any = make_model("scan")
    encode_split(model, corpus, tmp_path / "out")
    images, captions = (StoredEncoded.of_directory(tmp_path / "out", side) for side in ("images", "captions"))
    other: Any = make_model("scan")
    retrieve(other, captions, images, k=1, query="caption")  # the same weights
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1
    config = ScanConfig(**SIZES, region_count=2, lambda_softmax=5.0)
    for wrong, message in (
        (other, "out/images: encoded by scan of other weights than the model's"),
        (make_model("vse"), "out/images: encoded by scan, but the model is vse"),
        (Scan(config), "out/images: encoded by scan with lambda_softmax 9.0, but the model has 5.0"),
    ):
        with pytest.raises(ValueError, match=message):
            retrieve(wrong, images, captions, k=1, query="image")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out/images: holds encoded images, not captions"):
        retrieve(model, images, captions, k=1, query="caption")


def changed(name: str, value: object) -> Change:
    def change(side: Path) -> None:
        contents = json.loads((side / "model.json").read_text())
        (side / "model.json").write_text(json.dumps({**contents, name: value}))

    return change


def removed(name: str) -> Change:
    return lambda side: (side / name).unlink()


def saved(name: str, array: np.ndarray) -> Change:
    return lambda side: np.save(side / name, array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (removed("model.json"), "images: no model.json"),
        (removed("vectors_heads.npy"), "vectors_heads.npy: no such file"),
        (saved("vectors_heads.npy", np.ones((7, 2, 9), np.float32)), r"shape \(7, 2, 9\), expected \(7, 2, 8\)"),
        (changed("model", "bert"), "model.json: 'model' must be one of scan"),
        (changed("config", {"heads": 2}), "model.json: OanConfig lacks the field"),
        (changed("vectors", {"../../x": [2]}), "model.json: 'vectors' must be an object of shapes by name"),
        (changed("vectors", {}), "images: values.npy or model.json is not what oan makes: encode it again"),
        (saved("values.npy", np.ones((21, 9), np.float32)), "images: values.npy or model.json is not what oan makes"),
    ],
)
def test_a_directory_that_is_no_longer_what_was_encoded_is_named(
    corpus: PrecomputedCorpus, tmp_path: Path, change: Change, message: str
) -> None:
    model: Any = make_model("oan")
    encode_split(model, corpus, tmp_path / "out")
    captions = StoredEncoded.of_directory(tmp_path / "out" / "captions")
    change(tmp_path / "out" / "images")
    with pytest.raises((OSError, ValueError), match=message):
        retrieve(model, captions, StoredEncoded.of_directory(tmp_path / "out" / "images"), k=1, query="caption")


def test_regions_that_a_model_keeps_stay_float16(corpus: PrecomputedCorpus, tmp_path: Path) -> None:
    """SMAN's: the one form of a split's features that is written again."""
    model: Any = make_model("sman")
    corpus.data.features = corpus.data.features.astype(np.float16)
    encode_split(model, corpus, tmp_path / "out")
    cut_corpus(tmp_path / "out" / "images", tmp_path / "shards", shards=2)
    values = StoredItems.of_directory(tmp_path / "out" / "images").values
    assert values.dtype == np.float16 and np.load(tmp_path / "shards" / "00000" / "values.npy").dtype == np.float16
    np.testing.assert_array_equal(values, corpus.data.features.reshape(-1, 6))
    assert np.load(tmp_path / "out" / "captions" / "values.npy").dtype == np.float32
    with torch.inference_mode():
        expected = model.eval().score(*encode_dataset(model, corpus)).T.sort(dim=1, descending=True).values
    sides = (StoredEncoded.of_directory(tmp_path / place) for place in ("out/captions", "shards"))
    torch.testing.assert_close(retrieve(model, *sides, k=7, query="caption")[0], expected)  # type: ignore[arg-type]
