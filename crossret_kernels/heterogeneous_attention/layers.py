"""Layers of heterogeneous attention over the concatenated items of each pair."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.dense.op import Products
from crossret_kernels.heterogeneous_attention.options import LAYER_NORM_EPS, HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.self_attention import self_attention


def project(items: Tensor, layer: HeterogeneousLayer, products: Products) -> Tensor:
    """Queries, keys and values (…, 3 D) of rows (…, D), by one product."""
    weight = torch.cat([layer.query_weight, layer.key_weight, layer.value_weight])
    return products.linear(items, weight, torch.cat([layer.query_bias, layer.key_bias, layer.value_bias]))


def attend(
    projected: Tensor, mask: Tensor, layer: HeterogeneousLayer, options: HeterogeneousOptions, products: Products
) -> Tensor:
    """The rows (P, T, D) of a layer from their queries, keys and values (P, T, 3 D) and the mask (P, T)."""
    queries = projected[..., : projected.size(-1) // 3]
    if products.serve(projected):
        attended = self_attention(projected, mask, options.heads, options.lambda_attention)
    else:
        q, k, v = projected.unflatten(-1, (3, options.heads, -1)).permute(2, 0, 3, 1, 4)
        dtype = layer.norm_weight.dtype  # autocast has its products elsewhere
        logits = (options.lambda_attention * (q @ k.mT)).to(dtype)
        weights = torch.softmax(logits.masked_fill(~mask[:, None, None, :], -torch.inf), -1)
        attended = (weights @ v).transpose(1, 2).flatten(-2)
    return normalize_rows(products.linear(attended, layer.output_weight, layer.output_bias) + queries, layer)


def normalize_rows(rows: Tensor, layer: HeterogeneousLayer) -> Tensor:
    """The layer's normalisation of rows (…, D)."""
    rows = rows.to(layer.norm_weight.dtype)
    # Weight and bias apart: within, PyTorch's sums for their gradients depend on the number of threads.
    return torch.addcmul(layer.norm_bias, F.layer_norm(rows, rows.shape[-1:], eps=LAYER_NORM_EPS), layer.norm_weight)
