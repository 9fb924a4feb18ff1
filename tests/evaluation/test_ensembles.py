"""average_scores: the members' mean in bounded memory; StoredScores: matrices of files, checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from crossret.evaluation import StoredScores, average_scores
from crossret.evaluation.ensembles import ScoreMatrix


def matrices(n: int) -> list[NDArray[np.float32]]:
    return list(np.random.default_rng(0).standard_normal((n, 3, 5)).astype(np.float32))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "at least one"),
        ([matrices(1)[0].copy, matrices(1)[0].T.copy], r"members\[1\] has scores of shape \(5, 3\)"),
        ([lambda: np.full((3, 5), 3e38, np.float32)] * 2, "sum of the members' scores is not finite"),
    ],
)
def test_members_that_cannot_be_averaged(members: list[ScoreMatrix], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        average_scores(members)


@pytest.mark.parametrize(("dtype", "block"), [("<f2", 1), ("<f4", 12), ("<f8", 10**6)])
def test_stored_scores_are_read_as_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, block: int
) -> None:
    monkeypatch.setattr("crossret.evaluation.ensembles._BLOCK_SCORES", block)
    scores = matrices(1)[0].astype(dtype)
    np.save(tmp_path / "scores.npy", scores)
    read = StoredScores.of_file(tmp_path / "scores.npy", (3, 5))()
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, scores.astype(np.float32))
    read += 1  # the caller's to change, and not the file's
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), scores)


@pytest.mark.parametrize(("value", "block"), [(np.nan, 1), (np.inf, 12), (-np.inf, 10**6), (1e300, 12)])
def test_a_stored_score_that_is_not_finite_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, block: int
) -> None:
    monkeypatch.setattr("crossret.evaluation.ensembles._BLOCK_SCORES", block)
    scores = matrices(1)[0].astype(np.float64)
    scores[1, 4] = scores[2, 0] = value
    np.save(tmp_path / "scores.npy", scores)
    with pytest.raises(ValueError) as caught:
        StoredScores.of_file(tmp_path / "scores.npy", (3, 5))
    place = f"{tmp_path}/scores.npy: the score in row 1, column 4 is {value}"
    assert str(caught.value) == f"{place}, not finite in float32"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((5, 3), np.float32), r"3 images and 5 captions have scores of shape \(3, 5\), got \(5, 3\)"),
        (np.ones((3, 5), np.int64), "expected dtype float16, float32, float64"),
    ],
)
def test_a_file_that_is_no_matrix_of_scores_is_named(tmp_path: Path, array: NDArray[np.generic], message: str) -> None:
    np.save(tmp_path / "scores.npy", array)
    with pytest.raises(ValueError, match=rf"scores\.npy: {message}"):
        StoredScores.of_file(tmp_path / "scores.npy", (3, 5))
