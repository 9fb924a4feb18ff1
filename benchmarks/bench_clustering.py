"""K-means of an image's regions, 100 to 32 centres: all images at once, and scikit-learn image by image."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.conftest import THREADS
from crossret.data.clustering import centres_of, cluster_regions

IMAGES, REGIONS, DIM, CLUSTERS = 128, 100, 2048, 32
LOOPED = 8  # images of the loop: its time is for an image


def features(n: int, dim: int) -> torch.Tensor:
    """Regions (n, R, dim) around forty places an image, not negative, as a detector's are."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(n, 40, dim, generator=generator)
    member = torch.randint(0, 40, (n, REGIONS, 1), generator=generator).expand(-1, -1, dim)
    return (places.gather(1, member) + 0.5 * torch.randn(n, REGIONS, dim, generator=generator)).relu()


def clustered(regions: torch.Tensor) -> torch.Tensor:
    centres, _ = centres_of(regions, cluster_regions(regions, clusters=CLUSTERS), CLUSTERS)
    return centres


@pytest.mark.parametrize("threads", [1, THREADS])
@pytest.mark.parametrize("name", ["batched", "scikit-learn"])
def test_clustering(benchmark: Any, name: str, threads: int) -> None:
    n, dim = (IMAGES, DIM) if not benchmark.disabled else (2, 16)
    n = min(n, LOOPED) if name == "scikit-learn" else n
    regions = features(n, dim)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    benchmark.group = f"k-means, {REGIONS} x {dim} to {CLUSTERS}, {threads} threads"
    benchmark.extra_info.update(images=n, threads=threads, implementation=name)
    try:
        if name == "batched":
            benchmark.pedantic(clustered, (regions,), rounds=5, warmup_rounds=1)
            return
        cluster = pytest.importorskip("sklearn.cluster")
        limits = pytest.importorskip("threadpoolctl").threadpool_limits
        images = regions.numpy()
        with limits(threads):
            benchmark.pedantic(lambda: [cluster.KMeans(CLUSTERS, n_init=1).fit(image) for image in images], rounds=5)
    finally:
        torch.set_num_threads(before)
