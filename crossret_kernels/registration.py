"""Registration of the pairwise score operations: schemas, fake kernels, autograd and autocast, once for all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

_LIBRARY = torch.library.Library("crossret", "DEF")
_RAGGED = (
    "Tensor regions, Tensor? region_offsets, Tensor? region_lengths, "
    "Tensor words, Tensor? word_offsets, Tensor? word_lengths, Tensor? pairs"
)
_TENSORS = 7  # arguments of _RAGGED, ahead of an operation's options
_REGIONS, _WORDS = 0, 3  # which of them get gradients


def define_scores(name: str, options: str, module: str | None = None) -> Callable[..., Tensor]:
    """Registers ``crossret::<name>`` and ``crossret::<name>_backward``, which score images and captions.

    Both take the two ragged sides and the pairs, then `options`, in schema notation. Their kernels are `scores` and
    `gradients` of `module`, imported at the first call; without one they live in csrc and are registered when the
    native library loads. Scores are (n_images, n_captions) or (P,), float32. Returns the operation as a function that
    is differentiable under `torch.func` too.
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
    if module is not None:
        _implement(name, module, "scores")
        _implement(f"{name}_backward", module, "gradients")
    operation = getattr(torch.ops.crossret, name).default
    gradients = getattr(torch.ops.crossret, f"{name}_backward").default
    once = _differentiable_once(gradients, f"{name}_backward")
    function = _differentiable(operation, _eagerly(gradients, once, (0, 1 + _REGIONS, 1 + _WORDS)))
    for registered, rule in ((f"{name}_backward", once), (name, function)):
        torch.library.register_autograd(
            f"crossret::{registered}", rule.backward, setup_context=rule.setup_context, lib=_LIBRARY
        )
    for device_type in ("cpu", "cuda"):
        _register_autocast(name, operation, device_type)
    return _eagerly(operation, function, (_REGIONS, _WORDS))


def define_indices(name: str, options: str, module: str | None = None) -> Callable[..., Tensor]:
    """Registers ``crossret::<name>``, which finds an index for every query of every pair; returns the operation.

    It takes what scores take, then `options`, in schema notation, then the number of queries a pair has a place for:
    None for that of the longest item. Indices are (n_images, n_captions, Q) or (P, Q), int64, and have no gradient. Its
    kernel is `indices` of `module`, or in csrc.
    """
    _LIBRARY.define(f"{name}({_RAGGED}, {options}, SymInt? width) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"crossret::{name}", _fake_indices, lib=_LIBRARY)
    if module is not None:
        _implement(name, module, "indices")
    operation = getattr(torch.ops.crossret, name).default
    for device_type in ("cpu", "cuda"):
        _register_autocast(name, operation, device_type)
    return cast("Callable[..., Tensor]", operation)


def _implement(name: str, module: str, function: str) -> None:
    """Kernels in Python: on CUDA devices and, where Triton interprets them, on the CPU."""

    def kernel(*arguments: Any) -> Any:
        run = getattr(importlib.import_module(module), function)
        features = next(argument for argument in arguments if isinstance(argument, Tensor))
        if not features.is_cuda:
            return run(*arguments)
        with torch.cuda.device(features.device):  # Triton launches on the current device, whatever it is given
            return run(*arguments)

    for key in ("CUDA", "CPU"):
        _LIBRARY.impl(name, kernel, key)


def _fake_scores(*arguments: Any) -> Tensor:
    scores: Tensor = arguments[_REGIONS].new_empty(_shape_of_pairs(arguments), dtype=torch.float32)
    return scores


def _fake_indices(*arguments: Any) -> Tensor:
    width = arguments[-1]
    if width is None:
        width = torch.library.get_ctx().new_dynamic_size()
    indices: Tensor = arguments[_REGIONS].new_empty((*_shape_of_pairs(arguments), width), dtype=torch.int64)
    return indices


def _shape_of_pairs(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    regions, region_offsets, _, words, word_offsets, _, pairs = arguments[:_TENSORS]
    if pairs is not None:
        return (pairs.size(0),)
    return tuple(
        values.size(0) if offsets is None else offsets.size(0) - 1
        for values, offsets in ((regions, region_offsets), (words, word_offsets))
    )


def _fake_gradients(_grad_scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    regions, words, needed = arguments[_REGIONS], arguments[_WORDS], arguments[-2:]
    return (
        regions.new_empty(regions.shape if needed[0] else (0,)),
        words.new_empty(words.shape if needed[1] else (0,)),
    )


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def needs_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd records what is made of these."""
    return torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors])


def _eagerly(operation: Callable[..., Any], function: Any, differentiable: tuple[int, ...]) -> Callable[..., Any]:
    """The operation as Python calls it; `differentiable` arguments are tensors that may require gradients.

    The operation's registered autograd serves torch.compile, and autocast, which casts ahead of it. Elsewhere it costs
    several times a small score, so that the call is `function`, its equal as an autograd.Function, where gradients are
    required, and goes below autograd where none is. Under torch.func's transforms it is `function` too: registered
    autograd does not know those, and under forward-mode differentiation it would drop the derivative where the function
    refuses.
    """
    below = _below_autograd(operation)

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return operation(*arguments)
        if transformed():
            return function.apply(*arguments)
        if not needs_gradient([arguments[index] for index in differentiable]):
            return below(*arguments)
        autocast = torch.is_autocast_enabled(arguments[differentiable[0]].device.type)
        return operation(*arguments) if autocast else function.apply(*arguments)

    return call


def _below_autograd(operation: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operation(*arguments)

    return call


def _differentiable(operation: Callable[..., Tensor], gradients: Callable[..., tuple[Tensor, Tensor]]) -> Any:
    """The operation with its gradient as an autograd.Function."""

    below = _below_autograd(operation)

    class Scores(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            scores: Tensor = below(*arguments)
            return scores

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


def _differentiable_once(gradients: Callable[..., tuple[Tensor, Tensor]], name: str) -> Any:
    """The gradients as an autograd.Function that refuses to be differentiated: unregistered, they would count as 0."""

    below = _below_autograd(gradients)

    class Gradients(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
            of_regions, of_words = below(*arguments)
            return of_regions, of_words

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> None:
            raise RuntimeError(
                f"crossret::{name} cannot be differentiated: second derivatives are served by backend='torch'"
            )

    return Gradients


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
_LIBRARY.define("select_cpu_isa(str name) -> ()")
