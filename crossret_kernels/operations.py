"""`define`: an operation of torch.ops.crossret with its schema, fake, autograd and autocast, once for all backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from crossret_kernels.torch_internals import called_directly, nothing_dispatches, transformed, without_autocast

_LIBRARY = torch.library.Library("crossret", "DEF")
_FOR_GRADIENTS: dict[str, Callable[..., Any]] = {}  # by the operation's name
DEVICE_TYPES = {"cpu": ("CPU", "AutocastCPU"), "cuda": ("CUDA", "AutocastCUDA")}  # and their dispatch keys


class Operand(NamedTuple):
    """A tensor that an operation takes: its name, its kind in schema notation, and whether gradients go to it."""

    name: str
    kind: str = "Tensor?"
    differentiable: bool = False


def define(
    name: str, operands: Sequence[Operand], options: str, fake: Callable[..., Any] | None = None, *,
    made: str = "Tensor", results: int = 1, kernels: Sequence[str] = (), autocast: bool = False,
    saves: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Registers ``crossret::<name>``, which takes the operands, then `options`, in schema notation, and returns `made`.

    Where an operand is differentiable there is ``crossret::<name>_backward`` too: it takes the gradients of the first
    `results`, all further results, which are made for it and have no gradient, then what the operation takes, and of
    several differentiable operands a flag for each, whether its gradient is wanted; it returns theirs. The overload
    "plain" of either passes autograd by.

    Args:
        fake: makes results without values, of the same arguments; not those that are saved. An operation without one
            is called within host code alone.
        kernels: names of host code in Python, "package.module:function" within this package, for results and for
            gradients; imported when it is first needed, so that Triton may be absent. Without it the kernels live in
            csrc, and are registered when the native library loads.
        autocast: whether features are cast to the dtype in force there.
        saves: whether the last argument, ``bool save``, which callers do not pass, asks for the further results: they
            are empty without it, where nothing is recorded or `torch.compile` has to know their shapes, and gradients
            then do without them.

    Returns the first result, or the first few in a tuple, as a function of the same arguments, differentiable under
    `torch.func`, too.
    """
    parts = [*(f"{operand.kind} {operand.name}" for operand in operands), options, "bool save" if saves else ""]
    schema = ", ".join(filter(None, parts))
    differentiable = [index for index, operand in enumerate(operands) if operand.differentiable]
    forward, backward = ([*map(_Python, kernels), None, None])[:2]
    if not differentiable:
        _register(name, f"({schema}) -> {made}", fake, forward, plain=True)
        operation = getattr(torch.ops.crossret, name).default
        if autocast:
            _register_autocast(name, operation)
        return called_directly(operation) if not autocast else operation
    n_kept = made.count("Tensor") - results
    n_ahead = results + n_kept  # of a gradient's arguments, ahead of the operation's own
    fake = _fake_with_empty(fake, n_kept) if saves and fake is not None else fake
    flags = [f"bool {operands[index].name}_need_grad" for index in differentiable if len(differentiable) > 1]
    saved = [f"Tensor kept_{index}" for index in range(n_ahead - results)]
    grads = ["Tensor grad"] if results == 1 else [f"Tensor grad_{index}" for index in range(results)]
    gradients_schema = ", ".join([*grads, *saved, schema, *flags])
    gradient_types = ", ".join(["Tensor"] * len(differentiable))
    gradient_types = f"({gradient_types})" if len(differentiable) > 1 else gradient_types
    for plain in (False, True):
        overload = ".plain" if plain else ""
        _register(name + overload, f"({schema}) -> {made}", fake, forward, plain)
        fake_back = _fake_gradients([n_ahead + index for index in differentiable])
        _register(f"{name}_backward{overload}", f"({gradients_schema}) -> {gradient_types}", fake_back, backward, plain)
    operation, gradients = (getattr(torch.ops.crossret, f"{name}{suffix}") for suffix in ("", "_backward"))

    features = _pick(differentiable)
    inputs = _pick([*range(results), *(n_ahead + index for index in differentiable)])
    count = n_ahead + len(operands)
    once = _differentiable(gradients.plain, _refuses(f"{name}_backward"), count, [], len(differentiable))
    directly = _directly(operation, features, forward)
    eager_gradients = _eagerly(gradients, inputs, _directly(gradients, inputs, backward), once.apply, once.apply, False)
    function = _differentiable(operation.plain, eager_gradients, len(operands), differentiable, results)
    recording = _recorded(function, directly, results)
    if fake is not None and n_ahead == results:
        valueless = _recorded(function, fake, results)
        _FOR_GRADIENTS[name] = lambda *arguments: valueless.apply(*features(arguments), arguments)
    for target, rule in ((f"{name}_backward", once), (name, function)):
        torch.library.register_autograd(
            f"crossret::{target}", rule.backward, setup_context=rule.setup_context, lib=_LIBRARY
        )
    if autocast:
        _register_autocast(name, operation.default)
        _register_autocast(f"{name}.plain", operation.plain)

    def record(*arguments: Any) -> Any:
        return recording.apply(*features(arguments), arguments)

    def transform(*arguments: Any) -> Any:
        device_type = "cuda" if features(arguments)[0].is_cuda else "cpu"
        if autocast and torch.is_autocast_enabled(device_type):  # whose casts no registered autograd takes back here
            arguments = _cast(arguments, device_type)
        return function.apply(*arguments)

    eager = _eagerly(operation, features, directly, record, transform, saves)
    if not n_kept:
        return eager
    index = 0 if results == 1 else slice(results)
    return lambda *arguments: eager(*arguments)[index]


def for_gradients(name: str) -> Callable[..., Any]:
    """The operation of this name for its backward pass alone: what it returns has a graph and no values.

    For gradients that are given already, of results that are not looked at: the forward pass is not run for them.
    """
    return _FOR_GRADIENTS[name]


def needs_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd records what is made of these."""
    for tensor in tensors:
        if tensor.requires_grad:
            return is_grad_enabled()
    return False


class _Python:
    """Host code in Python, found at the first call, with the current device that of what it is given."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _function(self) -> Callable[..., Any]:
        module, _, function = self._name.partition(":")
        target: Callable[..., Any] = getattr(import_module(f"crossret_kernels.{module}"), function)
        return target

    def run(self, *arguments: Any) -> Any:
        features = arguments[0]
        if not features.is_cuda or features.get_device() == torch.cuda.current_device():
            return self._function(*arguments)
        with torch.cuda.device(features.device):  # Triton launches on the current device, whatever it is given
            return self._function(*arguments)

    def __call__(self, *arguments: Any) -> Any:
        device_type = "cuda" if arguments[0].is_cuda else "cpu"
        if not torch.is_autocast_enabled(device_type):
            return self.run(*arguments)
        with without_autocast(device_type):  # whatever is cast has been, and sums are float32
            return self.run(*arguments)


def _register(name: str, schema: str, fake: Callable[..., Any] | None, python: _Python | None, plain: bool) -> None:
    """Defines ``crossret::<name>``; calls of a plain one pass autograd by. Kernels in Python run on CUDA devices, and
    on the CPU where tests run them there.
    """
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    if fake is not None or schema.endswith("-> ()"):
        torch.library.register_fake(f"crossret::{name}", fake or (lambda *_: None), lib=_LIBRARY)
    if plain:
        _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    for key, _of_autocast in DEVICE_TYPES.values() if python else ():
        _LIBRARY.impl(name, python, key)


def _fake_with_empty(fake: Callable[..., Any], count: int) -> Callable[..., Any]:
    def fake_all(*arguments: Any) -> Any:
        result = fake(*arguments[:-1])
        return result, *(result.new_empty(0) for _ in range(count))

    return fake_all


def _fake_gradients(differentiable: Sequence[int]) -> Callable[..., Any]:
    def fake(*arguments: Any) -> Any:
        if len(differentiable) == 1:
            return arguments[differentiable[0]].new_empty(arguments[differentiable[0]].shape)
        needs = zip(differentiable, arguments[-len(differentiable) :], strict=True)
        return tuple(arguments[index].new_empty(arguments[index].shape if want else (0,)) for index, want in needs)

    return fake


def _pick(indices: Sequence[int]) -> Callable[..., Any]:
    """A function that picks the arguments of these indices."""
    return itemgetter(*indices) if len(indices) > 1 else lambda arguments: [arguments[indices[0]]]


def _eagerly(
    operation: Any, features: Callable[..., Any], directly: Callable[..., Any], record: Callable[..., Any],
    transform: Callable[..., Any], saves: bool,
) -> Callable[..., Any]:  # fmt: skip
    """The operation as Python calls it; `features` picks the arguments that may require gradients.

    The operation's registered autograd serves torch.compile, and autocast, which casts ahead of it. Elsewhere it costs
    several times a small score, so that the call is an autograd.Function, its equal, where gradients are required,
    `record`, and goes past autograd, `directly`, where none is. Under torch.func's transforms it is `transform`, one of
    the newer kind: registered autograd does not know those, and under forward-mode differentiation it would drop the
    derivative where the function refuses.
    """

    no, yes = ((False,), (True,)) if saves else ((), ())

    def call(*arguments: Any) -> Any:
        if is_compiling():
            return operation.default(*arguments, *no)
        if transformed():
            return transform(*arguments, *no)
        tensors = features(arguments)
        if needs_gradient(tensors):
            autocast = torch.is_autocast_enabled("cuda" if tensors[0].is_cuda else tensors[0].device.type)
            return (operation.default if autocast else record)(*arguments, *yes)
        return directly(*arguments, *no)

    return call


def _directly(operation: Any, features: Callable[..., Any], python: _Python | None) -> Callable[..., Any]:
    """The operation past autograd; host code in Python is called as it is where the dispatcher has nothing to add: the
    way there and back takes as long as all else that a small score costs the host.
    """
    plain = called_directly(operation.plain, features)
    if python is None:
        return plain
    return lambda *arguments: (python.run if nothing_dispatches(features(arguments)) else plain)(*arguments)


def _differentiable(
    plain: Callable[..., Any],
    gradients: Callable[..., Any],
    n_operands: int,
    differentiable: Sequence[int],
    n_results: int,
) -> Any:
    """A plain operation with its gradients as an autograd.Function."""
    several = len(differentiable) > 1

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            results = plain(*arguments)
            return results if isinstance(results, Tensor) else tuple(results)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) and len(output) > n_results:
                ctx.mark_non_differentiable(*output[n_results:])
            Rule.keep(ctx, inputs, output)

        @staticmethod
        def keep(ctx: Any, inputs: tuple[Any, ...], results: Tensor | Sequence[Tensor]) -> None:
            saved = () if isinstance(results, Tensor) else results[n_results:]
            ctx.save_for_backward(*saved, *inputs[:n_operands])
            ctx.options = inputs[n_operands:]

        @staticmethod
        def grads_of(ctx: Any, grads: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
            """Gradients of the differentiable arguments."""
            if not several:
                return [gradients(*grads, *ctx.saved_tensors, *ctx.options)]
            results = gradients(*grads, *ctx.saved_tensors, *ctx.options, *needed)
            return [gradient if need else None for gradient, need in zip(results, needed, strict=True)]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            results = Rule.grads_of(ctx, grads[:n_results], [ctx.needs_input_grad[index] for index in differentiable])
            gradient_at = dict(zip(differentiable, results, strict=True))
            return tuple(gradient_at.get(index) for index in range(n_operands + len(ctx.options)))

    return Rule


def _recorded(function: Any, directly: Callable[..., Any], n_results: int) -> Any:
    """The function that `_differentiable` makes, of its differentiable arguments alone and, in one more, of all.

    It is of the older kind: torch binds a newer one's arguments by inspection, and looks at each of them several times,
    which costs as much as a small score. It returns the results that have a gradient; those of several, in a tuple.
    """

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            arguments = inputs[-1]
            results = directly(*arguments)
            function.keep(ctx, arguments, results)
            return results if isinstance(results, Tensor) else tuple(results[:n_results])

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            return (*function.grads_of(ctx, grads, ctx.needs_input_grad[:-1]), None)

    return Recorded


def _refuses(name: str) -> Callable[..., Any]:
    """The gradients of gradients, which would count as 0 if they were not refused."""

    def refuse(*arguments: Any) -> Any:
        raise RuntimeError(
            f"crossret::{name} cannot be differentiated: second derivatives are served by backend='torch'"
        )

    return refuse


def _register_autocast(name: str, operation: Callable[..., Any]) -> None:
    """Under autocast, features are cast to the dtype in force there.

    `torch.library.register_autocast` would fix one dtype at registration; this asks for the user's.
    """
    for device_type, (_key, autocast_key) in DEVICE_TYPES.items():

        def kernel(*arguments: Any, device_type: str = device_type) -> Any:
            with without_autocast(device_type):
                return operation(*_cast(arguments, device_type))

        _LIBRARY.impl(name, kernel, autocast_key)


def _cast(arguments: tuple[Any, ...], device_type: str) -> tuple[Any, ...]:
    """Arguments, features in the dtype that autocast has in force."""
    dtype = torch.get_autocast_dtype(device_type)

    def cast(value: Any) -> Any:
        eligible = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if eligible else value

    return tuple(map(cast, arguments))


_LIBRARY.define("cpu_isas() -> str")
_LIBRARY.define("selected_cpu_isa(str dtype='float32') -> str")
_LIBRARY.define("select_cpu_isa(str name) -> ()")
_LIBRARY.define("cuda_architectures() -> str")
_LIBRARY.define("attention_told() -> str")
