"""crossret score: the kernels' scores of files and a model's of a split, also those that are not finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.data import PrecomputedDataset
from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation import encode_dataset, score_matrix
from crossret.models.checkpoints import load_model
from crossret_kernels import maxsim_scores, scan_scores
from tests.cli.command import Cli


@pytest.mark.parametrize(
    "options", [["--direction", "i2t", "--pooling", "lse", "--lambda-lse", "5", "--clip-slope", "0"], ["--sum-max"]]
)
def test_score(crossret: Cli, tmp_path: Path, options: list[str]) -> None:
    rng = np.random.default_rng(0)
    regions, words = rng.standard_normal((3, 4, 8), np.float32), rng.standard_normal((5, 6, 8), np.float32)
    lengths = np.array([6, 1, 2, 3, 4])
    for name, array in (("regions", regions), ("words", words), ("lengths", lengths)):
        np.save(tmp_path / f"{name}.npy", array)
    files = {name: tmp_path / f"{name}.npy" for name in ("regions", "words", "lengths", "scores")}
    code = crossret(
        *("score", "--regions", files["regions"], "--words", files["words"], "--word-lengths", files["lengths"]),
        *("--output", files["scores"], "--normalize", *options),
    )
    assert code == 0
    arguments = (torch.from_numpy(regions), torch.from_numpy(words), None, lengths.tolist())
    if "--sum-max" in options:
        expected = maxsim_scores(*arguments, normalize=True)
    else:
        expected = scan_scores(*arguments, direction="i2t", pooling="lse", lambda_lse=5, clip_slope=0, normalize=True)
    np.testing.assert_allclose(np.load(files["scores"], allow_pickle=False), expected.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_scores_that_are_not_finite_are_written_with_a_warning(crossret: Cli, tmp_path: Path) -> None:
    words = np.ones((3, 2, 4))
    words[1, 0, 0] = 1e300
    np.save(tmp_path / "regions.npy", np.ones((2, 2, 4), np.float32))
    np.save(tmp_path / "words.npy", words)
    sides = ["--regions", tmp_path / "regions.npy", "--words", tmp_path / "words.npy"]
    assert crossret("score", *sides, "--output", tmp_path / "scores.npy") == 0
    warning = f"{tmp_path}/words.npy: item 1 has features that are not finite in float32"
    assert crossret.err == f"crossret: warning: {tmp_path}/scores.npy: not all scores are finite: {warning}\n"
    assert np.isfinite(np.load(tmp_path / "scores.npy")).all(0).tolist() == [True, False, True]


def test_a_model_scores_a_split(crossret: Cli, data: Path, mhsan: Path, tmp_path: Path) -> None:
    assert crossret("score", mhsan, data, "--split", "dev", "--output", tmp_path / "scores.npy") == 0
    assert crossret.out == f"{tmp_path}/scores.npy: scores of 10 images with 50 captions\n"
    model, vocabulary = load_model(mhsan / "best")
    corpus = PrecomputedCorpus(PrecomputedDataset(data, "dev"), vocabulary)
    expected = score_matrix(model, *encode_dataset(model, corpus))
    scores = np.load(tmp_path / "scores.npy", allow_pickle=False)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, expected)


OUTPUT = ["--output", "{tmp}/y.npy"]
MODEL = ["{trained}", "{data}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*OUTPUT], "--regions and --words are needed, or RUN and DATA"),
        (["--split", "dev", *OUTPUT], "--split needs RUN"),
        ([*MODEL, "--lambda-softmax", "9", *OUTPUT], "--lambda-softmax is for files of features, without RUN"),
        ([*MODEL, "--output", "{data}/dev_ims.npy"], "dev_ims.npy: what is written would take the place of this input"),
    ],
)
def test_mistakes(crossret: Cli, data: Path, trained: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    places = {"data": data, "trained": trained, "tmp": tmp_path}
    assert crossret("score", *(argument.format_map(places) for argument in arguments)) == 2
    assert message.format_map(places) in crossret.err
    assert crossret.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
