"""The first layer and the matching of all pairs of some items by fused kernels: an operation a backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.heterogeneous_attention.first_layer import FirstLayerItems
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer, HeterogeneousOptions
from crossret_kernels.inputs.tensors import autocasts
from crossret_kernels.operations import Operand, define, for_gradients


def _side(item: str) -> tuple[Operand, ...]:
    """Tensors of `FirstLayerItems` of a side in float32, contiguous, and its items' lengths, (n,) int64."""
    parts = ("queries", "keys", "values", "own_logits", "own_values")
    return *(Operand(f"{item}_{part}", "Tensor", True) for part in parts), Operand(f"{item}_lengths", "Tensor")


_OPERANDS = (
    *_side("region"), *_side("word"), Operand("norm_weight", "Tensor", True), Operand("norm_bias", "Tensor", True),
)  # fmt: skip
# Options of the matching, used by the local one alone; modes are places among their names in Python.
_OPTIONS = (
    "float lambda_attention, bool local, int direction, float lambda_softmax, int pooling, float lambda_lse, "
    "bool bfloat16"
)


def _scores_like(*arguments: Any) -> Tensor:
    region_queries, word_queries = arguments[0], arguments[len(_side(""))]
    return region_queries.new_empty(region_queries.size(0), word_queries.size(0))


# Operations by backend.
_NAMES = {"cpu": "heterogeneous_attention", "triton": "heterogeneous_attention_triton"}
_TRITON = tuple(f"heterogeneous_attention.triton.{name}" for name in ("forward:scores_of", "backward:gradients"))
KERNELS = {
    backend: define(name, _OPERANDS, _OPTIONS, _scores_like, kernels=() if backend == "cpu" else _TRITON)
    for backend, name in _NAMES.items()
}


def fused_scores(
    backend: str,
    images: FirstLayerItems,
    captions: FirstLayerItems,
    layer: HeterogeneousLayer,
    options: HeterogeneousOptions,
    halves: bool,
    *,
    graph_alone: bool,
) -> Tensor:
    """Scores (n_images, n_captions) of float32 sides whose items have their rows in front.

    Args:
        halves: whether products may be made of bfloat16, as they are under autocast to it.
        graph_alone: whether no values are wanted.
    """
    sides = (
        x if x.dtype != torch.bool else x.sum(1)
        for side in (images, captions)
        for x in (part.contiguous() for part in side)
    )
    codes = dict(zip(ScanOptions.coded(), options.local.codes, strict=True))
    local, device = options.matching == "local", images.mask.device.type
    halves = halves or (autocasts(device) and torch.get_autocast_dtype(device) == torch.bfloat16)
    score = for_gradients(_NAMES[backend]) if graph_alone else KERNELS[backend]
    scores: Tensor = score(
        *sides, layer.norm_weight, layer.norm_bias, options.lambda_attention, local,
        *(codes[name] for name in ("direction", "lambda_softmax", "pooling", "lambda_lse")), halves,
    )  # fmt: skip
    return scores


def in_front(rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n, L, D) and their mask (n, L), those of each item that it leaves ahead of all others."""
    order = (~mask).to(torch.int8).sort(dim=1, stable=True).indices
    if mask.equal(mask.gather(1, order)):
        return rows, mask
    return rows.gather(1, order[:, :, None].expand_as(rows)), mask.gather(1, order)


def _attended_like(projected: Tensor, mask: Tensor, heads: int, scale: float) -> Tensor:
    return projected.new_empty((*projected.shape[:-1], projected.size(-1) // 3))


# softmax(λ q kᵀ) v of each head, (P, T, D), of float32 queries, keys and values (P, T, 3 D) and a mask (P, T).
self_attention = define(
    "self_attention", (Operand("projected", "Tensor", True), Operand("mask", "Tensor")),
    "int heads, float lambda_attention", _attended_like,
)  # fmt: skip
