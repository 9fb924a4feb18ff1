"""Listed pairs, and what pairs of any kind go through above the first layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.dense.op import Products
from crossret_kernels.heterogeneous_attention.kernels import self_attention
from crossret_kernels.heterogeneous_attention.matching import PairFeatures, match_globally, match_locally
from crossret_kernels.heterogeneous_attention.options import LAYER_NORM_EPS, HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.chunked import of_pairs

CHUNK_BYTES = 2 * 2**20  # of a chunk's features and logits: what is made of them stays near the caches
GPU_CHUNK = 2  # times as much on a GPU


def every_pair(regions: Ragged, words: Ragged) -> Tensor:
    """(n_images · n_captions, 2) int64, image by image."""
    device = regions.values.device
    return torch.cartesian_prod(torch.arange(len(regions), device=device), torch.arange(len(words), device=device))


def of_listed(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
    products: Products,
) -> tuple[Tensor, ...]:
    """Scores (P,) and, of the local matching, weights (P, Q, C) and relevances (P, Q), chunk by chunk.

    Pairs are taken by image, so that those of a chunk share its first queries, keys and values.
    """

    def prepare(rows: Tensor, *parameters: Tensor) -> Tensor:
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return project(safe_normalize(rows) if options.normalize else rows, nested(parameters)[0], products)

    def score(v: Tensor, v_mask: Tensor, e: Tensor, e_mask: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        first, *others = nested(parameters)
        mask = torch.cat([v_mask, e_mask], 1)
        h = attend(torch.cat([v, e], 1), mask, first, options, products)
        return upwards(h, mask, v.size(1), others, options, products)

    order = pairs[:, 0].argsort(stable=True)
    size = pairs_in_chunk(regions.values, regions.width + words.width, options.heads)
    flat = (parameter for layer in layers for parameter in layer)
    made = of_pairs(regions, words, pairs[order], size, score, *flat, prepare=prepare)
    places = order.argsort()
    return tuple(x[places] for x in made)


def upwards(
    h: Tensor,
    mask: Tensor,
    width: int,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
    products: Products,
) -> tuple[Tensor, ...]:
    """Scores (P,) after the other layers of rows (P, T, D), `width` regions ahead of words, and their mask (P, T).

    Weights and relevances too of the local matching.
    """
    for layer in layers:
        h = attend(project(h, layer, products), mask, layer, options, products)
    pairs = PairFeatures(h[:, :width], h[:, width:], mask[:, :width], mask[:, width:])
    return (match_globally(pairs),) if options.matching == "global" else match_locally(pairs, options, products)


def pairs_in_chunk(features: Tensor, rows: int, heads: int) -> int:
    """How many pairs of so many rows, regions and words together, make a chunk by their features and their logits.

    At least one: a single pair that is larger is a chunk of its own, and goes beyond the bound.
    """
    itemsize = torch.promote_types(features.dtype, torch.float32).itemsize
    bytes_of_chunk = CHUNK_BYTES if features.device.type == "cpu" else GPU_CHUNK * CHUNK_BYTES
    return max(1, bytes_of_chunk // (itemsize * rows * (features.size(-1) + heads * rows)))


def nested(parameters: Sequence[Tensor]) -> list[HeterogeneousLayer]:
    """Layers of their parameters one after the other."""
    fields = len(HeterogeneousLayer._fields)
    return [HeterogeneousLayer(*parameters[first : first + fields]) for first in range(0, len(parameters), fields)]


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
