"""K-means over the regions of every image, which makes few regions of many (HAN: 100 → 32 centres)."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret.data.batches import check_lengths

# Of a block of images, their features and what is computed of them: larger ones leave the caches.
_BLOCK_BYTES = 16 * 2**20
# Squared distances that a product in float32 can tell: those above this part of both regions' squared norms, and above
# this number, below which squares lose digits.
_TOLD, _TOLD_AT_LEAST = 1e-3, 1e-30
_ROUNDING = 1e-12  # likewise in float64, with room for sums of thousands of squares


@torch.no_grad()
def cluster_regions(
    features: Tensor,
    lengths: Tensor | None = None,
    *,
    clusters: int,
    iterations: int = 100,
    tolerance: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cluster the regions of each image by k-means, with nothing random in it; no gradient flows back.

    The first centre is the region nearest to the image's mean, each next one the region farthest from its nearest
    centre (k-means++ with its draw replaced by the most probable one). Then each region goes to its nearest centre and
    each centre to the mean of its regions, until no region of the image moves or ``iterations`` are done. The first of
    equals is taken everywhere; a centre that loses all its regions stays where it is.

    Distances come from products of regions with each other, once an image: one (R, D)·(D, R) product, then
    (R, R)·(R, clusters) an iteration. The first is in float64 for an image that has regions too near each other, too
    far out, too large or too small to be told apart in float32. Images are taken in blocks, so memory beside the
    results is bounded.

    Args:
        features: (n, R, D) floating point; computed in float32 at least. An image with one that is not finite gets
            one centre, the mean of its regions, which is not finite either.
        lengths: (n,) int64, regions of each image, each in 1..R; None where all have R.
        clusters: centres of an image, at least 1.
        iterations: the most that are done, at least 1.
        tolerance: regions count as the same, and get no centre each, where their squared distance is at most this
            part of the median squared distance of the image's regions to the first centre, which a few regions far
            out do not change; and always where no more than float64's rounding sets them apart.

    Returns:
        centres: (n, clusters, D) in the dtype of ``features``, zero behind an image's number of centres.
        assignment: (n, R) int64, each region's centre, and -1 behind the image's length.
        counts: (n,) int64, centres of each image: ``clusters``, or its number of different regions if that is less.

    Raises:
        TypeError: ``features`` are not floating point, or ``lengths`` not int64.
        ValueError: a shape does not fit, a length or a number is out of range; names the argument and the image.
    """
    if not features.is_floating_point():
        raise TypeError(f"features must be floating point, got {features.dtype}")
    if features.dim() != 3 or 0 in features.shape[1:]:
        raise ValueError(f"features must have shape (n, R, D), R and D at least 1, got {tuple(features.shape)}")
    n, longest, dim = features.shape
    for name, number in (("clusters", clusters), ("iterations", iterations)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    if lengths is None:
        lengths = torch.full((n,), longest, dtype=torch.int64, device=features.device)
    if lengths.dtype != torch.int64:
        raise TypeError(f"lengths must be int64, got {lengths.dtype}")
    if lengths.shape != (n,):
        raise ValueError(f"lengths must have shape ({n},), one an image, got {tuple(lengths.shape)}")
    check_lengths(lengths, longest)
    centres = features.new_zeros(n, clusters, dim)
    assignment = torch.empty(n, longest, dtype=torch.int64, device=features.device)
    counts = torch.empty(n, dtype=torch.int64, device=features.device)
    block = max(1, _BLOCK_BYTES // (4 * longest * (dim + 2 * longest + 8 * clusters)))
    for begin in range(0, n, block):
        part = slice(begin, begin + block)
        centres[part], assignment[part], counts[part] = _cluster_block(
            features[part], lengths[part], clusters, iterations, tolerance
        )
    return centres, assignment, counts


def _cluster_block(
    features: Tensor, lengths: Tensor, clusters: int, iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    valid = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
    regions = features.to(torch.promote_types(features.dtype, torch.float32))
    if not bool(valid.all()):
        regions = regions.masked_fill(~valid[:, :, None], 0)  # what lies behind may be NaN
    products = _products(regions, valid)
    first, counts = _first_centres(products, valid, clusters, tolerance)
    exists = torch.arange(clusters, device=features.device) < counts[:, None]
    # A centre is a mean of regions: its weights are (R,), and distances to it follow from the regions' products.
    weights = torch.zeros_like(products[:, :, :1]).expand(-1, -1, clusters).contiguous()
    weights.scatter_(1, first[:, None], 1.0)
    assignment, moving = torch.full_like(valid, -1, dtype=torch.int64), torch.arange(len(features))
    moving = moving.to(features.device)
    for iteration in range(iterations + 1):
        nearest = _nearest(products[moving], weights[moving], exists[moving]).masked_fill_(~valid[moving], -1)
        changed = (nearest != assignment[moving]).any(1)
        assignment[moving] = nearest
        moving = moving[changed]
        if iteration == iterations or not len(moving):
            break
        weights[moving] = _means(nearest[changed], weights[moving])
    centres = torch.bmm(weights.transpose(1, 2).to(regions.dtype), regions)
    return centres.masked_fill_(~exists[:, :, None], 0).to(features.dtype), assignment, counts


def _products(regions: Tensor, valid: Tensor) -> Tensor:
    """Products (n, R, R) float64 of regions (n, R, D) with each other, about an origin; 0 where one is not valid.

    Distances do not depend on the origin. About the mean they lose few digits, unless a region far out draws it away:
    then the region nearest to the mean is a better one. What follows is short beside the product: in float64 it leaves
    the rounding of the product alone to matter.
    """
    products = _products_about(_mean(regions, valid), regions)
    squares = products.diagonal(dim1=1, dim2=2)
    sums = squares[:, :, None] + squares[:, None]
    told = sums - 2 * products > _TOLD * sums + _TOLD_AT_LEAST  # false where squares are infinite or NaN
    pairs = valid[:, :, None] & valid[:, None]
    apart = pairs & ~torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
    again = (apart & ~told).flatten(1).any(1).nonzero()[:, 0].tolist()
    products = products.double()
    for image in again:  # one by one: an image stays in the caches
        wide, there = regions[image : image + 1].double(), valid[image : image + 1]
        squares = (wide - _mean(wide, there)).square_().sum(2).masked_fill_(~there, torch.inf)
        products[image] = _products_about(wide[:, int(squares.argmin())], wide)[0]
    return products.masked_fill_(~pairs, 0)


def _mean(regions: Tensor, valid: Tensor) -> Tensor:
    return regions.sum(1, keepdim=True) / valid.sum(1)[:, None, None]


def _products_about(origin: Tensor, regions: Tensor) -> Tensor:
    offsets = regions - origin
    return torch.bmm(offsets, offsets.transpose(1, 2))


def _first_centres(products: Tensor, valid: Tensor, clusters: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Regions (n, clusters) that centres start from, and how many of these (n,) are different."""
    images = torch.arange(len(products), device=products.device)
    squares = products.diagonal(dim1=1, dim2=2)
    chosen = squares.masked_fill(~valid, torch.inf).argmin(1)
    first = [chosen]
    counts = torch.ones_like(chosen)
    distances = torch.full_like(squares, torch.inf).masked_fill_(~valid, -torch.inf)
    same = torch.zeros_like(squares[:, 0])
    for number in range(1, clusters):
        sums = squares + squares[images, chosen][:, None]
        to_chosen = sums - 2 * products[images, chosen]
        to_chosen.masked_fill_(to_chosen <= _ROUNDING * sums, 0)
        distances = torch.minimum(distances, to_chosen)
        if number == 1:
            ordered = distances.masked_fill(~valid, torch.inf).sort(1).values
            same = tolerance * ordered.gather(1, (valid.sum(1, keepdim=True) - 1) // 2)[:, 0]
        farthest, chosen = distances.max(1)
        counts += farthest > same
        first.append(chosen)
    return torch.stack(first, dim=1), counts


def _nearest(products: Tensor, weights: Tensor, exists: Tensor) -> Tensor:
    """Each region's nearest centre (n, R): argmin of ‖c‖² - 2 x·c, which is ‖x - c‖² but for ‖x‖²."""
    with_centres = torch.bmm(products, weights)
    squares = (weights * with_centres).sum(1, keepdim=True)
    return (squares - 2 * with_centres).masked_fill_(~exists[:, None], torch.inf).argmin(2)


def _means(assignment: Tensor, weights: Tensor) -> Tensor:
    """Weights (n, R, clusters) of the means of assigned regions; those of before where a centre has none."""
    members = torch.zeros_like(weights).scatter_(2, assignment.clamp(min=0)[:, :, None], 1.0)
    members.mul_((assignment >= 0)[:, :, None])
    sizes = members.sum(1, keepdim=True)
    return torch.where(sizes > 0, members / sizes.clamp(min=1), weights)
