"""score_files: the same scores as one call on everything, in blocks; every bad file is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.search.score_files import score_files
from crossret_kernels import scan_scores
from tests.kernels.subprocesses import run_python

Change = Callable[[Path], None]


@pytest.fixture
def features(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "regions.npy", rng.standard_normal((5, 3, 8), np.float32))
    np.save(tmp_path / "words.npy", rng.standard_normal((7, 4, 8), np.float32).astype(np.float16))
    np.save(tmp_path / "region_lengths.npy", np.array([3, 1, 2, 3, 3], np.int32))
    np.save(tmp_path / "word_lengths.npy", np.array([4, 1, 2, 3, 4, 1, 2], np.uint8))
    return tmp_path


def score(directory: Path, *, lengths: bool = True) -> tuple[int, int]:
    return score_files(
        partial(scan_scores, normalize=True),
        directory / "regions.npy",
        directory / "words.npy",
        directory / "scores.npy",
        region_lengths=directory / "region_lengths.npy" if lengths else None,
        word_lengths=directory / "word_lengths.npy" if lengths else None,
    )


@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize(("scores", "feature_bytes"), [(1, 1), (6, 10**6), (10**6, 300), (10**6, 10**6)])
def test_blocks_make_up_the_matrix(
    features: Path, monkeypatch: pytest.MonkeyPatch, lengths: bool, scores: int, feature_bytes: int
) -> None:
    monkeypatch.setattr("crossret.search.score_files.BLOCK_SCORES", scores)
    monkeypatch.setattr("crossret_kernels.inputs.blocks.BLOCK_BYTES", feature_bytes)
    assert score(features, lengths=lengths) == (5, 7)
    written = np.load(features / "scores.npy", allow_pickle=False)
    regions, words = (torch.from_numpy(np.load(features / f"{name}.npy")).float() for name in ("regions", "words"))
    n_regions, n_words = ([3, 1, 2, 3, 3], [4, 1, 2, 3, 4, 1, 2]) if lengths else (None, None)
    expected = scan_scores(regions, words, n_regions, n_words, normalize=True)
    assert written.dtype == np.float32
    # A block of few queries may round otherwise than all of them.
    np.testing.assert_allclose(written, expected.numpy(), rtol=0, atol=1e-6)


def saved(name: str, array: np.ndarray) -> Change:
    return lambda directory: np.save(directory / f"{name}.npy", array)


def truncated(directory: Path) -> None:
    path = directory / "words.npy"
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (saved("regions", np.zeros((5, 8), np.float32)), r"regions\.npy: expected 3 dimensions.* got shape \(5, 8\)"),
        (
            saved("words", np.zeros((7, 4, 9), np.float32)),
            r"regions\.npy: 8 dimensions, but .*words\.npy has 9",
        ),
        (
            saved("region_lengths", np.array([1, 2, 0, 3, 3])),
            r"region_lengths\.npy: item 2 has length 0, expected 1 to 3",
        ),
        (truncated, r"words\.npy: .* cut short"),
    ],
)
def test_a_bad_file_is_named_and_nothing_is_written(features: Path, change: Change, message: str) -> None:
    change(features)
    before = sorted(os.listdir(features))
    with pytest.raises(ValueError, match=message):
        score(features)
    assert sorted(os.listdir(features)) == before


@pytest.mark.parametrize("name", ["regions", "words", "region_lengths", "word_lengths"])
def test_an_input_is_not_overwritten(features: Path, name: str) -> None:
    (features / "scores.npy").symlink_to(f"{name}.npy")
    before = (features / f"{name}.npy").read_bytes()
    with pytest.raises(ValueError, match=r"scores\.npy: .* this input"):
        score(features)
    assert (features / f"{name}.npy").read_bytes() == before


def test_memory_does_not_grow_with_the_scores(tmp_path: Path) -> None:
    """6,000 × 8,000 scores are 183 MiB."""
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from crossret.search.score_files import score_files\n"
        "from crossret_kernels import maxsim_scores\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "at = Path(sys.argv[1])\n"
        "def run(n, m):\n"
        "    for name, count in (('regions', n), ('words', m)):\n"
        "        np.save(at / f'{name}.npy', np.ones((count, 1, 8), np.float32))\n"
        "    score_files(maxsim_scores, at / 'regions.npy', at / 'words.npy', at / 'scores.npy')\n"
        "run(1, 1)\n"
        "before = peak()\n"
        "run(6000, 8000)\n"
        "print(peak() - before)\n"
    )
    process = run_python("-c", program, str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) <= 100
    assert np.load(tmp_path / "scores.npy", mmap_mode="r").shape == (6000, 8000)
