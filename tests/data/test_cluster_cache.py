"""Clusters of a split's regions: found once, kept beside the features or in the user's cache, and read from there."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.data import PrecomputedDataset, Vocabulary, cluster_cache
from crossret.data.clustering import cluster_regions
from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation import encode_dataset
from crossret.models import Han, HanConfig

IMAGES, REGIONS, DIM = 9, 5, 4


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A split "dev" in which some regions are the same, and a home of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "data"
    directory.mkdir()
    features = np.random.default_rng(0).standard_normal((IMAGES, REGIONS, DIM)).astype(np.float32)
    features[2] = features[2, :1]
    np.save(directory / "dev_ims.npy", features)
    (directory / "dev_caps.txt").write_text("a picture\n" * IMAGES)
    return directory


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were clustered, call by call."""
    calls: list[int] = []

    def counted(features: torch.Tensor, **options: Any) -> torch.Tensor:
        calls.append(len(features))
        time.sleep(0.05)  # so that two that do not wait for each other both begin
        return cluster_regions(features, **options)

    monkeypatch.setattr(cluster_cache, "cluster_regions", counted)
    return calls


def model(clusters: int | None = 3) -> Han:
    torch.manual_seed(0)
    return Han(HanConfig(image_dim=DIM, vocabulary_size=6, embed_dim=4, word_dim=3, heads=2, clusters=clusters))


def corpus(data: Path) -> PrecomputedCorpus:
    return PrecomputedCorpus(PrecomputedDataset(data, "dev"), Vocabulary(["a", "picture"]))


def kept(directory: Path) -> list[Path]:
    return sorted(directory.glob("dev_clusters_*.npy"))


def test_regions_are_clustered_once_and_encoded_as_ever(
    data: Path, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_cache, "_BLOCK_BYTES", 4 * REGIONS * DIM * 4)  # four images a block
    expected = model().encode_images(torch.from_numpy(np.load(data / "dev_ims.npy")))

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("clustered while encoding")

    monkeypatch.setattr("crossret.models.han.cluster_regions", forbidden)
    shown: list[tuple[int, int]] = []
    for _ in range(2):  # the second time with nothing in memory
        images, _ = encode_dataset(model(), corpus(data), batch_size=2, progress=lambda *done: shown.append(done))
        assert torch.equal(images.vectors["cluster"], expected.vectors["cluster"])
        assert images.lengths.tolist() == expected.lengths.tolist()
        assert images.lengths[2] == 1
        torch.testing.assert_close(images.sequences, expected.sequences, rtol=1e-5, atol=1e-6)
    assert found == [4, 4, 1]
    assert shown[:3] == [(4, 9), (8, 9), (9, 9)]
    (path,) = kept(data)
    assert np.array_equal(np.load(path), expected.vectors["cluster"])
    batch = next(corpus(data).read_by(model().config).training_batches(4, seed=0, epoch=0))
    assert torch.equal(batch.clusters, expected.vectors["cluster"][batch.image_ids])


def test_other_features_and_other_numbers_have_files_of_their_own(data: Path, found: list[int]) -> None:
    read = corpus(data).read_by(model().config)
    assert read.read_by(model().config) is read
    assert read.read_by(model(None).config).clusters is None
    read.read_by(model(2).config)
    features = np.load(data / "dev_ims.npy")
    features[5] += 1
    np.save(data / "dev_ims.npy", features)
    os.utime(data / "dev_ims.npy", ns=(1, 1))
    corpus(data).read_by(model().config)
    assert found == [9, 9, 9]
    assert len(kept(data)) == 3
    assert kept(data)[0].name.startswith("dev_clusters_2_")


@pytest.mark.parametrize("writable", [True, False])
def test_where_nothing_can_be_written_beside_the_features(
    data: Path, found: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    cache = tmp_path / "cache" / "crossret"
    monkeypatch.setattr(
        cluster_cache, "_is_writable", lambda place: place != data and writable and not place.mkdir(parents=True)
    )
    where = rf"in {cache}/dev_clusters_3_\w+\.npy" if writable else "for this process alone"
    with pytest.warns(UserWarning, match=rf"{data} cannot be written: its regions' clusters are kept {where}"):
        first = corpus(data).read_by(model().config)
    expected = cluster_regions(torch.from_numpy(np.load(data / "dev_ims.npy")), clusters=3)
    assert np.array_equal(first.clusters.of_regions, expected)
    assert not kept(data)
    assert len(kept(cache)) == writable
    if writable:  # and read from there, without a word
        assert np.array_equal(corpus(data).read_by(model().config).clusters.of_regions, expected)
        assert found == [9]


def test_of_two_at_a_time_one_waits_for_the_other(data: Path, found: list[int]) -> None:
    reading = [threading.Thread(target=lambda: corpus(data).read_by(model().config)) for _ in range(3)]
    for thread in reading:
        thread.start()
    for thread in reading:
        thread.join()
    assert found == [9]
    assert len(kept(data)) == 1
    assert sorted(path.name for path in data.iterdir() if path not in kept(data)) == ["dev_caps.txt", "dev_ims.npy"]


@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: a[:, :-1], lambda a: a + 3, lambda a: a - 1])
def test_a_file_of_something_else_is_named(data: Path, change: Any) -> None:
    corpus(data).read_by(model().config)
    (path,) = kept(data)
    np.save(path, change(np.load(path)))
    with pytest.raises(ValueError, match=rf"{path}: does not hold the 3 clusters of {data}/dev_ims\.npy; remove it"):
        corpus(data).read_by(model().config)


def test_clusters_that_do_not_fit_are_refused() -> None:
    regions, clusters = torch.randn(2, REGIONS, DIM), torch.zeros(2, REGIONS, dtype=torch.int64)
    with pytest.raises(ValueError, match="clusters were given, but this model's clusters are None"):
        model(None).encode_images(regions, clusters=clusters)
    with pytest.raises(ValueError, match=r"clusters must have shape \(2, 5\), got \(1, 5\)"):
        model().encode_images(regions, clusters=clusters[:1])
    with pytest.raises(ValueError, match="clusters must be numbers below 3, or -1 for no region"):
        model().encode_images(regions, clusters=clusters + 3)
