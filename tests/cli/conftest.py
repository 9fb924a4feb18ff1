"""Data and a trained model for the commands' tests, which run on one thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import TINY, run


@pytest.fixture(scope="module", autouse=True)
def small(one_thread: None) -> None:
    """Tiny models gain nothing from threads, and commands with --threads change the number for the whole process."""


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
    directory = tmp_path_factory.mktemp("trained")
    run("train", data, "--output", directory, "--epochs", "2", "--preset", "f30k_i2t_lse", *TINY)
    return directory


@pytest.fixture(scope="module")
def mhsan(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mhsan")
    sizes = ["--set", "feature_dim=8 attention_dim=4 heads=2"]
    run("train", data, "--output", directory, "--epochs", "1", "--model", "mhsan", *TINY, *sizes)
    return directory


@dataclass
class Asked:
    """A training that was asked for: the model's and the schedule's settings, words, and the names of callbacks."""

    model: Any
    schedule: Any
    words: list[str]
    callbacks: list[str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """The trainings that commands ask for; these are interrupted instead of done, with exit code 130."""
    asked: list[Asked] = []

    def remember(model: Any, train_data: Any, dev_data: object, config: Any, out_dir: Path, **others: Any) -> None:
        callbacks = [type(callback).__name__ for callback in others["callbacks"]]
        asked.append(Asked(model.config, config, train_data.vocabulary.idx2word, callbacks))
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    return asked
