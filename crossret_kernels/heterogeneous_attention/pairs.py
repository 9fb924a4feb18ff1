"""Listed pairs, and what pairs of any kind go through above the first layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from crossret_kernels.heterogeneous_attention.layers import attend, project
from crossret_kernels.heterogeneous_attention.matching import PairFeatures, match_globally, match_locally
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import checkable
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.chunked import recomputed

CHUNK_BYTES = 4 * 2**20  # of a chunk's features and logits: what is made of them stays near the caches


def every_pair(regions: Ragged, words: Ragged) -> Tensor:
    """(n_images · n_captions, 2) int64, image by image."""
    device = regions.values.device
    return torch.cartesian_prod(torch.arange(len(regions), device=device), torch.arange(len(words), device=device))


def of_pairs(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
) -> tuple[Tensor, ...]:
    """Scores (P,) and, of the local matching, weights (P, Q, C) and relevances (P, Q), chunk by chunk.

    Pairs are taken by image, so that those of a chunk share its first queries, keys and values.
    """
    widths = regions.width, words.width

    def score(v_values: Tensor, e_values: Tensor, chunk: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        first, *others = nested(parameters)
        projected, masks = [], []
        for values, side, items, width in zip(
            (v_values, e_values), (regions, words), chunk.unbind(1), widths, strict=True
        ):
            places = torch.arange(len(items), device=items.device)
            if checkable():
                items, places = items.unique(return_inverse=True)
            rows, mask = prepared(replace(side, values=values), items, width, options)
            projected.append(project(rows, first)[places])
            masks.append(mask[places])
        h = attend(torch.cat(projected, 1), torch.cat(masks, 1), first, options)
        features = PairFeatures(h[:, : widths[0]], h[:, widths[0] :], masks[0], masks[1])
        return upwards(features, others, options)

    order = pairs[:, 0].argsort(stable=True)
    size = pairs_in_chunk(regions.values, sum(widths), options.heads)
    flat = [parameter for layer in layers for parameter in layer]  # torch.compile sees them as arguments alone
    scored = [recomputed(score, regions.values, words.values, chunk, *flat) for chunk in pairs[order].split(size)]
    places = order.argsort()
    return tuple(torch.cat(parts)[places] for parts in zip(*scored, strict=True))


def upwards(
    pairs: PairFeatures, layers: Sequence[HeterogeneousLayer], options: HeterogeneousOptions
) -> tuple[Tensor, ...]:
    """Scores (P,) after the other layers; weights and relevances too of the local matching."""
    if layers:
        h, mask = torch.cat([pairs.regions, pairs.words], 1), torch.cat([pairs.region_mask, pairs.word_mask], 1)
        for layer in layers:
            h = attend(project(h, layer), mask, layer, options)
        width = pairs.regions.size(1)
        pairs = pairs._replace(regions=h[:, :width], words=h[:, width:])
    return (match_globally(pairs),) if options.matching == "global" else match_locally(pairs, options)


def prepared(side: Ragged, items: Tensor, width: int, options: HeterogeneousOptions) -> tuple[Tensor, Tensor]:
    """These items, padded, in the precision that scores have, and their mask."""
    rows, mask = side.gathered(items, width)
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return safe_normalize(rows) if options.normalize else rows, mask


def pairs_in_chunk(features: Tensor, rows: int, heads: int) -> int:
    """How many pairs of so many rows, regions and words together, make a chunk by their features and their logits.

    At least one: a single pair that is larger is a chunk of its own, and goes beyond the bound.
    """
    itemsize = torch.promote_types(features.dtype, torch.float32).itemsize
    return max(1, CHUNK_BYTES // (itemsize * rows * (features.size(-1) + heads * rows)))


def nested(parameters: Sequence[Tensor]) -> list[HeterogeneousLayer]:
    """Layers of their parameters one after the other."""
    fields = len(HeterogeneousLayer._fields)
    return [HeterogeneousLayer(*parameters[first : first + fields]) for first in range(0, len(parameters), fields)]
