"""The last level of gated attention by fused kernels, of what is made of items: one schema, a row for each backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crossret_kernels.gated_attention.options import GatedAttention
from crossret_kernels.operations import Operand, define
from crossret_kernels.padded.pairing import Pairing, Rectangle


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


def _of(side: str) -> tuple[Operand, ...]:
    """Keys (n, L, H), values (n, L, D), memory (n, G) and mask (n, L), the fields of a `GatedItems`."""
    fields = [Operand(f"{side}_{name}", "Tensor", True) for name in ("keys", "values", "memory")]
    return (*fields, Operand(f"{side}_mask", "Tensor"))


# Float32, contiguous where a kernel asks for it. Weights are (H, G) of regions and (H', G) of words, biases beside them
# (H,) and (H',); the embedding's bias is (D,). Pairs are (P, 2) int64, images and captions; None are all.
OPERANDS = (
    *_of("region"), *_of("word"),
    *(
        Operand(name, "Tensor", True)
        for name in (
            "region_query_weight", "region_query_bias", "word_query_weight", "word_query_bias", "embedding_bias",
        )
    ),
    Operand("pairs"),
)  # fmt: skip
OPTIONS = "float alpha, bool bfloat16"  # whether products of W_q take bfloat16; sums are float32


def scores_like(region_keys: Tensor, *others: Any) -> Tensor:
    """The cosine of v⁽²⁾ and t⁽²⁾ of all pairs (n_images, n_captions) or of listed ones (P,), without values."""
    pairs = others[12]
    shape = (region_keys.size(0), others[3].size(0)) if pairs is None else (pairs.size(0),)
    return region_keys.new_empty(shape)


NAME = "gated_attention_triton"  # of the operation
_TRITON = "gated_attention.triton.forward:cosines", "gated_attention.triton.backward:gradients"
KERNELS: dict[str, Callable[..., Tensor]] = {"triton": define(NAME, OPERANDS, OPTIONS, scores_like, kernels=_TRITON)}


def operands(
    images: GatedItems, captions: GatedItems, parameters: GatedAttention, pairing: Pairing
) -> tuple[Tensor | None, ...]:
    """Operands of the operation, in its order."""
    sides = [(side.keys, side.values, side.memory, side.mask) for side in (images, captions)]
    steps = [(step.query_weight, step.query_bias) for step in (parameters.region_step, parameters.word_step)]
    pairs = None if isinstance(pairing, Rectangle) else torch.stack([pairing.own, pairing.other], 1)
    return *sides[0], *sides[1], *steps[0], *steps[1], parameters.embedding_bias, pairs
