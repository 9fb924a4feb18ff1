"""All pairs of a group of images and a group of captions: scores, and gradients that keep no pair's features."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from crossret_kernels.heterogeneous_attention.layers import normalize_rows
from crossret_kernels.heterogeneous_attention.matching import PairFeatures
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.pairs import nested, pairs_in_chunk, prepared, upwards
from crossret_kernels.heterogeneous_attention.shared import Shared, attend_across, share
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.chunked import recomputed
from crossret_kernels.torch_internals import transformed


@dataclass(frozen=True)
class Group:
    """Images and captions, taken by their lengths so that little of a chunk is padding."""

    images: Ragged
    captions: Ragged
    options: HeterogeneousOptions

    @cached_property
    def orders(self) -> tuple[Tensor, Tensor]:
        """Images and captions by their lengths, (n,) int64 each."""
        by_image, by_caption = (
            side.lengths.argsort(stable=True).to(side.values.device) for side in (self.images, self.captions)
        )
        return by_image, by_caption

    def scores(self, *parameters: Tensor) -> Tensor:
        """(n_images, n_captions) of the layers that have these parameters one after the other.

        What the first layer shares of an item is made once for the group; chunks of pairs are made again in the
        backward pass. Under `torch.func`, which cannot do so, and for second derivatives all of them are kept.
        """
        tensors = (self.images.values, self.captions.values, *parameters)
        if transformed():
            return self.made(*tensors)
        scores: Tensor = cast(Any, _Scores).apply(self, *tensors)
        return scores

    def made(self, regions: Tensor, words: Tensor, *parameters: Tensor) -> Tensor:
        """The scores, by operations that autograd knows."""
        layers = nested(parameters)
        images, captions = self._shared(regions, words, layers[0])
        by_length = torch.cat([torch.cat([self._chunk(v, e, layers) for e in captions], 1) for v in images])
        rows, columns = (order.argsort() for order in self.orders)
        return by_length[rows][:, columns]

    def accumulate(self, grad_scores: Tensor, *leaves: Tensor) -> None:
        """Adds the gradients to those of `leaves`, regions, words and parameters: chunk by chunk, each made once more.

        Of what items share gradients are gathered over all chunks, and go down to the leaves once.
        """
        layers = nested(leaves[2:])
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        with torch.enable_grad():
            shared = self._shared(leaves[0], leaves[1], layers[0])
        images, captions = ([run.cut() for run in side] for side in shared)
        by_image, by_caption = self.orders
        rows = grad_scores[by_image][:, by_caption].split([len(run.mask) for run in images])
        for v, row in zip(images, rows, strict=True):
            for e, gradient in zip(captions, row.split([len(run.mask) for run in captions], 1), strict=True):
                inputs = [tensor for tensor in (*v, *e, *leaves[2:]) if tensor.requires_grad]
                with torch.enable_grad():
                    scores = self._chunk(v, e, layers)
                torch.autograd.backward(scores, gradient, inputs=inputs)
        above = [
            (tensor, own.grad)
            for side, cuts in zip(shared, (images, captions), strict=True)
            for run, cut in zip(side, cuts, strict=True)
            for tensor, own in zip(run, cut, strict=True)
            if own.requires_grad
        ]
        tensors, gradients = zip(*above, strict=True) if above else ((), ())
        if tensors:
            torch.autograd.backward(tensors, gradients, inputs=wanted)

    def _shared(self, regions: Tensor, words: Tensor, first: HeterogeneousLayer) -> tuple[list[Shared], list[Shared]]:
        """What the first layer shares, in runs that two by two make a chunk."""
        size = math.isqrt(pairs_in_chunk(regions, self.images.width + self.captions.width, self.options.heads))
        runs = []
        for side, order, values in zip((self.images, self.captions), self.orders, (regions, words), strict=True):
            width = side.width

            def prepare(values: Tensor, side: Ragged = side, order: Tensor = order, width: int = width) -> Shared:
                items, mask = prepared(replace(side, values=values), order, width, self.options)
                return share(items, mask, first, self.options.heads, self.options.lambda_attention)

            lengths = side.lengths.sort().values.split(size)
            parts = recomputed(prepare, values).split(size)
            runs.append([part.narrowed(max(1, int(own.max()))) for part, own in zip(parts, lengths, strict=True)])
        return runs[0], runs[1]

    def _chunk(self, images: Shared, captions: Shared, layers: list[HeterogeneousLayer]) -> Tensor:
        """Scores (images, captions) of two runs."""
        first, weight = layers[0], self.options.lambda_attention
        regions = normalize_rows(attend_across(images, captions, weight), first)
        across = attend_across(captions, images, weight).transpose(0, 1).contiguous()
        words = normalize_rows(across, first)
        count = regions.shape[:2]
        masks = images.mask.expand(*count, -1), captions.mask[:, None].expand(*count, -1)
        pairs = PairFeatures(*(side.flatten(0, 1) for side in (regions, words, *masks)))
        return upwards(pairs, layers[1:], self.options)[0].view(count).T


class _Scores(torch.autograd.Function):
    """torch's own checkpoints, one in another, would keep what they make again until the whole pass is over."""

    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Tensor) -> Tensor:
        device_type = tensors[0].device.type
        ctx.group = replace(group, images=group.images.without_values(), captions=group.captions.without_values())
        ctx.autocast = {"device_type": device_type, "enabled": False}
        if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
            ctx.autocast |= {"enabled": True, "dtype": torch.get_autocast_dtype(device_type)}
        ctx.save_for_backward(*tensors)
        return group.made(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_scores: Tensor) -> tuple[Tensor | None, ...]:
        needed, tensors = ctx.needs_input_grad[1:], ctx.saved_tensors
        with torch.autocast(**ctx.autocast):
            if torch.is_grad_enabled():  # for second derivatives, which take the tensors with their own history
                wanted = [tensor for tensor, own in zip(tensors, needed, strict=True) if own]
                scores = ctx.group.made(*tensors)
                found = iter(torch.autograd.grad(scores, wanted, grad_scores, create_graph=True, allow_unused=True))
                return None, *(next(found) if own else None for own in needed)
            leaves = [tensor.detach().requires_grad_(own) for tensor, own in zip(tensors, needed, strict=True)]
            ctx.group.accumulate(grad_scores, *leaves)
        return None, *(leaf.grad for leaf in leaves)
