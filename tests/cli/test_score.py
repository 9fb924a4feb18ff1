"""crossret score: the kernels' scores of files and a model's of a split, also those that are not finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from crossret_kernels import maxsim_scores, scan_scores
from tests.cli.command import Cli
from tests.cli.test_evaluate import scores_of


@pytest.mark.parametrize(
    "options", [["--direction", "i2t", "--pooling", "lse", "--lambda-lse", "5", "--clip-slope", "0"], ["--sum-max"]]
)
def test_files_are_scored_with_their_options(crossret: Cli, tmp_path: Path, options: list[str]) -> None:
    rng = np.random.default_rng(0)
    regions, words = rng.standard_normal((3, 4, 8), np.float32), rng.standard_normal((5, 6, 8), np.float32)
    lengths = np.array([6, 1, 2, 3, 4])
    for name, array in (("regions", regions), ("words", words), ("lengths", lengths)):
        np.save(tmp_path / f"{name}.npy", array)
    files = {name: tmp_path / f"{name}.npy" for name in ("regions", "words", "lengths", "scores")}
    sides = ["--regions", files["regions"], "--words", files["words"], "--word-lengths", files["lengths"]]
    assert crossret("score", *sides, "--output", files["scores"], "--normalize", *options) == 0
    arguments = (torch.from_numpy(regions), torch.from_numpy(words), None, lengths.tolist())
    if "--sum-max" in options:
        expected = maxsim_scores(*arguments, normalize=True)
    else:
        expected = scan_scores(*arguments, direction="i2t", pooling="lse", lambda_lse=5, clip_slope=0, normalize=True)
    np.testing.assert_allclose(np.load(files["scores"], allow_pickle=False), expected.numpy(), rtol=1e-6, atol=1e-6)


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
    scores = np.load(tmp_path / "scores.npy", allow_pickle=False)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, scores_of(mhsan, data, "dev"))
