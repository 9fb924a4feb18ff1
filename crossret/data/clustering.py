"""K-means over the regions of every image, which makes few regions of many (HAN: 100 → 32 centres)."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret.data.batches import check_lengths

_BLOCK_BYTES = 16 * 2**20  # bytes of images clustered together: more would leave the caches
_ROUNDING = 1e-12  # squared distances up to this part of both squared norms are none, but float64's rounding


@torch.no_grad()
def cluster_regions(
    features: Tensor,
    lengths: Tensor | None = None,
    *,
    clusters: int,
    iterations: int = 100,
    tolerance: float = 1e-5,
) -> Tensor:
    """Cluster the regions of each image by k-means, with nothing random in it.

    The first centre is the region nearest to the image's mean, each next one the region farthest from its nearest
    centre (k-means++ with its draw replaced by the most probable one). Then each region goes to its nearest centre and
    each centre to the mean of its regions (Lloyd), until no region of the image moves or ``iterations`` are done. The
    first of equals is taken everywhere. A centre that loses all its regions is one of none from then on.

    An image gets the same clusters whatever images it is computed with. Distances are those of float64, from the
    products of its regions with each other: a centre is a mean of regions, and so are its products. Images are taken in
    blocks, so that memory is bounded.

    Args:
        features: (n, R, D) floating point. An image with one that is not finite gets one cluster of all its regions.
        lengths: (n,) int64, regions of each image, each in 1..R; None where all have R.
        clusters: centres of an image, 1 to R.
        iterations: the most that are done, at least 1.
        tolerance: regions count as the same, and get no centre each, where their squared distance is at most this
            part of the median squared distance of the image's regions to the first centre, which a few regions far
            out do not change; and always where no more than float64's rounding sets them apart.

    Returns:
        (n, R) int64, the number of each region's cluster, and -1 behind the image's length. An image with fewer
        different regions has fewer clusters; they are numbered from 0 without gaps. See ``centres_of``.

    Raises:
        TypeError: ``features`` are not floating point, or ``lengths`` not int64.
        ValueError: a shape does not fit, a length or a number is out of range; names the argument and the image.
    """
    if not features.is_floating_point():
        raise TypeError(f"features must be floating point, got {features.dtype}")
    if features.dim() != 3 or 0 in features.shape[1:]:
        raise ValueError(f"features must have shape (n, R, D), R and D at least 1, got {tuple(features.shape)}")
    n, longest, dim = features.shape
    if not 1 <= clusters <= longest:
        raise ValueError(f"clusters must be 1 to the {longest} regions of an image, not {clusters}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
    if lengths is None:
        lengths = torch.full((n,), longest, dtype=torch.int64, device=features.device)
    if lengths.shape != (n,):
        raise ValueError(f"lengths must have shape ({n},), one an image, got {tuple(lengths.shape)}")
    check_lengths(lengths, longest)
    valid = torch.arange(longest, device=features.device) < lengths[:, None]
    block = max(1, _BLOCK_BYTES // (8 * longest * (dim + 2 * longest + 4 * clusters)))
    parts = [
        _cluster(regions, there, clusters, iterations, tolerance)
        for regions, there in zip(features.split(block), valid.split(block), strict=True)
    ]
    return torch.cat(parts) if parts else torch.empty_like(valid, dtype=torch.int64)


@torch.no_grad()
def centres_of(features: Tensor, assignment: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """The means of the regions of each cluster; no gradient flows back.

    Args:
        features: (n, R, D) floating point.
        assignment: (n, R) int64, as ``cluster_regions`` gives them for no more than so many ``clusters``.

    Returns:
        centres: (n, clusters, D) in the dtype of ``features``, computed in float32 at least; zero behind an image's
            number of centres.
        counts: (n,) int64, centres of each image.
    """
    regions = features.to(torch.promote_types(features.dtype, torch.float32))
    regions = regions.masked_fill(assignment[:, :, None] < 0, 0)  # padding may be NaN
    members = _members(assignment, clusters, regions.dtype)
    sizes = members.sum(1)
    centres = torch.bmm((members / sizes.clamp(min=1)[:, None]).mT, regions)  # a sum might be beyond the dtype's range
    return centres.masked_fill_(sizes[:, :, None] == 0, 0).to(features.dtype), assignment.amax(1) + 1


def _cluster(features: Tensor, valid: Tensor, clusters: int, iterations: int, tolerance: float) -> Tensor:
    regions = features.double()
    if not bool(valid.all()):
        regions = regions.masked_fill(~valid[:, :, None], 0)  # padding may be NaN
    products = _products(regions, valid)
    centres, exists = _first_centres(products, valid, clusters, tolerance)
    # Weights (R,) of the regions whose mean a centre is: distances follow from the regions' products.
    weights = torch.zeros_like(products[:, :, :1]).repeat(1, 1, clusters).scatter_(1, centres[:, None], 1.0)
    assignment = _nearest(products, weights, exists)
    for _ in range(iterations):
        members = _members(assignment.masked_fill(~valid, -1), clusters, products.dtype)
        sizes = members.sum(1, keepdim=True)
        before, assignment = assignment, _nearest(products, members / sizes.clamp(min=1), sizes[:, 0] > 0)
        if torch.equal(assignment, before):
            break
    used = _members(assignment.masked_fill(~valid, -1), clusters, torch.int64).amax(1)
    return (used.cumsum(1) - 1).gather(1, assignment).masked_fill_(~valid, -1)


def _products(regions: Tensor, valid: Tensor) -> Tensor:
    """Products (n, R, R) of regions (n, R, D) about that nearest to the image's mean, on which no distance depends.

    About it they lose few digits: about the mean itself, which one region far out draws away, they may lose them all.
    Regions that are not valid have to be zero, and have some products or other.
    """
    squares = (regions - regions.sum(1, keepdim=True) / valid.sum(1)[:, None, None]).square_().sum(2)
    nearest = squares.masked_fill_(~valid, torch.inf).argmin(1)
    offsets = regions - regions[torch.arange(len(regions), device=regions.device), nearest][:, None]
    return torch.bmm(offsets, offsets.mT)


def _first_centres(products: Tensor, valid: Tensor, clusters: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Regions (n, clusters) that centres start from, and which of them (n, clusters) are different from those before.

    The first is the one that products are about, whose own are zero.
    """
    images = torch.arange(len(products), device=products.device)
    squares = products.diagonal(dim1=1, dim2=2)
    distances = squares.masked_fill(~valid, -torch.inf)
    same = tolerance * squares.masked_fill(~valid, torch.nan).nanmedian(1).values
    chosen = [squares.masked_fill(~valid, torch.inf).argmin(1)]
    exists = [torch.ones_like(images, dtype=torch.bool)]
    for _ in range(1, clusters):
        farthest, region = distances.max(1)
        chosen.append(region)
        exists.append(exists[-1] & (farthest > same))
        sums = squares + squares[images, region][:, None]
        to_region = sums - 2 * products[images, region]
        distances = torch.minimum(distances, to_region.masked_fill_(to_region <= _ROUNDING * sums, 0))
    return torch.stack(chosen, dim=1), torch.stack(exists, dim=1)


def _nearest(products: Tensor, weights: Tensor, exists: Tensor) -> Tensor:
    """Each region's nearest centre (n, R): argmin of ‖c‖² - 2 x·c, which is ‖x - c‖² but for ‖x‖²."""
    with_centres = torch.bmm(products, weights)
    squares = (weights * with_centres).sum(1, keepdim=True)
    return (squares - 2 * with_centres).masked_fill_(~exists[:, None], torch.inf).argmin(2)


def _members(assignment: Tensor, clusters: int, dtype: torch.dtype) -> Tensor:
    """Ones (n, R, clusters) where a region is of a cluster; nowhere for -1."""
    numbers = torch.arange(clusters, device=assignment.device)
    return (assignment[:, :, None] == numbers).to(dtype)
