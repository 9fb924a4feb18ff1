"""SMAN's pairwise step on some images and captions (Eqs. 12–20): what is made once an item, and what once a pair."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.cross_attention.attention import relevances
from crossret_kernels.gated_attention.parameters import AttentionStep, GatedAttention
from crossret_kernels.padded.arithmetic import safe_sqrt
from crossret_kernels.padded.pairing import Pairing


class Side(NamedTuple):
    """What pairs need of n images, or of n captions.

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

    def part(self, first: int, stop: int, width: int) -> Side:
        """Some successive items, `width` of their rows."""
        keys, values, mask = (x[first:stop, :width] for x in (self.keys, self.values, self.mask))
        return Side(keys, values, self.memory[first:stop], self.contexts[first:stop], mask)


def side(of_captions: bool, rows: Tensor, mask: Tensor, contexts: Tensor, parameters: GatedAttention) -> Side:
    """Of padded regions (n, M, D_v) or words (n, L, D), with zeros behind."""
    step = parameters.word_step if of_captions else parameters.region_step
    gate = parameters[2:4] if of_captions else parameters[:2]
    keys = F.linear(rows, step.key_weight, step.key_bias).tanh() * step.head_weight
    values = rows if of_captions else F.linear(rows, parameters.embedding_weight)
    return Side(keys, values, F.linear(contexts.sum(1), *gate), contexts, mask)


def score(
    images: Side, captions: Side, pairing: Pairing, parameters: GatedAttention, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (…) and the weights of regions (…, M) and of words (…, L) of the pairs, whose own side are the images."""
    turned = pairing.turned()
    attended, region_weights = _attend(images, captions, pairing, parameters.region_step, alpha)
    v2 = torch.tanh(attended + parameters.embedding_bias)
    t2, word_weights = (turned.turned_back(x) for x in _attend(captions, images, turned, parameters.word_step, alpha))
    last = relevances((v2 * t2).sum(-1), _norms(t2), v2)
    return earlier_levels(images, captions, pairing) + last, region_weights, word_weights


def earlier_levels(images: Side, captions: Side, pairing: Pairing) -> Tensor:
    """The sum (…) of the cosines that do not depend on the pair's own attention (Eq. 20)."""
    queries, contexts = pairing.meet(images.contexts, captions.contexts)
    dots = pairing.dots(images.contexts, captions.contexts)
    return relevances(dots, _norms(contexts), queries).sum(-1)


def _norms(vectors: Tensor) -> Tensor:
    return safe_sqrt(vectors.square().sum(-1))


def _attend(own: Side, other: Side, pairing: Pairing, step: AttentionStep, alpha: float) -> tuple[Tensor, Tensor]:
    """Σ weight · value (…, D) of the own side's rows and the weights (…, L), guided by the gate's o (…, G)."""
    memory, other_memory = pairing.meet(alpha * own.memory, (1 - alpha) * other.memory)
    query = torch.tanh(F.linear(torch.sigmoid(memory + other_memory), step.query_weight, step.query_bias))
    mask, _ = pairing.meet(own.mask, other.mask)
    logits = pairing.products(query, own.keys.mT)
    weights = torch.softmax(logits.masked_fill(~mask, -torch.inf), -1)
    return pairing.products(weights, own.values), weights
