"""crossret search: captions, images and features against a corpus, and a corpus that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from crossret.data import PrecomputedDataset
from crossret.data.batches import pad_tokens
from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation import encode_dataset
from crossret.models.checkpoints import load_model
from crossret_kernels import late_interaction, scan_scores
from tests.cli.command import Cli
from tests.cli.test_evaluate import scores_of


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_search_finds_images_for_captions(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    """Captions are typed or in a file."""
    texts = ["picture 3 d [b]v", "picture 9 e z"]
    (tmp_path / "queries.txt").write_text("".join(f"{text}\n" for text in texts))
    found, again = tmp_path / "found.jsonl", tmp_path / "again.jsonl"
    search = ["search", trained, data, "-k", "3", "--output"]
    assert crossret(*search, again, "--captions", tmp_path / "queries.txt") == 0
    assert crossret(*search, found, "--caption", texts[0], "--caption", texts[1]) == 0
    assert again.read_bytes() == found.read_bytes()
    model, vocabulary = load_model(trained / "best")
    images, _ = encode_dataset(model, PrecomputedCorpus(PrecomputedDataset(data, "test"), vocabulary))
    tokens, lengths = pad_tokens([vocabulary.encode(text) for text in texts])
    with torch.inference_mode():
        scores = model.score(images, model.encode_captions(tokens, lengths)).T
    values, indices = scores.sort(dim=1, descending=True, stable=True)
    entries = json_lines(found)
    assert [(entry["query"], entry["caption"]) for entry in entries] == list(enumerate(texts))
    lines = (data / "test_caps.txt").read_text().splitlines()
    for row, entry in enumerate(entries):
        assert [result["rank"] for result in entry["results"]] == [1, 2, 3]
        assert [result["index"] for result in entry["results"]] == indices[row, :3].tolist()
        np.testing.assert_allclose([result["score"] for result in entry["results"]], values[row, :3].tolist(), 1e-5)
        for result in entry["results"]:
            assert result["captions"] == lines[5 * result["index"] :][:5]
            assert result["captions"][0] in crossret.out
    assert texts[0] in crossret.out


def test_search_finds_captions_for_images(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    arguments = ["--image", "4", "--image", "0", "-k", "60", "--output", found]
    assert crossret("search", trained / "best", data, *arguments) == 0
    scores = scores_of(trained, data)[[4, 0]]
    lines = (data / "test_caps.txt").read_text().splitlines()
    for row, (image, entry) in enumerate(zip([4, 0], json_lines(found), strict=True)):
        assert entry["image"] == image
        assert sorted(result["index"] for result in entry["results"]) == list(range(50))
        for result in entry["results"]:
            np.testing.assert_allclose(result["score"], scores[row, result["index"]], 1e-5)
            assert (result["caption"], result["image"]) == (lines[result["index"]], result["index"] // 5)
        ranked = [result["score"] for result in entry["results"]]
        assert ranked == sorted(ranked, reverse=True)


@pytest.mark.parametrize(("packed", "queries"), [(False, "words"), (True, "regions")])
def test_search_in_features(crossret: Cli, tmp_path: Path, packed: bool, queries: str) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([3, 1, 4, 2, 4, 1])
    corpus = rng.standard_normal((6, 4, 8), np.float32).astype(np.float16)
    wanted = rng.standard_normal((2, 5, 8), np.float32)
    if packed:
        rows = np.concatenate([item[:length] for item, length in zip(corpus, lengths, strict=True)])
        np.save(tmp_path / "values.npy", rows)
        np.save(tmp_path / "offsets.npy", np.concatenate([[0], lengths.cumsum()]))
    else:
        np.save(tmp_path / "features.npy", corpus)
        np.save(tmp_path / "lengths.npy", lengths)
    np.save(tmp_path / "wanted.npy", wanted)
    np.save(tmp_path / "n_wanted.npy", np.array([5, 2]))
    found = tmp_path / "found.jsonl"
    files = [f"--{queries}", tmp_path / "wanted.npy", f"--{queries[:-1]}-lengths", tmp_path / "n_wanted.npy"]
    options = ["-k", "4", "--direction", "i2t", "--pooling", "max"]
    assert crossret("search", tmp_path, *files, *options, "--output", found) == 0, crossret.err
    sides = [(torch.from_numpy(corpus).float(), lengths.tolist()), (torch.from_numpy(wanted), [5, 2])]
    (regions, n_regions), (words, n_words) = sides if queries == "words" else sides[::-1]
    scores = scan_scores(regions, words, n_regions, n_words, direction="i2t", pooling="max")
    values, indices = (scores.T if queries == "words" else scores).sort(dim=1, descending=True, stable=True)
    for row, entry in enumerate(json_lines(found)):
        assert entry["query"] == row
        assert [result["index"] for result in entry["results"]] == indices[row, :4].tolist()
        assert [result["score"] for result in entry["results"]] == values[row, :4].tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"features": np.full((3, 2, 4), np.nan, np.float32)},
            "query 0 has the score nan with item 0: {tmp}/features.npy: item 0 has features that are not finite",
        ),
        (
            {"features": np.full((3, 2, 4), 1e38), "wanted": np.full((1, 1, 4), 1e38)},
            "item 0 of {tmp}/wanted.npy with item 0 of {tmp}/features.npy: the score is beyond float32",
        ),
        ({"values": np.ones((3, 4), np.float32)}, "offsets.npy: no such file"),
    ],
)
def test_a_bad_corpus_of_features_is_named(
    crossret: Cli, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    for name, array in {"wanted": np.ones((1, 1, 4), np.float32), **arrays}.items():
        np.save(tmp_path / f"{name}.npy", array)
    found = tmp_path / "found.jsonl"
    arguments = ["--words", tmp_path / "wanted.npy", "--raw-feature-norm", "no_norm", "--output", found]
    assert message.format(tmp=tmp_path) in crossret.refused("search", tmp_path, *arguments)
    assert not found.exists()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Six documents and four queries of as many dimensions, as their encoders left them."""
    rng = np.random.default_rng(0)
    (tmp_path / "documents").mkdir()
    np.save(tmp_path / "documents" / "features.npy", rng.standard_normal((6, 5, 8)).astype(np.float16))
    np.save(tmp_path / "queries.npy", rng.standard_normal((4, 3, 8)).astype(np.float16))
    np.save(tmp_path / "lengths.npy", np.array([3, 1, 2, 3]))
    return tmp_path


@pytest.mark.parametrize("direction", ["q2d", "d2q"])
def test_documents_and_queries(crossret: Cli, documents: Path, direction: Literal["q2d", "d2q"]) -> None:
    """Late interaction's search, by its own names; one of given documents finds the same among them."""
    found, again = documents / "found.jsonl", documents / "again.jsonl"
    search = ["search", documents / "documents", "--queries", documents / "queries.npy"]
    search += ["--query-lengths", documents / "lengths.npy", "--sum-max", "--direction", direction]
    assert crossret(*search, "-k", "4", "--output", found) == 0, crossret.err
    assert "documents:6documentssearched" in "".join(crossret.out.split()) and "image" not in crossret.out
    queries, items = (
        torch.from_numpy(np.load(documents / name)).float() for name in ("queries.npy", "documents/features.npy")
    )
    lengths = torch.tensor([3, 1, 2, 3])
    values, indices = late_interaction.retrieve(queries, items, lengths, k=6, direction=direction)
    for row, entry in enumerate(json_lines(found)):
        assert entry.keys() == {"query", "results"} and entry["query"] == row
        assert [result["index"] for result in entry["results"]] == indices[row, :4].tolist()
        np.testing.assert_allclose([result["score"] for result in entry["results"]], values[row, :4], rtol=1e-5)
    chosen = np.array([[5, -1], [0, 3], [2, 2], [-1, -1]], np.int16)
    np.save(documents / "chosen.npy", chosen)
    for candidates, among in (
        (found, indices[:, :4].tolist()),
        (documents / "chosen.npy", chosen.tolist()),
    ):
        assert crossret(*search, "--candidates", candidates, "-k", "9", "--output", again) == 0, crossret.err
        for row, entry in enumerate(json_lines(again)):
            best = [(i, v) for v, i in zip(values[row].tolist(), indices[row].tolist(), strict=True) if i in among[row]]
            assert [(result["index"], result["rank"]) for result in entry["results"]] == [
                (i, rank) for rank, (i, _) in enumerate(best, start=1)
            ]
            np.testing.assert_allclose([result["score"] for result in entry["results"]], [v for _, v in best], 1e-5)
    assert "none" in crossret.out  # of the last query


def test_a_text_of_words_that_the_model_does_not_know_is_named(crossret: Cli, data: Path, trained: Path) -> None:
    texts = ["--caption", "picture 3", "--caption", "qwertz", "--caption", "jklm", "--caption", "qwertz"]
    assert crossret("search", trained, data, *texts, "-k", "1000000000") == 0
    assert crossret.err == "crossret: warning: --caption 2: the model knows no word of it, nor of 2 others\n"
