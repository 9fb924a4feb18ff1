"""The first layer of heterogeneous attention for all pairs of some images and captions: what does not depend on the
pair is made once an item (docs/kernels.md §3).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.dense.op import Products
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer
from crossret_kernels.heterogeneous_attention.softmax import softmax, softmax_with_sums


class FirstLayerItems(NamedTuple):
    """Items (n, L, …) of one side, as the first layer meets them in every pair.

    Attributes:
        queries, keys: (n, L, H, D / H).
        values: (n, L, H, D), the values of each head behind its part of the output projection.
        own_logits: (n, L, H), log Σ exp of each query's logits over its own item.
        own_values: (n, L, H + 1, D): what the query makes of its own item by each head, as if that were one more key,
            and the query itself with the output's bias, which the residual adds.
        mask: (n, L), valid rows.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    own_logits: Tensor
    own_values: Tensor
    mask: Tensor

    def part(self, first: int, stop: int, width: int) -> FirstLayerItems:
        """Some successive items, `width` of their rows."""
        return FirstLayerItems(*(tensor[first:stop, :width] for tensor in self))

    def floats(self) -> FirstLayerItems:
        """These tensors in float32: autocast has some in its dtype."""
        return FirstLayerItems(*(tensor if tensor.dtype == torch.bool else tensor.float() for tensor in self))


def share(
    items: Tensor, mask: Tensor, layer: HeterogeneousLayer, heads: int, lambda_attention: float, products: Products
) -> FirstLayerItems:
    """Results of the first layer for items (n, L, D) by themselves."""
    queries = products.linear(items, layer.query_weight, layer.query_bias)
    q = queries.unflatten(-1, (heads, -1))
    k = products.linear(items, layer.key_weight, layer.key_bias).unflatten(-1, (heads, -1))
    v = products.linear(items, layer.value_weight, layer.value_bias).unflatten(-1, (heads, -1))
    logits = (lambda_attention * torch.einsum("nihe,njhe->nihj", q, k)).to(items.dtype)
    logits = logits.masked_fill(~mask[:, None, None, :], -torch.inf)
    weights, own_logits = softmax_with_sums(logits)
    # Head by head: batched over items and heads, products would copy the values, which are most of all.
    outputs = layer.output_weight.unflatten(-1, (heads, -1))
    values = [products.linear(v[:, :, h], outputs[:, h]) for h in range(heads)]
    own_values = [weights[:, :, h] @ value for h, value in enumerate(values)]
    residual = queries + layer.output_bias
    return FirstLayerItems(q, k, torch.stack(values, 2), own_logits, torch.stack([*own_values, residual], 2), mask)


def attend_across(
    queries: FirstLayerItems, contexts: FirstLayerItems, lambda_attention: float, products: Products
) -> Tensor:
    """The rows of some items (a, L, …) after the layer in pairs with other items (b, K, …): (b, a, L, D).

    The softmax runs over the other item's keys and the query's own item, which counts as one key.
    """
    a, length, heads, _ = queries.queries.shape
    b, width = contexts.mask.shape
    rows = a * length
    q = queries.queries.flatten(0, 1).transpose(0, 1)
    k = contexts.keys.flatten(0, 1).permute(1, 2, 0)
    dtype = queries.own_logits.dtype  # autocast has its products elsewhere
    logits = (lambda_attention * (q @ k)).to(dtype).view(heads, rows, b, width)
    logits = logits.masked_fill(~contexts.mask, -torch.inf)
    own_logits = queries.own_logits.flatten(0, 1).T[:, :, None, None].expand(-1, -1, b, -1)
    weights = softmax(torch.cat([logits, own_logits], -1), products)
    across = weights[..., :width].permute(2, 1, 3, 0).reshape(b, rows, width * heads)
    self_weights = F.pad(weights[..., width].permute(1, 2, 0), (0, 1), value=1.0)
    vectors = (self_weights @ queries.own_values.flatten(0, 1)).transpose(0, 1)  # (b, rows, D)
    vectors = torch.baddbmm(vectors, across, contexts.values.flatten(1, 2))
    return vectors.to(dtype).view(b, a, length, -1)
