"""Heterogeneous attention of all pairs as docs/kernels.md §3 has it, in bounded runs of items and blocks of pairs.

What is made of each item once is PyTorch's; what pairs take is too in backend "torch", and else a fused kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossret_kernels.dense.op import Products
from crossret_kernels.heterogeneous_attention.first_layer import FirstLayerItems, attend_across, share
from crossret_kernels.heterogeneous_attention.kernels import KERNELS, fused_scores, in_front
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.pairs import (
    Layers,
    every_pair,
    nested,
    normalize_rows,
    of_listed,
    pairs_in_chunk,
    upwards,
)
from crossret_kernels.heterogeneous_attention.reference import heterogeneous_attention_reference
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.items import Limits, SharedScores
from crossret_kernels.padded.pairing import Pairing

SHARED_BYTES = 20 * 2**20  # of one side's items in a run, as the first layer takes them
# Bytes on a GPU, where launches count and not bytes of cache: 128 images of 36 regions, D = 1,024 by 8 heads fit.
GPU_BYTES = 448 * 2**20


@dataclass(frozen=True)
class _Heterogeneous(SharedScores):
    options: HeterogeneousOptions
    backend: str
    one_layer: bool

    @property
    def fused(self) -> bool:
        return self.one_layer and self.backend in KERNELS

    @property
    def products(self) -> Products:
        return Products(self.backend == "cpu", self.images.values.dtype == torch.bfloat16)

    def limits(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> Limits:
        heads, dim, widths = self.options.heads, parameters[-1].numel(), (self.images.width, self.captions.width)
        arrays = 2 * heads + 4  # (rows, D) of `FirstLayerItems`, and the rows themselves
        itemsize = parameters[-1].itemsize
        # Gradients double what is held. Kernels hold little, of any number of pairs; captions are shared
        # again for every run of images, so that images have the larger part. Of several layers the pairs hold most.
        alone = 1 if torch.is_grad_enabled() else 2
        parts = ((10, 2) if alone == 2 else (3, 1)) if self.fused else (2 * alone, 2 * alone)
        on_gpu = self.backend == "triton" or parameters[-1].device.type != "cpu"
        rows = [
            max(1, (GPU_BYTES if on_gpu else SHARED_BYTES * part // 4) // (itemsize * (arrays * dim + heads * width)))
            for part, width in zip(parts, widths, strict=True)
        ]
        chunk = alone * pairs_in_chunk(parameters[-1], sum(widths), heads)
        return Limits(rows, rows[0] * rows[1] if self.fused else chunk)

    def share(
        self, is_caption: bool, rows: Tensor, mask: Tensor, beside: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> FirstLayerItems:
        rows = safe_normalize(rows) if self.options.normalize else rows
        if self.fused and (self.captions if is_caption else self.images).mask is not None:
            rows, mask = in_front(rows, mask)
        options = self.options
        items = share(rows, mask, nested(parameters)[0], options.heads, options.lambda_attention, self.products)
        return items.floats() if self.fused else items

    def score(
        self, images: FirstLayerItems, captions: FirstLayerItems, pairing: Pairing, parameters: Sequence[Tensor],
        graph_alone: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if self.fused:
            inputs, halves = (images, captions, nested(parameters)[0], self.options), self.products.bfloat16
            return (fused_scores(self.backend, *inputs, halves, graph_alone=graph_alone),)
        first, *layers = nested(parameters)
        layer_options = self.options.lambda_attention, self.products
        regions = normalize_rows(attend_across(images, captions, *layer_options), first)
        words = normalize_rows(attend_across(captions, images, *layer_options).transpose(0, 1), first)
        count = regions.shape[:2]
        mask = torch.cat([images.mask.expand(*count, -1), captions.mask[:, None].expand(*count, -1)], 2)
        h, width = torch.cat([regions, words], 2).flatten(0, 1), regions.size(2)
        return (upwards(h, mask.flatten(0, 1), width, Layers(layers, self.options, self.products))[0].view(count).T,)

    def of_few(
        self, pairs: Tensor, tensors: Sequence[Tensor], needed: Sequence[bool], gradient: Tensor
    ) -> list[Tensor | None]:
        dtype = tensors[-1].dtype  # in which gradients of items are summed up
        leaves = [x.detach().to(dtype).requires_grad_(requires) for x, requires in zip(tensors, needed, strict=True)]
        images, captions = (x.with_values(y) for x, y in zip((self.images, self.captions), leaves, strict=False))
        with torch.enable_grad():
            scores = of_listed(images, captions, pairs, Layers(nested(leaves[2:]), self.options, self.products))[0]
            scores.backward(gradient.to(scores.dtype))
        return [
            (torch.zeros_like(x) if leaf.grad is None else leaf.grad.to(x.dtype)) if requires else None
            for x, leaf, requires in zip(tensors, leaves, needed, strict=True)
        ]

    def at_once(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        every = every_pair(self.images, self.captions)
        above = Layers(nested(parameters), self.options, Products())
        scores = of_listed(self.images, self.captions, every, above)[0]
        return (scores.view(len(self.images), len(self.captions)),)


def heterogeneous_attention_chunked(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor | None,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
    backend: str = "torch",
) -> tuple[Tensor, ...]:
    """Scores (n_images, n_captions) of at least one layer, or what `of_listed` makes of pairs, in bounded chunks.

    Fused kernels make all pairs of one layer; "cpu" makes others, and listed ones, by native products. A call that is
    traced or transformed takes all pairs as listed ones.
    """
    if not len(regions) or not len(words):
        return heterogeneous_attention_reference(regions, words, pairs, layers, options)
    call = _Heterogeneous(regions, words, None, options, backend, len(layers) == 1)
    if pairs is not None:
        return of_listed(regions, words, pairs, Layers(layers, options, call.products))
    return call.compute(*(x for layer in layers for x in layer))
