"""crossret evaluate: the figures, printed and written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import Cli


@pytest.mark.parametrize("five_fold", [False, True])
def test_evaluate_prints_and_writes_the_figures(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, five_fold: bool
) -> None:
    figures = tmp_path / "figures.json"
    assert crossret("evaluate", trained, data, "--json", figures, *(["--five-fold"] if five_fold else [])) == 0
    contents = json.loads(figures.read_text())
    assert contents["five_fold"] is five_fold
    assert f"{contents['rsum']:.1f}" in crossret.out
    # Two images a fold: each caption's image is among the first five.
    assert (contents["t2i_r5"] == 100) is five_fold


def test_evaluate_takes_a_models_own_directory(crossret: Cli, data: Path, trained: Path) -> None:
    assert crossret("evaluate", trained, data) == 0
    expected = crossret.out
    assert crossret("evaluate", trained / "best", data) == 0
    assert crossret.out == expected


def test_evaluate_names_data_of_another_size(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "test_ims.npy", np.zeros((10, 3, 7), np.float32))
    (tmp_path / "test_caps.txt").write_bytes((data / "test_caps.txt").read_bytes())
    assert crossret("evaluate", trained, tmp_path) == 2
    assert "regions have 7 features" in crossret.err
