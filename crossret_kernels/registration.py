"""Registration of the pairwise score operations: schemas, fake kernels, autograd and autocast, once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("crossret", "DEF")
_RAGGED = (
    "Tensor regions, Tensor region_starts, Tensor region_lengths, "
    "Tensor words, Tensor word_starts, Tensor word_lengths, Tensor? pairs"
)
_TENSORS = 7  # arguments of _RAGGED, ahead of an operation's options
_REGIONS, _WORDS = 0, 3  # which of them get gradients


def define_scores(name: str, options: str) -> Callable[..., Tensor]:
    """Registers ``crossret::<name>`` and ``crossret::<name>_backward``, which score images and captions.

    Both take the two ragged sides and the pairs, then `options`, in schema notation. The kernels live in csrc and are
    registered when the native library loads. Scores are (n_images, n_captions) or (P,), float32. Returns the operation
    as a function that is differentiable under `torch.func` too.
    """
    tags = (torch.Tag.pt2_compliant_tag,)
    _LIBRARY.define(f"{name}({_RAGGED}, {options}) -> Tensor", tags=tags)
    _LIBRARY.define(
        f"{name}_backward(Tensor grad_scores, {_RAGGED}, {options}, bool regions_need_grad, bool words_need_grad)"
        " -> (Tensor, Tensor)",
        tags=tags,
    )
    torch.library.register_fake(f"crossret::{name}", _fake_scores, lib=_LIBRARY)
    torch.library.register_fake(f"crossret::{name}_backward", _fake_gradients, lib=_LIBRARY)
    operation = getattr(torch.ops.crossret, name)
    function = _differentiable(name, operation)
    torch.library.register_autograd(
        f"crossret::{name}", function.backward, setup_context=function.setup_context, lib=_LIBRARY
    )
    for device_type in ("cpu", "cuda"):
        _register_autocast(name, operation, device_type)

    def call(*arguments: Any) -> Tensor:
        # An operation's registered autograd does not know torch.func's transforms; an autograd.Function does.
        transformed = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
        scores: Tensor = function.apply(*arguments) if transformed else operation(*arguments)
        return scores

    return call


def _fake_scores(*arguments: Any) -> Tensor:
    regions, region_starts, _, _, word_starts, _, pairs = arguments[:_TENSORS]
    shape = (region_starts.size(0), word_starts.size(0)) if pairs is None else (pairs.size(0),)
    scores: Tensor = regions.new_empty(shape, dtype=torch.float32)
    return scores


def _fake_gradients(_grad_scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    regions, words, needed = arguments[_REGIONS], arguments[_WORDS], arguments[-2:]
    return (
        regions.new_empty(regions.shape if needed[0] else (0,)),
        words.new_empty(words.shape if needed[1] else (0,)),
    )


def _differentiable(name: str, operation: Callable[..., Tensor]) -> Any:
    """The operation's gradient as an autograd.Function."""
    gradients = getattr(torch.ops.crossret, f"{name}_backward")

    class Scores(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            return operation(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs[:_TENSORS])
            ctx.options = inputs[_TENSORS:]

        @staticmethod
        def backward(ctx: Any, grad_scores: Tensor) -> tuple[Tensor | None, ...]:
            needed = (ctx.needs_input_grad[_REGIONS], ctx.needs_input_grad[_WORDS])
            regions, words = gradients(grad_scores, *ctx.saved_tensors, *ctx.options, *needed)
            grads: list[Tensor | None] = [None] * (_TENSORS + len(ctx.options))
            grads[_REGIONS] = regions if needed[0] else None
            grads[_WORDS] = words if needed[1] else None
            return tuple(grads)

    return Scores


def _register_autocast(name: str, operation: Callable[..., Tensor], device_type: str) -> None:
    """Under autocast, features are cast to the dtype in force there.

    `torch.library.register_autocast` would fix one dtype at registration; this asks for the user's.
    """
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}[device_type]

    def kernel(_keys: Any, *arguments: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type)

        def cast(value: Any) -> Any:
            eligible = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(dtype) if eligible else value

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))):
            return operation(*(cast(argument) for argument in arguments))

    _LIBRARY.impl(name, kernel, key, with_keyset=True)


_LIBRARY.define("cpu_isas() -> str")
_LIBRARY.define("selected_cpu_isa() -> str")
