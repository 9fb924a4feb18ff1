"""Images with different numbers of captions through the commands that read a split; compare is train and evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from crossret.data import PrecomputedDataset
from crossret.data.owners import write_owners
from crossret.data.precomputed import owners_path
from crossret.evaluation import retrieval_metrics
from tests.cli.command import TINY, TINY_MODELS, Cli

COUNTS = {"train": [3, 1, 7, 2, 6, 4] * 4, "dev": [2, 1, 4], "test": [1, 5, 3, 2]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for split, counts in COUNTS.items():
        np.save(directory / f"{split}_ims.npy", rng.standard_normal((len(counts), 3, 6), np.float32))
        lines = [f"picture {i} {'abcdefg'[j]}\n" for i, count in enumerate(counts) for j in range(count)]
        (directory / f"{split}_caps.txt").write_text("".join(lines))
        (directory / f"{split}_ids.txt").write_text("".join(f"{split}{i}\n" for i in range(len(counts))))
        write_owners(owners_path(directory, split), counts)
    return directory


@pytest.mark.parametrize("model", ["scan", "mhsan"])
def test_training_and_evaluation(crossret: Cli, data: Path, tmp_path: Path, model: str) -> None:
    run, figures, scores = tmp_path / "run", tmp_path / "figures.json", tmp_path / "scores.npy"
    options = ["--model", model, "--epochs", "1", *TINY, *TINY_MODELS[model]]
    assert crossret("train", data, "--output", run, *options) == 0
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == -(-sum(COUNTS["train"]) // 16)  # every caption once
    assert crossret("evaluate", run, data, "--scores", scores, "--output", figures) == 0
    assert "4 images, 11 captions" in crossret.out
    owners = PrecomputedDataset(data, "test").image_of_caption
    expected = retrieval_metrics(np.load(scores), owners).as_dict()
    assert {name: json.loads(figures.read_text())[name] for name in expected} == pytest.approx(expected)


def test_folds(crossret: Cli, data: Path, tmp_path: Path) -> None:
    """Folds of two images: each caption's image is second of all, and first in its fold."""
    owners = PrecomputedDataset(data, "test").image_of_caption
    scores = np.eye(4, dtype=np.float32)[:, owners] + 2 * np.eye(4, dtype=np.float32)[[2, 3, 0, 1]][:, owners]
    np.save(tmp_path / "scores.npy", np.ascontiguousarray(scores))
    figures = tmp_path / "figures.json"
    command = ["evaluate", tmp_path / "scores.npy", data, "--output", figures]
    assert crossret(*command) == 0
    assert json.loads(figures.read_text())["t2i_r1"] == 0
    assert crossret(*command, "--folds", "2") == 0
    assert "means of 2 folds" in crossret.out
    contents = json.loads(figures.read_text())
    assert (contents["folds"], contents["t2i_r1"], contents["i2t_r1"]) == (2, 100, 100)


def test_search_encode_and_score(crossret: Cli, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert crossret("train", data, "--output", run, "--epochs", "1", *TINY) == 0
    results = tmp_path / "results.jsonl"
    assert crossret("search", run, data, "--caption", "picture 1 a", "-k", "4", "--output", results) == 0
    found = json.loads(results.read_text().splitlines()[0])
    own = {f"test{i}": [f"picture {i} {'abcdefg'[j]}" for j in range(count)] for i, count in enumerate(COUNTS["test"])}
    assert {image["id"]: image["captions"] for image in found["results"]} == own
    assert crossret("search", run, data, "--image", "1", "-k", "11", "--output", results) == 0
    found = json.loads(results.read_text().splitlines()[0])
    assert {(item["caption"], item["id"]) for item in found["results"]} == {
        (caption, image) for image, captions in own.items() for caption in captions
    }
    assert crossret("encode", run, data, "--output", tmp_path / "encoded") == 0
    assert crossret("score", run, data, "--output", tmp_path / "scores.npy") == 0
    assert np.load(tmp_path / "scores.npy").shape == (4, 11)


def test_data_made_of_others(crossret: Cli, data: Path, tmp_path: Path) -> None:
    perturbed, clustered = tmp_path / "perturbed", tmp_path / "clustered"
    assert crossret("perturb", data, "--output", perturbed, "--shuffle", "--seed", "3") == 0
    told = "75 of 92 captions of train changed; 0 stayed because nothing of them would have been left"
    assert crossret.out == f"{perturbed}: {told}\n"
    assert json.loads((perturbed / "perturbation.json").read_text())["seed"] == 3
    assert crossret("cluster-regions", data, "--output", clustered, "--clusters", "2") == 0
    for directory in (perturbed, clustered):
        for split, counts in COUNTS.items():
            owners = PrecomputedDataset(directory, split).image_of_caption
            assert np.bincount(owners).tolist() == counts
