"""A training to compare others with; all of them run on one thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.toy import run


@pytest.fixture(scope="module", autouse=True)
def small(one_thread: None) -> None:
    """Tensors this small gain nothing from a second thread, and wait for it where other tests keep the cores busy."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("straight")
    run(out_dir)
    return out_dir
