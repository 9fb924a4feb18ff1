"""Gradients of parameters that every rank has, summed over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crossret.distributed.group import Group

_BUCKET_BYTES = 32 * 2**20  # sent at a time: few messages, and little memory beside the gradients


def sum_gradients(group: Group, parameters: Iterable[nn.Parameter]) -> None:
    """Give every parameter the sum of its gradients on all ranks, with the same bits on each.

    A parameter without a gradient on any rank keeps none: an optimizer leaves it alone, as it does in one process.

    Args:
        parameters: the same on all ranks, in the same order.
    """
    if group.size == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    present = group.summed([parameter.grad is not None for parameter in trained])
    gradients = []
    for parameter, ranks in zip(trained, present, strict=True):
        if ranks and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        message = torch.cat([gradient.flatten() for gradient in bucket])
        with group.talking("sum of gradients"):
            dist.all_reduce(message)
        parts = message.split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients that go in one message: of one dtype, and not too many bytes of them."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        size = sum(each.nbytes for each in bucket)
        if bucket and (gradient.dtype != bucket[0].dtype or size + gradient.nbytes > _BUCKET_BYTES):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
