"""Backend "torch" of heterogeneous attention: docs/kernels.md §3, in bounded runs of items and blocks of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossret_kernels.heterogeneous_attention.layers import normalize_rows
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.pairs import every_pair, nested, of_listed, pairs_in_chunk, upwards
from crossret_kernels.heterogeneous_attention.reference import heterogeneous_attention_reference
from crossret_kernels.heterogeneous_attention.shared import FirstLayer, attend_across, share
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.items import Limits, Shared
from crossret_kernels.padded.pairing import Pairing

SHARED_BYTES = 24 * 2**20  # of one side's items in a run, as the first layer takes them


@dataclass(frozen=True)
class _Heterogeneous(Shared):
    options: HeterogeneousOptions

    def limits(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> Limits:
        heads, dim, widths = self.options.heads, parameters[-1].numel(), (self.images.width, self.captions.width)
        arrays = 2 * heads + 4  # (rows, D) of `FirstLayer`, and the rows themselves
        itemsize = parameters[-1].itemsize
        rows = [max(1, SHARED_BYTES // (itemsize * (arrays * dim + heads * width))) for width in widths]
        return Limits(rows, pairs_in_chunk(parameters[-1], sum(widths), heads))

    def share(
        self, of_captions: bool, rows: Tensor, mask: Tensor, beside: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> FirstLayer:
        rows = safe_normalize(rows) if self.options.normalize else rows
        return share(rows, mask, nested(parameters)[0], self.options.heads, self.options.lambda_attention)

    def score(
        self, images: FirstLayer, captions: FirstLayer, pairing: Pairing, parameters: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        first, *others = nested(parameters)
        regions = normalize_rows(attend_across(images, captions, self.options.lambda_attention), first)
        across = attend_across(captions, images, self.options.lambda_attention).transpose(0, 1)
        words = normalize_rows(across, first)
        count = regions.shape[:2]
        mask = torch.cat([images.mask.expand(*count, -1), captions.mask[:, None].expand(*count, -1)], 2)
        h, width = torch.cat([regions, words], 2).flatten(0, 1), regions.size(2)
        return (upwards(h, mask.flatten(0, 1), width, others, self.options)[0].view(count).T,)

    def at_once(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        every = every_pair(self.images, self.captions)
        scores = of_listed(self.images, self.captions, every, nested(parameters), self.options)[0]
        return (scores.view(len(self.images), len(self.captions)),)


def heterogeneous_attention_chunked(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor | None,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
) -> tuple[Tensor, ...]:
    """Scores (n_images, n_captions) of at least one layer, or what `of_listed` makes of pairs, in bounded chunks.

    A call that is traced or transformed takes all pairs as listed ones.
    """
    if not len(regions) or not len(words):
        return heterogeneous_attention_reference(regions, words, pairs, layers, options)
    if pairs is not None:
        return of_listed(regions, words, pairs, layers, options)
    return _Heterogeneous(regions, words, None, options).made(*(x for layer in layers for x in layer))
