"""crossret cluster-regions: a data directory of centres, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import TINY, Cli


def test_a_model_s_clusters_are_found_once_for_all_commands(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "data"
    shutil.copytree(data, own)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("clustered once more")

    monkeypatch.setattr("crossret.models.han.cluster_regions", forbidden)
    command = ["train", own, "--model", "han", "--set", "clusters=2 heads=2", *TINY]
    assert crossret(*command, "--output", tmp_path / "run", "--epochs", "1") == 0, crossret.err
    assert crossret("evaluate", tmp_path / "run", own) == 0, crossret.err
    kept = sorted(own.glob("*_clusters_2_*.npy"))
    assert [path.name.split("_")[0] for path in kept] == ["dev", "test", "train"]
    monkeypatch.setattr("crossret.data.cluster_cache.cluster_regions", forbidden)
    assert crossret(*command, "--output", tmp_path / "run", "--epochs", "2", "--resume") == 0, crossret.err
    assert crossret("encode", tmp_path / "run", own, "--output", tmp_path / "encoded") == 0, crossret.err
    assert crossret("search", tmp_path / "run", own, "--caption", "a picture") == 0, crossret.err
    assert crossret("cluster-regions", own, "--output", tmp_path / "out", "--clusters", "2") == 0, "they are no splits"
    assert crossret.out == f"{tmp_path}/out: 2 centres for each of 120 images (dev, test, train)\n"


def test_mistakes(crossret: Cli, data: Path, tmp_path: Path) -> None:
    def mistake(*arguments: str | Path) -> str:
        assert crossret("cluster-regions", *arguments) == 2
        assert crossret.err.count("\n") == 1
        return crossret.err

    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/empty: no SPLIT_ims.npy in it" in mistake(tmp_path / "empty", "--output", tmp_path / "out")
    assert "dev_ims.npy: clusters must be 1 to its 3 regions, not 4" in mistake(
        data, "--output", tmp_path / "out", "--clusters", "4"
    )
    assert not (tmp_path / "out").exists()
    shutil.copytree(data, tmp_path / "nan")
    features = np.load(data / "train_ims.npy")  # the last split
    features[4, 1, 2] = np.nan
    np.save(tmp_path / "nan" / "train_ims.npy", features)
    message = mistake(tmp_path / "nan", "--output", tmp_path / "out", "--clusters", "2")
    assert f"{tmp_path}/nan/train_ims.npy: row 4 has features that are not finite" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "nan"], "nothing is left"
