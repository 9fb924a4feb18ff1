"""crossret encode: what it writes is searched and scored as the model does it, without the model."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.data import Vocabulary
from crossret.models import MODELS
from crossret.models.checkpoints import save_model
from tests.cli.command import Cli
from tests.cli.test_search import json_lines
from tests.search.test_encoding import MODELS_OF_TESTS, SIZES


@pytest.mark.parametrize("kind", ["scan", "sman"])
def test_a_model_searches_and_scores_what_it_encoded(crossret: Cli, data: Path, tmp_path: Path, kind: str) -> None:
    """Results are those of the split: by text, by what was encoded, in the directory of one side or both, in shards."""
    torch.manual_seed(0)
    vocabulary = Vocabulary.build((data / "train_caps.txt").read_text().splitlines())
    config, model = MODELS[kind]
    sizes = {**SIZES, "vocabulary_size": len(vocabulary)}
    save_model(model(config(**sizes, **MODELS_OF_TESTS[kind])), tmp_path / "model", vocabulary)
    trained, encoded = tmp_path / "model", tmp_path / "encoded"
    assert crossret("encode", trained, data, "--output", encoded) == 0, crossret.err
    assert crossret.out == f"{encoded}: 10 images and 50 captions of test\n"
    assert crossret("shard", encoded / "images", "--output", tmp_path / "shards", "--shards", "3") == 0, crossret.err
    texts = ["--caption", "picture 3 d v", "--caption", "picture e"]
    whole, found = ["--output", tmp_path / "whole.jsonl"], ["--output", tmp_path / "found.jsonl"]
    assert crossret("search", trained, data, *texts, *whole) == 0, crossret.err
    for corpus in (encoded, encoded / "images", tmp_path / "shards"):
        assert crossret("search", trained, corpus, *texts, *found) == 0, crossret.err
        assert "10 images searched" in " ".join(crossret.out.split())
        assert_same_results(tmp_path / "whole.jsonl", tmp_path / "found.jsonl", 2)
        assert [entry["caption"] for entry in json_lines(tmp_path / "found.jsonl")] == texts[1::2]
    assert crossret("search", trained, data, "--captions", data / "test_caps.txt", *whole) == 0, crossret.err
    assert "40 more queries" in crossret.out
    assert crossret("search", trained, encoded, "--words", encoded, *found) == 0, crossret.err
    assert_same_results(tmp_path / "whole.jsonl", tmp_path / "found.jsonl", 50)
    arguments = ["--queries", encoded / "captions", "--candidates", tmp_path / "found.jsonl"]
    again = ["--output", tmp_path / "again.jsonl"]
    assert crossret("search", trained, tmp_path / "shards", *arguments, *again) == 0, crossret.err
    assert "10 images of which each query's candidates were scored" in " ".join(crossret.out.split())
    assert_same_results(tmp_path / "whole.jsonl", tmp_path / "again.jsonl", 50)
    assert crossret("search", trained, data, "--image", "7", "-k", "9", *whole) == 0, crossret.err
    assert crossret("search", trained, encoded, "--image", "7", "-k", "9", *found) == 0, crossret.err
    assert_same_results(tmp_path / "whole.jsonl", tmp_path / "found.jsonl", 1)
    assert crossret("score", trained, data, "--output", tmp_path / "whole.npy") == 0, crossret.err
    assert crossret("score", trained, encoded, "--output", tmp_path / "found.npy") == 0, crossret.err
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), np.load(tmp_path / "whole.npy"), rtol=1e-4, atol=1e-5)
    if kind == "sman":  # whose scores are not of rows alone
        for command in (
            ["search", encoded, "--words", encoded],
            ["score", "--regions", encoded, "--words", encoded, "--output", tmp_path / "none.npy"],
        ):
            err = crossret.refused(*command)
            assert "encoded/images: encoded by sman, which alone scores it: name its run" in err


@pytest.mark.parametrize("command", ["encode", "search", "score", "shard"])
def test_examples_of_the_help_work(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """In their order, but for those that need a cluster, where the files that they name are."""
    monkeypatch.chdir(tmp_path)
    for place in ("scenes", "data/f30k_precomp"):
        Path(place).mkdir(parents=True)
        for name in ("ims.npy", "caps.txt"):
            (Path(place) / f"test_{name}").symlink_to(data / f"train_{name}")
    Path("runs").mkdir()
    for name in ("first", "scan", "f30k", "mhsan"):
        (Path("runs") / name).symlink_to(trained)
    Path("queries.txt").write_text("two dogs\na picture\n")
    for name in ("queries", "regions", "words"):
        np.save(f"{name}.npy", np.ones((2, 3, 8), np.float32))
    np.save("lengths.npy", np.array([3, 2]))
    np.save("candidates.npy", np.array([[3, 1, 2], [7, 8, -1]]))
    assert crossret(command, "--help") == 0
    examples = [shlex.split(line)[1:] for line in crossret.out.splitlines() if line.startswith("    crossret ")]
    assert examples[0][0] == command
    if command != "encode":
        assert crossret("encode", "runs/first", "scenes", "--output", "embeddings") == 0, crossret.err
    if command == "search":
        assert crossret("shard", "embeddings/images", "--output", "corpus", "--shards", "16") == 0, crossret.err
    for example in examples:
        if not {"--ray", "album"} & {*example}:  # an index of pictures takes an encoder: tests/extraction
            assert crossret(*example) == 0, (example, crossret.err)


def assert_same_results(one: Path, other: Path, queries: int) -> None:
    left, right = json_lines(one), json_lines(other)
    assert len(left) == len(right) == queries
    for a, b in zip(left, right, strict=True):
        assert [result["index"] for result in a["results"]] == [result["index"] for result in b["results"]]
        scores, others = ([result["score"] for result in entry["results"]] for entry in (a, b))
        np.testing.assert_allclose(scores, others, rtol=1e-5, atol=1e-6)
