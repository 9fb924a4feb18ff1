"""Backend "torch" of heterogeneous attention: docs/kernels.md §3, in bounded groups of items and chunks of pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crossret_kernels.heterogeneous_attention.groups import Group
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.pairs import every_pair, of_pairs
from crossret_kernels.heterogeneous_attention.reference import heterogeneous_scores_reference
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import checkable

SHARED_BYTES = 24 * 2**20  # of one side's items in a group, as the first layer takes them


def heterogeneous_scores_chunked(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor | None,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
) -> Tensor:
    """Scores (n_images, n_captions) or (P,) of at least one layer; no features of a pair outlive its chunk.

    Groups go by lengths, whose values a traced call may not look at: it takes all pairs as listed ones.
    """
    if not len(regions) or not len(words):
        return heterogeneous_scores_reference(regions, words, pairs, layers, options)
    if pairs is not None:
        return of_pairs(regions, words, pairs, layers, options)[0]
    if not checkable():
        scores = of_pairs(regions, words, every_pair(regions, words), layers, options)[0]
        return scores.view(len(regions), len(words))
    arrays = 2 * options.heads + 4  # (rows, D) in `Shared`, and the rows themselves
    itemsize = layers[0].norm_bias.itemsize
    row, logit = itemsize * arrays * regions.values.size(-1), itemsize * options.heads
    images, captions = (_grouped(side, row, logit) for side in (regions, words))
    parameters = [parameter for layer in layers for parameter in layer]
    return torch.cat(
        [torch.cat([Group(image, caption, options).scores(*parameters) for caption in captions], 1) for image in images]
    )


def _grouped(side: Ragged, row: int, logit: int) -> list[Ragged]:
    """Successive items in groups of equal size, as few as stay within the bound, of one item at least.

    A row takes `row` bytes, and `logit` for each row of its own item.
    """
    lengths = side.lengths.tolist()
    longest = max(1, *lengths)
    most = max(1, SHARED_BYTES // (longest * (row + logit * longest)))
    count = -(-len(lengths) // most)
    size = -(-len(lengths) // count)
    groups = []
    for first in range(0, len(lengths), size):
        own = lengths[first : first + size]
        rows = side.sliced(first, first + len(own), side.width).packed()
        groups.append(Ragged(rows, torch.tensor([0, *own]).cumsum(0), None))
    return groups
