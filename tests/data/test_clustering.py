"""K-means over regions: the same rule in NumPy, image by image; padding, equal regions, memory, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crossret.data.clustering import centres_of, cluster_regions
from tests.kernels.strategies import examples


def clustered(
    features: torch.Tensor, lengths: Any = None, *, clusters: int, **options: Any
) -> tuple[torch.Tensor, ...]:
    """Centres, assignment and counts."""
    assignment = cluster_regions(features, lengths, clusters=clusters, **options)
    centres, counts = centres_of(features, assignment, clusters)
    return centres, assignment, counts


def by_hand(
    regions: NDArray[np.float64], clusters: int, iterations: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One image (R, D) → (centres, D) and (R,)."""
    centres = [regions[((regions - regions.mean(0)) ** 2).sum(1).argmin()]]
    spread = np.sort(((regions - centres[0]) ** 2).sum(1))[(len(regions) - 1) // 2]
    while len(centres) < clusters:
        distances = ((regions[:, None] - np.stack(centres)) ** 2).sum(2).min(1)
        if distances.max() <= 1e-5 * spread:
            break
        centres.append(regions[distances.argmax()])
    assignment = ((regions[:, None] - np.stack(centres)) ** 2).sum(2).argmin(1)

    def means() -> NDArray[np.float64]:
        return np.stack([regions[assignment == cluster].mean(0) for cluster in np.unique(assignment)])

    for _ in range(iterations):
        assignment = np.unique(assignment, return_inverse=True)[1]
        before, assignment = assignment, ((regions[:, None] - means()) ** 2).sum(2).argmin(1)
        if (before == assignment).all():
            break
    return means(), np.unique(assignment, return_inverse=True)[1]


@given(
    # Of two regions, both are as near to their mean.
    lengths=st.lists(st.integers(1, 12).filter(lambda length: length != 2), min_size=1, max_size=4),
    clusters=st.integers(1, 6),
    iterations=st.sampled_from([1, 2, 100]),
    scale=st.sampled_from([1e-30, 1e-18, 1e-3, 1.0, 1e4, 1e18, 1e37]),
    offset=st.sampled_from([0.0, 3.0]),
    block=st.sampled_from([1, 2**20]),  # bytes
    seed=st.integers(0, 10**6),
)
@example(lengths=[1, 10], clusters=1, iterations=1, scale=1e37, offset=3.0, block=1, seed=0)
@examples(60)
def test_centres_are_those_of_the_rule(
    lengths: list[int], clusters: int, iterations: int, scale: float, offset: float, block: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    clusters = min(clusters, max(lengths) + 1)
    features = scale * (rng.standard_normal((len(lengths), max(lengths) + 1, 5)) + offset)
    narrow = features.astype(np.float32)
    padded = narrow.copy()
    for item, length in enumerate(lengths):
        padded[item, length:] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossret.data.clustering._BLOCK_BYTES", block)
        centres, assignment, counts = clustered(
            torch.from_numpy(padded), torch.tensor(lengths), clusters=clusters, iterations=iterations
        )
    assert centres.shape == (len(lengths), clusters, 5)
    for item, length in enumerate(lengths):
        means, nearest = by_hand(narrow[item, :length].astype(np.float64), clusters, iterations)
        assert counts[item] == len(means)
        assert assignment[item, :length].tolist() == nearest.tolist()
        assert (assignment[item, length:] == -1).all()
        np.testing.assert_allclose(centres[item, : len(means)], means, rtol=1e-5, atol=2e-5 * scale)
        assert not centres[item, len(means) :].any()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_image(number: float) -> None:
    features = torch.randn(2, 12, 5)
    expected = clustered(features, clusters=4)
    features[0, 3, 2] = number
    centres, assignment, counts = clustered(features, clusters=4)
    torch.testing.assert_close(centres[0, 0], features[0].mean(0), equal_nan=True)
    assert not assignment[0].any()
    assert counts.tolist() == [1, 4]
    torch.testing.assert_close(centres[1], expected[0][1])


def test_tolerance_is_of_the_median_squared_distance() -> None:
    features = torch.tensor([[[0.0], [1.0], [1.1], [-1.0], [-1.1], [1000.0], [-1000.0]]])  # the median is 1.21
    assert clustered(features, clusters=7)[2].tolist() == [7]
    assert clustered(features, clusters=7, tolerance=0.0082)[2].tolist() == [7]  # 0.01 / 1.21 = 0.00826
    assert clustered(features, clusters=7, tolerance=0.0083)[2].tolist() == [5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_and_gradients(dtype: torch.dtype) -> None:
    features = torch.randn(2, 9, 5).to(dtype).requires_grad_()
    centres, assignment, _ = clustered(features, clusters=3)
    assert centres.dtype == dtype
    assert not centres.requires_grad
    means, nearest = by_hand(features[1].detach().double().numpy(), 3, 100)
    assert assignment[1].tolist() == nearest.tolist()
    torch.testing.assert_close(centres[1].double(), torch.from_numpy(means), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": torch.zeros(2, 3)}, r"features must have shape \(n, R, D\)"),
        ({"lengths": torch.tensor([2])}, r"lengths must have shape \(2,\), one an image"),
        ({"lengths": torch.tensor([3, 4])}, r"lengths\[1\]"),
        ({"clusters": 4}, "clusters must be 1 to the 3 regions of an image, not 4"),
        ({"iterations": 0}, "iterations must be at least 1, not 0"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clustered(**{"features": torch.zeros(2, 3, 4), "clusters": 2, **changes})
