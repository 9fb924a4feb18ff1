"""Gated attention: once an item what does not depend on the pair; then pairs, in bounded blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.cross_attention.attention import relevances
from crossret_kernels.gated_attention.options import AttentionStep, GatedAttention
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import safe_sqrt
from crossret_kernels.padded.forms import pad_items
from crossret_kernels.padded.items import Limits, SharedScores
from crossret_kernels.padded.pairing import Listing, Pairing, Rectangle

# Bytes of keys and values; intermediates and gradients take as many again. Larger runs are made less often.
ITEM_BYTES = 10 * 2**20
# Bytes of a block of pairs: a few products of them stay in a cache.
PAIR_BYTES = 16 * 2**20
GPU_SHARE = 26  # times as much of both on a GPU: launches are counted there, not bytes of cache


class GatedItems(NamedTuple):
    """Tensors of n images, or of n captions, that their pairs need.

    Attributes:
        keys: (n, L, H), w_h ⊙ tanh(W x + b): a row's logit is its product with tanh(W_q o + b_q).
        values: (n, L, D), P⁽²⁾ I_m of regions, words as they are: D numbers whatever regions have.
        memory: (n, G), the memory of Eq. 12.
        contexts: (n, K, D), the context vectors of the earlier levels.
        mask: (n, L), the rows that are no padding.
    """

    keys: Tensor
    values: Tensor
    memory: Tensor
    contexts: Tensor
    mask: Tensor

    def part(self, first: int, stop: int, width: int) -> GatedItems:
        """Some successive items, `width` of their rows."""
        keys, values, mask = (x[first:stop, :width] for x in (self.keys, self.values, self.mask))
        return GatedItems(keys, values, self.memory[first:stop], self.contexts[first:stop], mask)


@dataclass(frozen=True)
class _Gated(SharedScores):
    """Beside the values of items are their context vectors."""

    alpha: float
    weights: bool
    n_beside = 2

    def limits(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> Limits:
        attention = GatedAttention.of(parameters)
        gate, dim = attention.region_gate_weight.shape
        hidden = [step.key_weight.size(0) for step in (attention.region_step, attention.word_step)]
        itemsize, device = attention.embedding_bias.itemsize, attention.embedding_bias.device.type
        share = 1 if device == "cpu" else GPU_SHARE
        rows = [
            max(1, share * ITEM_BYTES // (itemsize * (h + dim + items.values.size(-1))))
            for h, items in zip(hidden, (self.images, self.captions), strict=True)
        ]
        listed_cells = 0 if self.pairs is None else 4 * beside[0].size(1) * dim  # context vectors of listed pairs
        cells = 4 * gate + 3 * sum(hidden) + 6 * dim + 4 * (self.images.width + self.captions.width) + listed_cells
        return Limits(rows, max(1, share * PAIR_BYTES // (itemsize * cells)))

    def results(self, like: Tensor) -> list[Tensor]:
        if self.pairs is None:
            return super().results(like)
        widths = [(), (self.images.width,), (self.captions.width,)] if self.weights else [()]
        return [like.new_zeros(len(self.pairs), *width) for width in widths]

    def share(
        self, is_caption: bool, rows: Tensor, mask: Tensor, beside: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> GatedItems:
        return side(is_caption, rows, mask, beside[0], GatedAttention.of(parameters))

    def score(
        self, images: GatedItems, captions: GatedItems, pairing: Pairing, parameters: Sequence[Tensor],
        graph_alone: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        attention = GatedAttention.of(parameters)
        return score(images, captions, pairing, attention, self.alpha)

    def at_once(self, beside: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        dtype = parameters[-1].dtype
        (v, v_mask), (e, e_mask) = pad_items(self.images), pad_items(self.captions)
        images = self.share(False, v.to(dtype), v_mask, [beside[0].to(dtype)], parameters)
        captions = self.share(True, e.to(dtype), e_mask, [beside[1].to(dtype)], parameters)
        pairing = Rectangle() if self.pairs is None else Listing(self.pairs[:, 0], self.pairs[:, 1])
        results = score(images, captions, pairing, GatedAttention.of(parameters), self.alpha)
        return results[: 3 if self.weights else 1]


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
    call = _Gated(regions, words, pairs, alpha, weights)
    return call.compute(region_contexts, word_contexts, *parameters.flat())


def side(is_caption: bool, rows: Tensor, mask: Tensor, contexts: Tensor, parameters: GatedAttention) -> GatedItems:
    """Items of padded regions (n, M, D_v) or words (n, L, D), with zeros behind."""
    step = parameters.word_step if is_caption else parameters.region_step
    gate = parameters[2:4] if is_caption else parameters[:2]
    keys = F.linear(rows, step.key_weight, step.key_bias).tanh() * step.head_weight
    values = rows if is_caption else F.linear(rows, parameters.embedding_weight)
    return GatedItems(keys, values, F.linear(contexts.sum(1), *gate), contexts, mask)


def score(
    images: GatedItems, captions: GatedItems, pairing: Pairing, parameters: GatedAttention, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (…) and the weights of regions (…, M) and of words (…, L) of the pairs, whose items are the images."""
    turned = pairing.turned()
    vectors, region_weights = _attend(images, captions, pairing, parameters.region_step, alpha)
    v2 = torch.tanh(vectors + parameters.embedding_bias)
    t2, word_weights = (turned.turned_back(x) for x in _attend(captions, images, turned, parameters.word_step, alpha))
    last = relevances((v2 * t2).sum(-1), _norms(t2), v2)
    return earlier_levels(images, captions, pairing) + last, region_weights, word_weights


def earlier_levels(images: GatedItems, captions: GatedItems, pairing: Pairing) -> Tensor:
    """The sum (…) of the cosines that do not depend on the pair's attention (Eq. 20)."""
    queries, contexts = pairing.meet(images.contexts, captions.contexts)
    dots = pairing.dots(images.contexts, captions.contexts)
    return relevances(dots, _norms(contexts), queries).sum(-1)


def _norms(vectors: Tensor) -> Tensor:
    return safe_sqrt(vectors.square().sum(-1))


def _attend(
    items: GatedItems, partners: GatedItems, pairing: Pairing, step: AttentionStep, alpha: float
) -> tuple[Tensor, Tensor]:
    """Σ weight · value (…, D) of the items' rows and the weights (…, L), guided by the gate's o (…, G)."""
    memory, other_memory = pairing.meet(alpha * items.memory, (1 - alpha) * partners.memory)
    query = torch.tanh(F.linear(torch.sigmoid(memory + other_memory), step.query_weight, step.query_bias))
    mask, _ = pairing.meet(items.mask, partners.mask)
    logits = pairing.products(query, items.keys.mT)
    weights = torch.softmax(logits.masked_fill(~mask, -torch.inf), -1)
    return pairing.products(weights, items.values), weights
