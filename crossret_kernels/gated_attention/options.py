"""The parameters of SMAN's pairwise step: names, shapes and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crossret_kernels.inputs.tensors import check_operand


class AttentionStep(NamedTuple):
    """A perceptron that weighs the rows x of an item by a query o: w_h · (tanh(W x + b) ⊙ tanh(W_q o + b_q)).

    SMAN Eqs. 13, 14 of regions, 16, 17 of words, with the biases that the paper leaves out. w_h has none, which would
    cancel in the softmax. H hidden units; D of the rows, G of the query.

    Attributes:
        key_weight: W, (H, D).
        key_bias: b, (H,).
        query_weight: W_q, (H, G).
        query_bias: b_q, (H,).
        head_weight: w_h, (H,).
    """

    key_weight: Tensor
    key_bias: Tensor
    query_weight: Tensor
    query_bias: Tensor
    head_weight: Tensor


class GatedAttention(NamedTuple):
    """Parameters of `gated_attention_scores` (SMAN Eqs. 12–18); weights are (outputs, inputs), as of `torch.nn.Linear`.

    Regions have D_v numbers; words and all context vectors D; the gate G.

    Attributes:
        region_gate_weight, region_gate_bias: U_v of Eq. 12, (G, D) and (G,).
        word_gate_weight, word_gate_bias: U_t, (G, D) and (G,).
        region_step: of regions, guided by o⁽ᵛ⁾ (Eqs. 13, 14).
        word_step: of words, guided by o⁽ᵗ⁾ (Eqs. 16, 17); its number of hidden units may differ.
        embedding_weight, embedding_bias: P⁽²⁾ of Eq. 15, (D, D_v) and (D,).
    """

    region_gate_weight: Tensor
    region_gate_bias: Tensor
    word_gate_weight: Tensor
    word_gate_bias: Tensor
    region_step: AttentionStep
    word_step: AttentionStep
    embedding_weight: Tensor
    embedding_bias: Tensor

    def flat(self) -> tuple[Tensor, ...]:
        """All tensors, the steps' among them."""
        return (*self[:4], *self.region_step, *self.word_step, *self[6:])

    @classmethod
    def of(cls, flat: Sequence[Tensor]) -> GatedAttention:
        """The inverse of `flat`."""
        u_v, u_v_bias, u_t, u_t_bias, *steps, p, p_bias = flat
        return cls(u_v, u_v_bias, u_t, u_t_bias, AttentionStep(*steps[:5]), AttentionStep(*steps[5:]), p, p_bias)

    def to(self, dtype: torch.dtype) -> GatedAttention:
        return GatedAttention.of(tuple(parameter.to(dtype) for parameter in self.flat()))


# Letters of the shapes: G the gate; D words; V regions; H and T the hidden units of regions and of words.
_STEPS = tuple(
    (f"{step}.{name}", shape)
    for step, hidden, rows in (("region_step", "H", "V"), ("word_step", "T", "D"))
    for name, shape in zip(AttentionStep._fields, (hidden + rows, hidden, hidden + "G", hidden, hidden), strict=True)
)
_SHAPES = (
    *(("region_gate_weight", "GD"), ("region_gate_bias", "G"), ("word_gate_weight", "GD"), ("word_gate_bias", "G")),
    *_STEPS,
    *(("embedding_weight", "DV"), ("embedding_bias", "D")),
)
_PRINTED = {"V": "D_v", "T": "H"}


def check_parameters(parameters: object, regions: Tensor, words: Tensor) -> GatedAttention:
    """The parameters for regions (…, D_v) and words (…, D); raises TypeError or ValueError naming the field."""
    if not isinstance(parameters, GatedAttention):
        raise TypeError(f"parameters must be a GatedAttention, not {type(parameters).__name__}")
    for name in ("region_step", "word_step"):
        step: Any = getattr(parameters, name)
        if not isinstance(step, AttentionStep):
            raise TypeError(f"parameters.{name} must be an AttentionStep, not {type(step).__name__}")
    sizes = {"V": regions.size(-1), "D": words.size(-1)}
    for (name, letters), parameter in zip(_SHAPES, parameters.flat(), strict=True):
        if letters[0] not in sizes and isinstance(parameter, Tensor) and parameter.dim() == len(letters):
            sizes[letters[0]] = parameter.size(0)  # the first that has it says how many
        form = ", ".join(_PRINTED.get(letter, letter) for letter in letters) + ("," if len(letters) == 1 else "")
        shape = [sizes.get(letter, 1) for letter in letters]
        check_operand(f"parameters.{name}", parameter, regions, "regions", f"({form})", shape)
    return parameters
