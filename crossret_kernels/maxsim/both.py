"""Sum-Max in both directions: the CPU's kernels take both from one product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from crossret_kernels.backends import select_backend
from crossret_kernels.inputs.call import Call
from crossret_kernels.inputs.options import DIRECTIONS
from crossret_kernels.inputs.tensors import autocasts
from crossret_kernels.maxsim.op import MAXSIM_OPTIONS, score_call
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.operations import define, needs_gradient
from crossret_kernels.torch_internals import reduced_float32, transformed
from crossret_kernels.two_sides import PLAIN_SIDES, scores_both_ways_like

_BOTH = define("maxsim_both", PLAIN_SIDES, MAXSIM_OPTIONS, scores_both_ways_like, made="(Tensor, Tensor)")
_GRADIENTS = torch.ops.crossret.maxsim_scores_backward.default  # which refuses to be differentiated
# Similarities of a pair at most: every thread holds a group's with a block. Of longer items either direction is found
# part by part.
MOST_CELLS = 2**21
_TENSORS = 9  # of the operation's arguments


def score_both_ways(call: Call, options: MaxSimOptions, backend: str | None) -> tuple[Tensor, Tensor]:
    """`score_call` in the direction of the options, and in the other one.

    One product is made of the two on the CPU; by other backends, of items that are too long, under autocast, torch.func
    and torch.compile there are two, and gradients always take one for each direction.
    """
    device, images, captions = call.values.device, call.images, call.captions
    twice = is_compiling() or transformed() or autocasts(device.type)
    twice = twice or select_backend(backend, device, call.values.dtype) != "cpu"
    if twice or images.width * captions.width > MOST_CELLS:
        turned = replace(options, direction=DIRECTIONS[1 - DIRECTIONS.index(options.direction)])
        return score_call(call, options, backend), score_call(call, turned, backend)
    sides = images.joined().tensors() + captions.joined().tensors()
    arguments = (*sides, call.listed, call.empty_score, reduced_float32(on_gpu=False), *options.codes)
    if not needs_gradient((sides[0], sides[4])):
        return _BOTH(*arguments)
    made: tuple[Tensor, Tensor] = _BothWays.apply(sides[0], sides[4], arguments)  # type: ignore[no-untyped-call]
    return made


class _BothWays(torch.autograd.Function):
    """Gradients are those of either direction's scores, which know of each other's nothing."""

    @staticmethod
    def forward(ctx: Any, _regions: Tensor, _words: Tensor, arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arguments[:_TENSORS])
        ctx.options = arguments[_TENSORS:]
        return _BOTH(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:2]
        saved = ctx.saved_tensors  # which torch.utils.checkpoint hands out once
        sums: list[Tensor | None] = [None, None]
        for turned, grad in enumerate(grads):
            if grad is None:
                continue
            empty_score, reduced, direction, *others = ctx.options
            options = empty_score, reduced, 1 - direction if turned else direction, *others
            made = _GRADIENTS(grad, grad.new_empty(0), *saved, *options, False, *needed)  # of which nothing was kept
            for own, (gradient, wanted) in enumerate(zip(made, needed, strict=True)):
                before = sums[own]
                if wanted:
                    sums[own] = gradient if before is None else before + gradient
        return (*sums, None)
