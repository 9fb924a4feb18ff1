"""Backend "reference" of gated attention: SMAN Eqs. 12–20 as einsums, everything materialised."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.cross_attention.attention import EPS
from crossret_kernels.gated_attention.options import AttentionStep, GatedAttention
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import safe_divide, safe_sqrt
from crossret_kernels.padded.forms import pad_pairs


def gated_attention_reference(
    regions: Ragged,
    words: Ragged,
    region_contexts: Tensor,
    word_contexts: Tensor,
    parameters: GatedAttention,
    alpha: float,
    pairs: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (…), weights of regions (…, M) and of words (…, L); "…" is (images, captions), or (P,) for pairs."""
    dtype = parameters.region_gate_weight.dtype
    v, v_mask, e, e_mask = pad_pairs(regions, words, pairs)
    contexts = Ragged.trusted(region_contexts), Ragged.trusted(word_contexts)
    v, e, v_contexts, e_contexts = (x.to(dtype) for x in (v, e, *pad_pairs(*contexts, pairs)[::2]))
    memory_v = _linear(v_contexts.sum(-2), parameters.region_gate_weight, parameters.region_gate_bias)
    memory_t = _linear(e_contexts.sum(-2), parameters.word_gate_weight, parameters.word_gate_bias)
    gate_v = torch.sigmoid(alpha * memory_v + (1 - alpha) * memory_t)
    gate_t = torch.sigmoid(alpha * memory_t + (1 - alpha) * memory_v)
    region_weights = _weights(v, v_mask, gate_v, parameters.region_step)
    word_weights = _weights(e, e_mask, gate_t, parameters.word_step)
    vectors = torch.einsum("...m,...md->...d", region_weights, v)
    v2 = torch.tanh(_linear(vectors, parameters.embedding_weight, parameters.embedding_bias))
    t2 = torch.einsum("...l,...ld->...d", word_weights, e)
    levels = _cosine(v_contexts, e_contexts).sum(-1)
    return levels + _cosine(v2, t2), region_weights, word_weights


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.einsum("...i,oi->...o", x, weight) + bias


def _weights(rows: Tensor, mask: Tensor, gate: Tensor, step: AttentionStep) -> Tensor:
    """Eqs. 13, 14 and 16, 17: the softmax over rows (…, L, D), (…, L), by the gate's (…, G)."""
    keys = torch.tanh(_linear(rows, step.key_weight, step.key_bias))
    query = torch.tanh(_linear(gate, step.query_weight, step.query_bias))
    logits = torch.einsum("...lh,h->...l", keys * query[..., None, :], step.head_weight)
    return torch.softmax(logits.masked_fill(~mask, -torch.inf), -1)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 19 along the last dimension, zero with zero gradient where a vector is zero."""
    lengths = safe_sqrt(a.square().sum(-1)) * safe_sqrt(b.square().sum(-1))
    return safe_divide((a * b).sum(-1), lengths.where(lengths == 0, lengths.clamp(min=EPS)))
