"""Data and a trained model for the commands' tests, which run on one thread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crossret import cli
from tests.cli.command import TINY, Cli


@pytest.fixture(scope="module", autouse=True)
def small(one_thread: None) -> None:
    """Tiny models gain nothing from threads, and commands with --threads change the number for the whole process."""


@pytest.fixture
def crossret(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in which the words of a caption tell the numbers of its image."""
    directory = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for split, n in (("train", 100), ("dev", 10), ("test", 10)):
        np.save(directory / f"{split}_ims.npy", rng.standard_normal((n, 3, 6), np.float32))
        lines = [f"picture {i} {'abcde'[i % 5]} {'vwxyz'[j]}\n" for i in range(n) for j in range(5)]
        (directory / f"{split}_caps.txt").write_text("".join(lines))
    return directory


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained")
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", str(data), "--output", str(run), "--epochs", "2", "--preset", "f30k_i2t_lse", *TINY])
    assert not exit_.value.code
    return run


@pytest.fixture(scope="module")
def mhsan(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("mhsan")
    sizes = ["--set", "feature_dim=8 attention_dim=4 heads=2"]
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", str(data), "--output", str(run), "--epochs", "1", "--model", "mhsan", *TINY, *sizes])
    assert not exit_.value.code
    return run
