"""Backend "torch" of gated attention: once an item what does not depend on the pair, pairs in bounded blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from crossret_kernels.gated_attention.blocks import ImageRun, Items, Limits, all_blocks, listed_blocks
from crossret_kernels.gated_attention.pairing import Listing, Rectangle
from crossret_kernels.gated_attention.parameters import GatedAttention
from crossret_kernels.gated_attention.step import Side, caption_side, image_side, score
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import checkable
from crossret_kernels.operations import needs_gradient
from crossret_kernels.torch_internals import transformed

# Of keys and values, as many again of which are intermediates and gradients. Larger ones are made less often.
ITEM_BYTES = 16 * 2**20
# Of what pairs take: a few products of them stay in a cache.
PAIR_BYTES = 16 * 2**20
_FLOATS = 4  # of Side's fields, ahead of the mask


@dataclass(frozen=True)
class _Call:
    """What a call has beside its tensors; of `images` and `captions` the layouts alone are used."""

    images: Ragged
    captions: Ragged
    pairs: Tensor | None
    alpha: float
    outputs: int  # 1 for the scores, 3 with the weights

    def sides(self, tensors: tuple[Tensor, ...]) -> tuple[Ragged, Ragged]:
        return replace(self.images, values=tensors[0]), replace(self.captions, values=tensors[1])

    def blocks(self, tensors: tuple[Tensor, ...]) -> Iterator[ImageRun]:
        images, captions = self.sides(tensors)
        parameters = GatedAttention.of(tensors[4:])
        gate, dim = parameters.region_gate_weight.shape
        hidden = [step.key_weight.size(0) for step in (parameters.region_step, parameters.word_step)]
        itemsize = parameters.embedding_bias.element_size()
        region_rows, word_rows = (
            max(1, ITEM_BYTES // (itemsize * (h + dim + side.values.size(-1))))
            for h, side in zip(hidden, (images, captions), strict=True)
        )
        cells = 4 * gate + 3 * sum(hidden) + 6 * dim + 4 * (images.width + captions.width)
        if self.pairs is not None:  # which gather context vectors
            cells += 4 * tensors[2].size(1) * dim
        limits = Limits(region_rows, word_rows, max(1, PAIR_BYTES // (itemsize * cells)))
        if self.pairs is None:
            return all_blocks(images, captions, limits)
        return listed_blocks(images, captions, self.pairs, limits)

    def results(self, like: Tensor) -> list[Tensor]:
        if self.pairs is None:
            return [like.new_empty(len(self.images), len(self.captions))]
        widths = ((), (self.images.width,), (self.captions.width,))
        return [like.new_zeros(len(self.pairs), *width) for width in widths[: self.outputs]]


def gated_attention_chunked(
    regions: Ragged,
    words: Ragged,
    region_contexts: Tensor,
    word_contexts: Tensor,
    parameters: GatedAttention,
    alpha: float,
    pairs: Tensor | None,
    weights: bool,
) -> tuple[Tensor, ...]:
    """Scores (n_images, n_captions), or (P,); with `weights` also weights of regions (P, M) and of words (P, L).

    Blocks are recomputed in the backward pass. Where a call is traced or transformed it is one block, which outlives
    the call if a gradient is taken.
    """
    call = _Call(regions, words, pairs, alpha, 3 if weights else 1)
    tensors = (regions.values, words.values, region_contexts, word_contexts, *parameters.flat())
    if not checkable() or transformed():
        return _at_once(call, tensors)
    if needs_gradient(tensors):
        return cast("tuple[Tensor, ...]", cast(Any, _Recomputed).apply(call, *tensors))
    return _forward(call, tensors)


def _at_once(call: _Call, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    images, captions = call.sides(tensors)
    (v, v_mask), (e, e_mask) = images.padded(), captions.padded()
    dtype = tensors[-1].dtype
    parameters = GatedAttention.of(tensors[4:])
    image = image_side(v.to(dtype), v_mask, tensors[2].to(dtype), parameters)
    caption = caption_side(e.to(dtype), e_mask, tensors[3].to(dtype), parameters)
    pairing = Rectangle() if call.pairs is None else Listing(call.pairs[:, 0], call.pairs[:, 1])
    return score(image, caption, pairing, parameters, call.alpha)[: call.outputs]


def _forward(call: _Call, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    results = call.results(tensors[-1])
    with torch.no_grad():
        parameters = GatedAttention.of(tensors[4:])
        of_images, of_captions = call.sides(tensors)
        for image_items, caption_runs in call.blocks(tensors):
            images = _Loaded(image_items, of_images, tensors[2], tensors[-1].dtype).image_side(parameters)
            for caption_items, blocks in caption_runs:
                captions = _Loaded(caption_items, of_captions, tensors[3], tensors[-1].dtype).caption_side(parameters)
                for block in blocks:
                    part = _part(images, block.images), _part(captions, block.captions)
                    made = score(*part, block.pairing, parameters, call.alpha)
                    results[0][block.where] = made[0]
                    for result, weights in zip(results[1:], made[1:], strict=False):  # of listed pairs alone
                        result[block.where, : weights.size(1)] = weights
    return tuple(results)


class _Loaded:
    """Rows and context vectors of some items, leaves of a graph of their own."""

    def __init__(self, items: Items, side: Ragged, contexts: Tensor, dtype: torch.dtype) -> None:
        with torch.no_grad():
            rows, self.mask = items.load(side)
            self.rows = rows.to(dtype)
            self.contexts = contexts.index_select(0, items.indices).to(dtype)
        self.items, self.side = items, side

    def requires_grad(self) -> _Loaded:
        self.rows.requires_grad_()
        self.contexts.requires_grad_()
        return self

    def image_side(self, parameters: GatedAttention) -> Side:
        return image_side(self.rows, self.mask, self.contexts, parameters)

    def caption_side(self, parameters: GatedAttention) -> Side:
        return caption_side(self.rows, self.mask, self.contexts, parameters)

    def backward(self, made: Side, gradients: list[Tensor], rows: Tensor, contexts: Tensor) -> None:
        """Takes gradients of what was made of this to the totals of all rows and context vectors, and to parameters."""
        torch.autograd.backward(made[:_FLOATS], gradients)
        assert self.rows.grad is not None and self.contexts.grad is not None
        self.items.add(rows, self.side, self.mask, self.rows.grad)
        contexts.index_add_(0, self.items.indices, self.contexts.grad)


class _Recomputed(torch.autograd.Function):
    """Scores that keep nothing but their inputs; the gradients' blocks are made, and let go of, one by one."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = replace(call, images=call.images.without_values(), captions=call.captions.without_values())
        ctx.save_for_backward(*tensors)
        return _forward(call, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        # Autocast is as the backward pass finds it, and not as the scores did.
        with torch.autocast(tensors[0].device.type, enabled=False):
            if not torch.is_grad_enabled():
                found = _gradients(ctx.call, tensors, gradients)
                return (None, *(x if wanted else None for x, wanted in zip(found, needed, strict=True)))
            # Second derivatives are wanted: of the whole, differentiably.
            wanted = [x for x, is_wanted in zip(tensors, needed, strict=True) if is_wanted]
            outputs = _at_once(ctx.call, tensors)
            made = iter(torch.autograd.grad(outputs, wanted, gradients, create_graph=True, materialize_grads=True))
            return (None, *(next(made) if is_wanted else None for is_wanted in needed))


def _gradients(call: _Call, tensors: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> list[Tensor]:
    dtype = tensors[-1].dtype
    totals = [torch.zeros_like(x, dtype=dtype) for x in tensors[:4]]
    leaves = tuple(parameter.detach().requires_grad_() for parameter in tensors[4:])
    parameters = GatedAttention.of(leaves)
    of_images, of_captions = call.sides(tensors)
    with torch.enable_grad():
        for image_items, caption_runs in call.blocks(tensors):
            loaded_images = _Loaded(image_items, of_images, tensors[2], dtype).requires_grad()
            images = loaded_images.image_side(parameters)
            image_totals = [torch.zeros_like(x) for x in images[:_FLOATS]]
            for caption_items, blocks in caption_runs:
                loaded_captions = _Loaded(caption_items, of_captions, tensors[3], dtype).requires_grad()
                captions = loaded_captions.caption_side(parameters)
                caption_totals = [torch.zeros_like(x) for x in captions[:_FLOATS]]
                for block in blocks:
                    parts = _leaves(images, block.images), _leaves(captions, block.captions)
                    made = score(*parts, block.pairing, parameters, call.alpha)[: call.outputs]
                    of_made = [_narrowed(x[block.where], y) for x, y in zip(gradients, made, strict=True)]
                    torch.autograd.backward(made, of_made)
                    _add(image_totals, block.images, parts[0])
                    _add(caption_totals, block.captions, parts[1])
                    del parts, made, of_made  # ahead of the next block
                loaded_captions.backward(captions, caption_totals, totals[1], totals[3])
            loaded_images.backward(images, image_totals, totals[0], totals[2])
    of_parameters = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
    return [*(x.to(y.dtype) for x, y in zip(totals, tensors[:4], strict=True)), *of_parameters]


def _part(side: Side, index: slice) -> Side:
    return Side(*(x[index] for x in side))


def _leaves(side: Side, index: slice) -> Side:
    """Some items of a side, leaves of a graph of their own."""
    keys, values, memory, contexts = (x[index].detach().requires_grad_() for x in side[:_FLOATS])
    return Side(keys, values, memory, contexts, side.mask[index])


def _add(totals: list[Tensor], index: slice, leaves: Side) -> None:
    with torch.no_grad():
        for total, leaf in zip(totals, leaves[:_FLOATS], strict=True):
            assert leaf.grad is not None
            total[index] += leaf.grad


def _narrowed(gradient: Tensor, values: Tensor) -> Tensor:
    return gradient[..., : values.size(-1)]
