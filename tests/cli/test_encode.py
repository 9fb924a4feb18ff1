"""crossret encode: what it writes is searched and scored as the model does it, without the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crossret.models.checkpoints import load_model
from tests.cli.command import Cli
from tests.cli.test_search import json_lines


@pytest.fixture
def encoded(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> Path:
    assert crossret("encode", data, "--model", trained, "--output", tmp_path / "encoded") == 0, crossret.err
    assert crossret.out == f"{tmp_path}/encoded: 10 images and 50 captions of test\n"
    return tmp_path / "encoded"


def test_what_is_found_is_what_the_model_finds(
    crossret: Cli, data: Path, trained: Path, encoded: Path, tmp_path: Path
) -> None:
    by_model, by_files = tmp_path / "model.jsonl", tmp_path / "files.jsonl"
    scoring = model_s_options(trained)
    queries = ["--captions", data / "test_caps.txt"]
    assert crossret("search", data, "--model", trained, *queries, "--output", by_model) == 0
    queries = ["--words", encoded / "captions"]
    assert crossret("search", encoded / "images", *queries, *scoring, "--output", by_files) == 0, crossret.err
    assert_same_results(by_model, by_files, 50)
    numbers = [option for image in range(10) for option in ("--image", str(image))]
    assert crossret("search", data, "--model", trained, *numbers, "-k", "50", "--output", by_model) == 0
    queries = ["--regions", encoded / "images", "-k", "50"]
    assert crossret("search", encoded / "captions", *queries, *scoring, "--output", by_files) == 0, crossret.err
    assert_same_results(by_model, by_files, 10)


def model_s_options(run: Path) -> list[str]:
    options = load_model(run / "best")[0].config.attention_options("i2t")
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def assert_same_results(one: Path, other: Path, queries: int) -> None:
    left, right = json_lines(one), json_lines(other)
    assert len(left) == len(right) == queries
    for a, b in zip(left, right, strict=True):
        assert [result["index"] for result in a["results"]] == [result["index"] for result in b["results"]]
        scores, others = ([result["score"] for result in entry["results"]] for entry in (a, b))
        np.testing.assert_allclose(scores, others, rtol=1e-5)


def test_scores_are_the_model_s(crossret: Cli, data: Path, trained: Path, encoded: Path, tmp_path: Path) -> None:
    assert crossret("score", data, "--model", trained, "--output", tmp_path / "model.npy") == 0
    sides = ["--regions", encoded / "images", "--words", encoded / "captions"]
    assert crossret("score", *sides, *model_s_options(trained), "--output", tmp_path / "files.npy") == 0, crossret.err
    np.testing.assert_allclose(np.load(tmp_path / "files.npy"), np.load(tmp_path / "model.npy"), rtol=1e-5)


def test_the_split_is_the_one_that_was_named(crossret: Cli, data: Path, mhsan: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    command = ["encode", data, "--model", mhsan / "best", "--output", tmp_path / "there"]
    assert crossret(*command, "--split", "train") == 0
    assert "100 images and 500 captions of train" in crossret.out
    embeddings = np.load(tmp_path / "there" / "captions" / "vectors_embedding.npy", allow_pickle=False)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), np.ones(500), rtol=1e-5)


def test_an_image_that_is_not_finite_is_one_line(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    features = np.load(data / "test_ims.npy")
    features[3] = np.inf
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "test_ims.npy", features)
    (tmp_path / "data" / "test_caps.txt").write_bytes((data / "test_caps.txt").read_bytes())
    assert crossret("encode", tmp_path / "data", "--model", trained, "--output", tmp_path / "out") == 0
    why = f"{tmp_path}/data/test_ims.npy: item 3 has features that are not finite in float32"
    warning = f"{tmp_path}/out/images: the embedding of item 3 is not finite: {why}"
    assert crossret.err == f"crossret: warning: {warning}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "{data}", "--model", "{trained}"], "Missing option '--output'"),
        (["encode", "{data}", "--output", "{tmp}/out"], "Missing option '--model'"),
        (["encode", "{data}", "--model", "{trained}", "--output", "{trained}"], "{trained}: not empty; choose a new"),
        (["encode", "{data}", "--model", "{trained}", "--output", "{data}/out"], "{data}/out: is {data} or inside it"),
        (["encode", "{data}", "--model", "{tmp}", "--output", "{tmp}/out"], "model.safetensors: no such file"),
        (["encode", "{data}", "--model", "{trained}", "--output", "{tmp}/out", "--split", "val"], "val_ims.npy: no su"),
        (["encode", "{data}", "--model", "{trained}", "--output", "{tmp}/out", "--device", "tpu"], "--device must be"),
        (
            ["search", "{encoded}/images", "--words", "{encoded}/captions", "--word-lengths", "{encoded}/x.npy"],
            "x.npy: lengths are for a file of features, but {encoded}/captions is a directory with its own",
        ),
        (["search", "{encoded}/images", "--words", "{encoded}"], "{encoded}: no features.npy, and no values.npy"),
        (
            [
                "search",
                "{encoded}/images",
                "--words",
                "{encoded}/captions",
                "--output",
                "{encoded}/captions/values.npy",
            ],
            "captions/values.npy: what is written would take the place of this input",
        ),
        (
            [
                *("score", "--regions", "{encoded}/images", "--words", "{encoded}/captions"),
                *("--output", "{encoded}/captions/offsets.npy"),
            ],
            "captions/offsets.npy: what is written would take the place of this input",
        ),
    ],
)
def test_mistakes(
    crossret: Cli, data: Path, trained: Path, encoded: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    np.save(encoded / "x.npy", np.ones(50, np.int64))
    places = {"data": data, "trained": trained, "tmp": tmp_path, "encoded": encoded}
    assert crossret(*(argument.format_map(places) for argument in arguments)) == 2
    assert message.format_map(places) in crossret.err
    assert crossret.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["encoded"]
