"""Backend "reference" of heterogeneous attention: the formulas of HAN as einsums, everything materialised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.cross_attention.reference import scan_attend_reference
from crossret_kernels.heterogeneous_attention.options import LAYER_NORM_EPS, HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.pairs import PairFeatures, every_pair, first_valid
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.forms import pad_pairs


def heterogeneous_attention_reference(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor | None,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
) -> tuple[Tensor, ...]:
    """Scores with the items of every pair concatenated, at the inputs' precision: the oracle in float64.

    Of listed pairs also weights and relevances of the local matching.
    """
    features = _attend(regions, words, every_pair(regions, words) if pairs is None else pairs, layers, options)
    if options.matching == "global":
        v = safe_normalize(first_valid(features.regions, features.region_mask))
        e = safe_normalize(first_valid(features.words, features.word_mask))
        results: tuple[Tensor, ...] = ((v * e).sum(-1),)
    else:
        # Each pair's regions with its words, as stacked cross attention matches them.
        images = Ragged.trusted(features.regions, mask=features.region_mask)
        captions = Ragged.trusted(features.words, mask=features.word_mask)
        places = torch.arange(len(images), device=features.regions.device)
        diagonal = torch.stack([places, places], 1)
        scores, _, *others = scan_attend_reference(images, captions, diagonal, options.local, False)
        results = scores, *others
    return results if pairs is not None else (results[0].view(len(regions), len(words)),)


def _attend(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
) -> PairFeatures:
    """Every pair's regions and words after the layers."""
    v, v_mask, e, e_mask = pad_pairs(regions, words, pairs, options.normalize)
    h, mask = torch.cat([v, e], 1), torch.cat([v_mask, e_mask], 1)
    for layer in layers:
        q, k, values = (
            torch.einsum("pid,ed->pie", h, weight) + bias
            for weight, bias in zip(layer[0:6:2], layer[1:6:2], strict=True)
        )
        q_heads, k_heads, v_heads = (x.unflatten(-1, (options.heads, -1)) for x in (q, k, values))
        logits = options.lambda_attention * torch.einsum("pihd,pjhd->phij", q_heads, k_heads)
        weights = torch.softmax(logits.masked_fill(~mask[:, None, None, :], -torch.inf), -1)
        vectors = torch.einsum("phij,pjhd->pihd", weights, v_heads).flatten(-2)
        h = torch.einsum("pid,ed->pie", vectors, layer.output_weight) + layer.output_bias + q
        h = F.layer_norm(h, h.shape[-1:], layer.norm_weight, layer.norm_bias, LAYER_NORM_EPS)
    width = v.size(1)
    return PairFeatures(h[:, :width], h[:, width:], mask[:, :width], mask[:, width:])
