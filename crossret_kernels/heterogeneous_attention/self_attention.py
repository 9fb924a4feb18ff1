"""One layer's attention within pairs by a native kernel: no head is copied out, no logit is kept."""

from __future__ import annotations

from torch import Tensor

from crossret_kernels.operations import Operand, define


def _attended_like(projected: Tensor, mask: Tensor, heads: int, scale: float) -> Tensor:
    return projected.new_empty((*projected.shape[:-1], projected.size(-1) // 3))


# softmax(λ q kᵀ) v of each head, (P, T, D), of float32 queries, keys and values (P, T, 3 D) and a mask (P, T).
self_attention = define(
    "self_attention", (Operand("projected", "Tensor", True), Operand("mask", "Tensor")),
    "int heads, float lambda_attention", _attended_like,
)  # fmt: skip
