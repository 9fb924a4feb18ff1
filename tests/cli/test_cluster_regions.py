"""crossret cluster-regions: a data directory of centres, and those that a model keeps beside its data."""

from __future__ import annotations

import shutil
from pathlib import Path

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
