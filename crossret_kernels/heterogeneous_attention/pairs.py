"""Listed pairs, and what pairs of any kind go through above the first layer: further layers, and the matching, without
normalised copies of features (HAN §3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.cross_attention.attention import attention_logits, relevances, score_with_attention
from crossret_kernels.dense.op import Products
from crossret_kernels.heterogeneous_attention.kernels import self_attention
from crossret_kernels.heterogeneous_attention.options import LAYER_NORM_EPS, HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.heterogeneous_attention.softmax import softmax
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.arithmetic import norm, safe_divide, safe_normalize
from crossret_kernels.padded.chunked import of_pairs

CHUNK_BYTES = 2 * 2**20  # of a chunk's features and logits: what is made of them stays near the caches
GPU_CHUNK = 32  # times as much on a GPU: launches are counted there, not bytes of cache


class Layers(NamedTuple):
    """Layers of pairs, the lowest first; how these are scored, and who makes products."""

    layers: Sequence[HeterogeneousLayer]
    options: HeterogeneousOptions
    products: Products


def every_pair(regions: Ragged, words: Ragged) -> Tensor:
    """(n_images · n_captions, 2) int64, image by image."""
    device = regions.values.device
    return torch.cartesian_prod(torch.arange(len(regions), device=device), torch.arange(len(words), device=device))


def of_listed(regions: Ragged, words: Ragged, pairs: Tensor, above: Layers) -> tuple[Tensor, ...]:
    """Scores (P,) and, of the local matching, weights (P, Q, C) and relevances (P, Q), chunk by chunk.

    Pairs are taken by image, so that those of a chunk share its first queries, keys and values.
    """
    options, products = above.options, above.products

    def prepare(rows: Tensor, *parameters: Tensor) -> Tensor:
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return project(safe_normalize(rows) if options.normalize else rows, nested(parameters)[0], products)

    def score(v: Tensor, v_mask: Tensor, e: Tensor, e_mask: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        first, *layers = nested(parameters)
        mask = torch.cat([v_mask, e_mask], 1)
        h = attend(torch.cat([v, e], 1), mask, first, options, products)
        return upwards(h, mask, v.size(1), above._replace(layers=layers))

    order = pairs[:, 0].argsort(stable=True)
    size = pairs_in_chunk(regions.values, regions.width + words.width, options.heads)
    flat = (parameter for layer in above.layers for parameter in layer)
    results = of_pairs(regions, words, pairs[order], size, score, *flat, prepare=prepare)
    places = order.argsort()
    return tuple(x[places] for x in results)


def upwards(h: Tensor, mask: Tensor, width: int, above: Layers) -> tuple[Tensor, ...]:
    """Scores (P,) after the other layers of rows (P, T, D), `width` regions ahead of words, and their mask (P, T).

    Weights and relevances too of the local matching.
    """
    layers, options, products = above
    for layer in layers:
        h = attend(project(h, layer, products), mask, layer, options, products)
    pairs = PairFeatures(h[:, :width], h[:, width:], mask[:, :width], mask[:, width:])
    if options.matching == "local":
        return match_locally(pairs, options, products)
    # The cosine of the first region with the first word.
    v, e = first_valid(pairs.regions, pairs.region_mask), first_valid(pairs.words, pairs.word_mask)
    return (safe_divide(safe_divide((v * e).sum(-1), norm(v)), norm(e)),)


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
        vectors = self_attention(projected, mask, options.heads, options.lambda_attention)
    else:
        q, k, v = projected.unflatten(-1, (3, options.heads, -1)).permute(2, 0, 3, 1, 4)
        dtype = layer.norm_weight.dtype  # autocast has its products elsewhere
        logits = (options.lambda_attention * (q @ k.mT)).to(dtype)
        weights = torch.softmax(logits.masked_fill(~mask[:, None, None, :], -torch.inf), -1)
        vectors = (weights @ v).transpose(1, 2).flatten(-2)
    return normalize_rows(products.linear(vectors, layer.output_weight, layer.output_bias) + queries, layer)


def normalize_rows(rows: Tensor, layer: HeterogeneousLayer) -> Tensor:
    """The layer's normalisation of rows (…, D)."""
    rows = rows.to(layer.norm_weight.dtype)
    # Weight and bias apart: within, PyTorch's sums for their gradients depend on the number of threads.
    return torch.addcmul(layer.norm_bias, F.layer_norm(rows, rows.shape[-1:], eps=LAYER_NORM_EPS), layer.norm_weight)


class PairFeatures(NamedTuple):
    """Regions (P, R, D) and words (P, W, D) of P pairs, as each pair has them, and their masks (P, R) and (P, W)."""

    regions: Tensor
    words: Tensor
    region_mask: Tensor
    word_mask: Tensor


def match_locally(
    pairs: PairFeatures, options: HeterogeneousOptions, products: Products
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (P,), weights (P, Q, C) and relevances (P, Q).

    Norms divide the similarities and the weights, which are short, and not the features. The attended vectors are
    built: the Gram matrix of a pair's contexts costs more.
    """
    regions, words = (pairs.regions, pairs.region_mask), (pairs.words, pairs.word_mask)
    (contexts, context_mask), (queries, query_mask) = (
        (regions, words) if options.direction == "t2i" else (words, regions)
    )
    context_norms, query_norms = (norm(x) for x in (contexts, queries))
    cosines = safe_divide(safe_divide(contexts @ queries.mT, context_norms[:, :, None]), query_norms[:, None, :])
    weights = softmax(attention_logits(cosines, context_mask, query_mask, options.local).mT, products).mT
    vectors = safe_divide(weights, context_norms[:, :, None]).mT @ contexts
    # Queries are of unit length but for zero vectors, whose length stays 0.
    lengths = query_norms.sign()[..., None]
    relevance = relevances((weights * cosines).sum(-2), norm(vectors), lengths)
    return score_with_attention(weights, relevance, context_mask, query_mask, options.local)


def first_valid(rows: Tensor, mask: Tensor) -> Tensor:
    """(n, D), of rows (n, L, D) the first that the mask (n, L) leaves."""
    return rows[torch.arange(len(rows), device=rows.device), mask.to(torch.int8).argmax(1)]
