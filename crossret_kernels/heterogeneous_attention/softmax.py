"""Softmaxes with the same bits by any number of threads.

PyTorch cuts the gradients of a softmax, its sums' exponentials, and any softmax that does not run along memory into as
many parts as there are threads, and on some processors the ends of a part round otherwise.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from crossret_kernels.dense.op import Products
from crossret_kernels.padded.arithmetic import has_float64


def softmax(logits: Tensor, products: Products) -> Tensor:
    """The softmax of logits (…, J) over their last dimension.

    Its gradients have these bits where kernels serve; where not, they can be differentiated again.
    """
    if not products.serve(logits):
        return torch.softmax(logits.contiguous(), -1)
    return cast("Tensor", cast(Any, _Softmax).apply(logits))


def softmax_with_sums(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of logits (…, J), and log Σ exp of them (…,), which are differentiated once."""
    weights = cast("Tensor", cast(Any, _Softmax).apply(logits))
    return weights, cast("Tensor", cast(Any, _LogSum).apply(logits, weights.detach()))


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        weights = torch.softmax(logits.contiguous(), -1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return cast("Tensor", weights * (grad - (weights * grad).sum(-1, keepdim=True)))


class _LogSum(torch.autograd.Function):
    """From the weights: one logarithm a row is left, where it can be of float64 and rounded."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        largest = weights.amax(-1)
        wide = largest.double() if has_float64(largest.device) else largest
        return logits.amax(-1) - wide.log().to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return weights * grad[..., None], None
