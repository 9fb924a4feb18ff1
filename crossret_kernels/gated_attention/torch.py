"""Gated attention: once an item what does not depend on the pair; then pairs, by a kernel or in bounded blocks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.cross_attention.attention import relevances
from crossret_kernels.gated_attention.kernels import KERNELS, NAME, GatedItems, operands
from crossret_kernels.gated_attention.options import AttentionStep, GatedAttention
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.operations import for_gradients
from crossret_kernels.padded.arithmetic import safe_sqrt
from crossret_kernels.padded.forms import pad_items
from crossret_kernels.padded.items import Limits, SharedScores
from crossret_kernels.padded.pairing import Listing, Pairing, Rectangle

# Bytes of keys and values; intermediates and gradients take as many again. Larger runs are made less often.
ITEM_BYTES = 10 * 2**20
GPU_SHARE = 26  # times as much on a GPU: launches are counted there, not bytes of cache
# Bytes of a block of pairs: a few products of them stay in a cache.
PAIR_BYTES = 16 * 2**20


@dataclass(frozen=True)
class _Gated(SharedScores):
    """Beside the values of items are their context vectors."""

    alpha: float
    weights: bool
    backend: str  # "torch", or one that has kernels
    bfloat16: bool
    n_beside = 2

    @property
    def fused(self) -> bool:
        return self.backend in KERNELS

    def limits(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> Limits:
        own = GatedAttention.of(parameters)
        gate, dim = own.region_gate_weight.shape
        hidden = [step.key_weight.size(0) for step in (own.region_step, own.word_step)]
        itemsize = own.embedding_bias.itemsize
        rows = [
            max(1, ITEM_BYTES // (itemsize * (h + dim + own_side.values.size(-1))))
            for h, own_side in zip(hidden, (self.images, self.captions), strict=True)
        ]
        gathered = 0 if self.pairs is None else 4 * beside[0].size(1) * dim  # context vectors of listed pairs
        if self.fused:  # kernels bound what they take themselves; captions of one run are made once for all images
            return Limits([GPU_SHARE * max(1, rows[0] // 2), GPU_SHARE * rows[1]], sys.maxsize)
        cells = 4 * gate + 3 * sum(hidden) + 6 * dim + 4 * (self.images.width + self.captions.width) + gathered
        return Limits(rows, max(1, PAIR_BYTES // (itemsize * cells)))

    def results(self, like: Tensor) -> list[Tensor]:
        if self.pairs is None:
            return super().results(like)
        widths = [(), (self.images.width,), (self.captions.width,)] if self.weights else [()]
        return [like.new_zeros(len(self.pairs), *width) for width in widths]

    def share(
        self, of_captions: bool, rows: Tensor, mask: Tensor, beside: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> GatedItems:
        return side(of_captions, rows, mask, beside[0], GatedAttention.of(parameters))

    def score(
        self, images: GatedItems, captions: GatedItems, pairing: Pairing, parameters: Sequence[Tensor],
        graph_alone: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        own = GatedAttention.of(parameters)
        if not self.fused:
            return score(images, captions, pairing, own, self.alpha)
        kernel = for_gradients(NAME) if graph_alone else KERNELS[self.backend]
        last = kernel(*operands(images, captions, own, pairing), self.alpha, self.bfloat16)
        return (earlier_levels(images, captions, pairing) + last,)

    def at_once(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        dtype = parameters[-1].dtype
        (v, v_mask), (e, e_mask) = pad_items(self.images), pad_items(self.captions)
        images = self.share(False, v.to(dtype), v_mask, [beside[0].to(dtype)], parameters)
        captions = self.share(True, e.to(dtype), e_mask, [beside[1].to(dtype)], parameters)
        pairing = Rectangle() if self.pairs is None else Listing(self.pairs[:, 0], self.pairs[:, 1])
        made = score(images, captions, pairing, GatedAttention.of(parameters), self.alpha)
        return made[: 3 if self.weights else 1]


def gated_attention_chunked(
    regions: Ragged,
    words: Ragged,
    region_contexts: Tensor,
    word_contexts: Tensor,
    parameters: GatedAttention,
    alpha: float,
    pairs: Tensor | None,
    weights: bool,
    backend: str = "torch",
    bfloat16: bool = False,
) -> tuple[Tensor, ...]:
    """Scores (n_images, n_captions), or (P,); with `weights` also weights of regions (P, M) and of words (P, L).

    Blocks are recomputed in the backward pass. Where a call is traced or transformed it is one block, which outlives
    the call if a gradient is taken.
    """
    call = _Gated(regions, words, pairs, alpha, weights, backend, bfloat16)
    return call.compute(region_contexts, word_contexts, *parameters.flat())


def side(of_captions: bool, rows: Tensor, mask: Tensor, contexts: Tensor, parameters: GatedAttention) -> GatedItems:
    """Items of padded regions (n, M, D_v) or words (n, L, D), with zeros behind."""
    step = parameters.word_step if of_captions else parameters.region_step
    gate = parameters[2:4] if of_captions else parameters[:2]
    keys = F.linear(rows, step.key_weight, step.key_bias).tanh() * step.head_weight
    values = rows if of_captions else F.linear(rows, parameters.embedding_weight)
    return GatedItems(keys, values, F.linear(contexts.sum(1), *gate), contexts, mask)


def score(
    images: GatedItems, captions: GatedItems, pairing: Pairing, parameters: GatedAttention, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (…) and the weights of regions (…, M) and of words (…, L) of the pairs, whose own side are the images."""
    turned = pairing.turned()
    attended, region_weights = _attend(images, captions, pairing, parameters.region_step, alpha)
    v2 = torch.tanh(attended + parameters.embedding_bias)
    t2, word_weights = (turned.turned_back(x) for x in _attend(captions, images, turned, parameters.word_step, alpha))
    last = relevances((v2 * t2).sum(-1), _norms(t2), v2)
    return earlier_levels(images, captions, pairing) + last, region_weights, word_weights


def earlier_levels(images: GatedItems, captions: GatedItems, pairing: Pairing) -> Tensor:
    """The sum (…) of the cosines that do not depend on the pair's own attention (Eq. 20)."""
    queries, contexts = pairing.meet(images.contexts, captions.contexts)
    dots = pairing.dots(images.contexts, captions.contexts)
    return relevances(dots, _norms(contexts), queries).sum(-1)


def _norms(vectors: Tensor) -> Tensor:
    return safe_sqrt(vectors.square().sum(-1))


def _attend(
    own: GatedItems, other: GatedItems, pairing: Pairing, step: AttentionStep, alpha: float
) -> tuple[Tensor, Tensor]:
    """Σ weight · value (…, D) of the own side's rows and the weights (…, L), guided by the gate's o (…, G)."""
    memory, other_memory = pairing.meet(alpha * own.memory, (1 - alpha) * other.memory)
    query = torch.tanh(F.linear(torch.sigmoid(memory + other_memory), step.query_weight, step.query_bias))
    mask, _ = pairing.meet(own.mask, other.mask)
    logits = pairing.products(query, own.keys.mT)
    weights = torch.softmax(logits.masked_fill(~mask, -torch.inf), -1)
    return pairing.products(weights, own.values), weights
