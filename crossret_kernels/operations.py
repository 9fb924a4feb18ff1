"""Registration of the pairwise score operations and of losses: schemas, fake kernels, autograd and autocast, once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple, cast

import torch
from torch import _C, Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling

_LIBRARY = torch.library.Library("crossret", "DEF")
_AUTOCAST = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU) | _C.DispatchKeySet(_C.DispatchKey.AutocastCUDA)


class Operand(NamedTuple):
    """A tensor that an operation takes: its name, its kind in schema notation, and whether gradients go to it."""

    name: str
    kind: str = "Tensor?"
    differentiable: bool = False


def _side(features: str, item: str) -> tuple[Operand, ...]:
    return Operand(features, "Tensor", True), *(Operand(f"{item}_{part}") for part in ("offsets", "lengths", "mask"))


# As `Ragged.tensors` gives them. Masks are (n, L) bool, of padded features alone.
SIDES = (*_side("regions", "region"), *_side("words", "word"), Operand("pairs"))
# As `Ragged.listed` does: several items without offsets, lengths or mask, or one tensor with them.
LISTED_SIDES = tuple(operand._replace(kind="Tensor[]") if operand.differentiable else operand for operand in SIDES)

# What operations in csrc go on with, ahead of their own options; modes are places among the names that Python has for
# them, as torch's stable ABI leaks every string it hands over.
NATIVE_OPTIONS = "float? empty_score, bool split_float32, int direction, bool normalize"


def define_scores(
    name: str, options: str, module: str | None = None, operands: Sequence[Operand] = SIDES
) -> Callable[..., Tensor]:
    """Registers ``crossret::<name>`` and ``crossret::<name>_backward``, which score images and captions.

    Both take the operands, among which are those of two ragged sides and the pairs, then `options`, in schema notation.
    The second begins with the scores' gradients and ends with a flag for each differentiable operand, whether its
    gradient is wanted; it returns theirs. Their kernels are `forward.scores` and `backward.gradients` of `module`,
    imported at the first call; without one they live in csrc and are registered when the native library loads. Scores
    are (n_images, n_captions) or (P,), float32. Returns the operation as a function that is differentiable under
    `torch.func` too.
    The overload "plain" of either has no autograd.
    """
    tensors = _schema(operands)
    differentiable = [index for index, operand in enumerate(operands) if operand.differentiable]
    flags = ", ".join(f"bool {operands[index].name}_need_grad" for index in differentiable)
    made = ", ".join(["Tensor"] * len(differentiable))
    arguments = f"Tensor grad_scores, {tensors}, {options}, {flags}"
    kernels: list[Callable[..., Any] | None] = [None, None]
    for overload in ("", ".plain"):
        scores, backward, plain = f"{name}{overload}", f"{name}_backward{overload}", overload == ".plain"
        _define(scores, f"({tensors}, {options}) -> Tensor", _fake_scores(operands), plain)
        _define(backward, f"({arguments}) -> ({made})", _fake_gradients(differentiable), plain)
        if module is not None:
            kernels = [
                _implement(scores, f"{module}.forward", "scores"),
                _implement(backward, f"{module}.backward", "gradients"),
            ]
    operation, gradients = (getattr(torch.ops.crossret, f"{name}{suffix}") for suffix in ("", "_backward"))
    once = _differentiable_once(gradients.plain, f"{name}_backward")
    grads, features = _picked([0, *(1 + index for index in differentiable)]), _picked(differentiable)
    own = _eagerly(gradients, grads, _directly(gradients, grads, kernels[1]), once.apply, once.apply)
    function = _differentiable(operation.plain, own, len(operands), differentiable)
    directly = _directly(operation, features, kernels[0])
    for registered, rule in ((f"{name}_backward", once), (name, function)):
        torch.library.register_autograd(
            f"crossret::{registered}", rule.backward, setup_context=rule.setup_context, lib=_LIBRARY
        )
    for device_type in ("cpu", "cuda"):
        _register_autocast(name, operation.default, device_type)
        _register_autocast(f"{name}.plain", operation.plain, device_type)
    return _eagerly(operation, features, directly, _applied(_recorded(function, directly), features), function.apply)


def define_listed(name: str, options: str) -> Callable[..., Tensor]:
    """Registers ``crossret::<name>``, which scores lists where they lie; its kernel lives in csrc.

    Where a gradient, a transformation or autocast is to go through a list, its items are joined instead: the operation
    knows none of them.
    """
    _define(name, f"({_schema(LISTED_SIDES)}, {options}) -> Tensor", _fake_scores(LISTED_SIDES), plain=True)
    return cast("Callable[..., Tensor]", getattr(torch.ops.crossret, name).default)


def define_scores_both_ways(name: str, options: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Registers ``crossret::<name>``, which returns scores of either direction; its kernel lives in csrc.

    It takes what scores take, and has no gradient and no autocast.
    """
    fake = _fake_scores(SIDES)
    _define(
        name,
        f"({_schema(SIDES)}, {options}) -> (Tensor, Tensor)",
        lambda *given: (fake(*given), fake(*given)),
        plain=True,
    )
    return cast("Callable[..., tuple[Tensor, Tensor]]", getattr(torch.ops.crossret, name).default)


def define_indices(
    name: str, options: str, module: str | None = None, operands: Sequence[Operand] = SIDES
) -> Callable[..., Tensor]:
    """Registers ``crossret::<name>``, which finds an index for every query of every pair; returns the operation.

    It takes what scores take, then `options`, in schema notation, then the number of queries a pair has a place for:
    None for that of the longest item. Indices are (n_images, n_captions, Q) or (P, Q), int64, and have no gradient. Its
    kernel is `forward.indices` of `module`, or in csrc.
    """
    _define(name, f"({_schema(operands)}, {options}, SymInt? width) -> Tensor", _fake_indices(operands))
    if module is not None:
        _implement(name, f"{module}.forward", "indices")
    operation = getattr(torch.ops.crossret, name).default
    for device_type in ("cpu", "cuda"):
        _register_autocast(name, operation, device_type)
    return cast("Callable[..., Tensor]", operation)


def define_launch(name: str, arguments: str, made: str = "()") -> Callable[..., Any]:
    """Registers ``crossret::<name>``, by which host code in Python launches kernels in csrc: past autograd.

    It fills or changes tensors that it is given, or returns what `made` says, in schema notation.
    """
    _LIBRARY.define(f"{name}({arguments}) -> {made}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    if made == "()":
        torch.library.register_fake(f"crossret::{name}", lambda *_: None, lib=_LIBRARY)
    return partial(_C._dispatch_call_boxed, getattr(torch.ops.crossret, name).default._handle)


def define_loss(name: str, options: str, module: str | None = None) -> Callable[..., Sequence[Tensor]]:
    """Registers ``crossret::<name>`` and ``crossret::<name>_backward``: a loss over scores (n_rows, n_columns).

    Both take the scores, image_ids and caption_ids, (n_columns,) int64 or None, then `options`, in schema notation, of
    which the last two are the reduction, 2 for none, and an offset. The first returns the loss, float32, and statistics
    (4, n_rows) float32 from which the second, which takes the loss's gradient and them first, makes the scores'. Their
    kernels are `loss` and `gradient` of `module`, or in csrc. Returns the operation as a function that is
    differentiable once. Autocast passes it by.
    """
    tensors = "Tensor scores, Tensor? image_ids, Tensor? caption_ids"
    arguments = f"Tensor grad_loss, Tensor statistics, {tensors}, {options}"
    kernels: list[Callable[..., Any] | None] = [None, None]
    for overload in ("", ".plain"):
        loss, backward, plain = f"{name}{overload}", f"{name}_backward{overload}", overload == ".plain"
        _define(loss, f"({tensors}, {options}) -> (Tensor, Tensor)", _fake_loss, plain)
        _define(backward, f"({arguments}) -> Tensor", lambda *given: given[2].new_empty(given[2].shape), plain)
        if module is not None:
            kernels = [
                _implement(loss, f"{module}.forward", "loss"),
                _implement(backward, f"{module}.backward", "gradient"),
            ]
    operation, gradient = (getattr(torch.ops.crossret, f"{name}{suffix}") for suffix in ("", "_backward"))
    once = _differentiable_once(gradient.plain, f"{name}_backward")
    scores, grads = _picked([0]), _picked([0, 2])
    directly = _directly(operation, scores, kernels[0])
    own = _eagerly(gradient, grads, _directly(gradient, grads, kernels[1]), once.apply, once.apply)
    function, recorded = _loss_functions(directly, own)
    for registered, rule in ((f"{name}_backward", once), (name, function)):
        torch.library.register_autograd(
            f"crossret::{registered}", rule.backward, setup_context=rule.setup_context, lib=_LIBRARY
        )
    record = _applied(recorded, scores)
    return _eagerly(operation, scores, directly, record, record)  # of which torch.func says that it takes no such


def _define(name: str, schema: str, fake: Callable[..., Any], plain: bool = False) -> None:
    """Defines ``crossret::<name>``; calls of a plain one pass autograd by."""
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"crossret::{name}", fake, lib=_LIBRARY)
    if plain:
        _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")


def _schema(operands: Sequence[Operand]) -> str:
    return ", ".join(f"{operand.kind} {operand.name}" for operand in operands)


def _implement(name: str, module: str, function: str) -> Callable[..., Any]:
    """Kernels in Python, which it returns: on CUDA devices, and on the CPU where tests run kernels there."""

    @cache
    def implementation() -> Callable[..., Any]:
        return cast("Callable[..., Any]", getattr(importlib.import_module(module), function))

    def run(*arguments: Any) -> Any:
        features = arguments[0]
        if not features.is_cuda or features.get_device() == torch.cuda.current_device():
            return implementation()(*arguments)
        with torch.cuda.device(features.device):  # Triton launches on the current device, whatever it is given
            return implementation()(*arguments)

    def kernel(*arguments: Any) -> Any:
        if not torch.is_autocast_enabled("cuda" if arguments[0].is_cuda else "cpu"):
            return run(*arguments)
        with _C._ExcludeDispatchKeyGuard(_AUTOCAST):  # whatever is cast has been, and sums are float32
            return run(*arguments)

    for key in ("CUDA", "CPU"):
        _LIBRARY.impl(name, kernel, key)
    return kernel


def _fake_scores(operands: Sequence[Operand]) -> Callable[..., Tensor]:
    def fake(*arguments: Any) -> Tensor:
        shape, features = _shape_of_pairs(operands, arguments)
        return features.new_empty(shape, dtype=torch.float32)

    return fake


def _fake_indices(operands: Sequence[Operand]) -> Callable[..., Tensor]:
    def fake(*arguments: Any) -> Tensor:
        width = arguments[-1]
        if width is None:
            width = torch.library.get_ctx().new_dynamic_size()
        shape, features = _shape_of_pairs(operands, arguments)
        return features.new_empty((*shape, width), dtype=torch.int64)

    return fake


def _fake_loss(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    rows = scores.size(0)
    shape = (rows,) if arguments[-2] == 2 else ()
    return scores.new_empty(shape, dtype=torch.float32), scores.new_empty((4, rows), dtype=torch.float32)


def _shape_of_pairs(operands: Sequence[Operand], arguments: tuple[Any, ...]) -> tuple[tuple[int, ...], Tensor]:
    """The scores' shape, and features for their device."""
    given = {operand.name: argument for operand, argument in zip(operands, arguments, strict=False)}
    lists = [side if isinstance(side, list) else [side] for side in (given["regions"], given["words"])]
    if given["pairs"] is not None:
        return (given["pairs"].size(0),), lists[0][0]
    shape = (
        len(items) if len(items) > 1 else items[0].size(0) if offsets is None else offsets.size(0) - 1
        for items, offsets in zip(lists, (given["region_offsets"], given["word_offsets"]), strict=True)
    )
    return tuple(shape), lists[0][0]


def _fake_gradients(differentiable: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    def fake(_grad_scores: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        wanted = zip(differentiable, arguments[-len(differentiable) :], strict=True)
        return tuple(arguments[index].new_empty(arguments[index].shape if want else (0,)) for index, want in wanted)

    return fake


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    return forward_ad._current_level >= 0 or _C._are_functorch_transforms_active()


def split_float32() -> bool:
    """Whether the user allows products of float32 features in less than its precision, as torch's own are then."""
    # What torch.backends.mkldnn.matmul.fp32_precision returns. The older call raises where that has been set.
    return _C._get_fp32_precision_getter("mkldnn", "matmul") in ("tf32", "bf16")


# A constant of what torch.compile makes, which makes it anew when the precision has changed: as
# torch.compiler.assume_constant_result would mark it, which imports the compiler, seconds of every process.
split_float32._dynamo_marked_constant = True  # type: ignore[attr-defined]


def needs_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd records what is made of these."""
    for tensor in tensors:
        if tensor.requires_grad:
            return is_grad_enabled()
    return False


def _eagerly(
    operation: Any, features: Callable[..., Any], directly: Callable[..., Any], record: Callable[..., Any],
    transform: Callable[..., Any],
) -> Callable[..., Any]:  # fmt: skip
    """The operation as Python calls it; `features` picks the arguments that may require gradients.

    The operation's registered autograd serves torch.compile, and autocast, which casts ahead of it. Elsewhere it costs
    several times a small score, so that the call is an autograd.Function, its equal, where gradients are required,
    `record`, and goes past autograd, `directly`, where none is. Under torch.func's transforms it is `transform`, one of
    the newer kind: registered autograd does not know those, and under forward-mode differentiation it would drop the
    derivative where the function refuses.
    """

    def call(*arguments: Any) -> Any:
        if is_compiling():
            return operation.default(*arguments)
        if transformed():
            return transform(*arguments)
        given = features(arguments)
        if needs_gradient(given):
            autocast = torch.is_autocast_enabled("cuda" if given[0].is_cuda else given[0].device.type)
            return operation.default(*arguments) if autocast else record(*arguments)
        return directly(*arguments)

    return call


def _directly(operation: Any, features: Callable[..., Any], kernel: Callable[..., Any] | None) -> Callable[..., Any]:
    """The operation past autograd.

    A kernel in Python is called as it is where the dispatcher has nothing to add: its way there and back takes as long
    as all else that a small score costs the host. torch.ops asks for overrides of every argument, which costs as much;
    the dispatcher goes through subclasses and modes that have none of these all the same.
    """
    plain, plainly = operation.plain, partial(_C._dispatch_call_boxed, operation.plain._handle)

    def call(*arguments: Any) -> Any:
        given = features(arguments)
        if kernel is not None and _nothing_dispatches(given):
            return kernel(*arguments)
        return plain(*arguments) if _C._has_torch_function(given) else plainly(*arguments)

    return call


def _picked(indices: Sequence[int]) -> Callable[..., Any]:
    """What takes these of some arguments."""
    return itemgetter(*indices) if len(indices) > 1 else lambda arguments: [arguments[indices[0]]]


def _nothing_dispatches(tensors: Sequence[Tensor]) -> bool:
    """Whether these are plain tensors on devices that kernels in Python run on, and no mode or autocast is at work."""
    if _C._len_torch_dispatch_stack() or _C._len_torch_function_stack():
        return False
    for tensor in tensors:
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
    device_type = "cuda" if tensors[0].is_cuda else "cpu"
    return (device_type == "cuda" or tensors[0].is_cpu) and not torch.is_autocast_enabled(device_type)


def _differentiable(
    plain: Callable[..., Tensor],
    gradients: Callable[..., tuple[Tensor, ...]],
    tensors: int,
    differentiable: Sequence[int],
) -> Any:
    """A plain operation with its gradients as an autograd.Function; `tensors` arguments come ahead of its options."""

    class Scores(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            return plain(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs[:tensors])
            ctx.options = inputs[tensors:]

        @staticmethod
        def made(ctx: Any, grad_scores: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
            """Those of the differentiable arguments."""
            made = gradients(grad_scores, *ctx.saved_tensors, *ctx.options, *needed)
            return [gradient if wanted else None for gradient, wanted in zip(made, needed, strict=True)]

        @staticmethod
        def backward(ctx: Any, grad_scores: Tensor) -> tuple[Tensor | None, ...]:
            made = Scores.made(ctx, grad_scores, [ctx.needs_input_grad[index] for index in differentiable])
            by_index = dict(zip(differentiable, made, strict=True))
            return tuple(by_index.get(index) for index in range(tensors + len(ctx.options)))

    return Scores


def _applied(recorded: Any, features: Callable[..., Any]) -> Callable[..., Any]:
    """What applies a function that takes its differentiable arguments alone and, in one more, all.

    It is of the older kind: torch binds a newer one's arguments by inspection, and looks at each of them several times,
    which costs as much as a small score.
    """
    return lambda *arguments: recorded.apply(*features(arguments), arguments)


def _recorded(function: Any, directly: Callable[..., Any]) -> Any:
    """What `_differentiable` makes, for `_applied`."""

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Tensor:
            arguments = given[-1]
            scores: Tensor = directly(*arguments)
            function.setup_context(ctx, arguments, scores)
            return scores

        @staticmethod
        def backward(ctx: Any, grad_scores: Tensor) -> tuple[Tensor | None, ...]:
            return (*function.made(ctx, grad_scores, ctx.needs_input_grad[:-1]), None)

    return Recorded


def _loss_functions(directly: Callable[..., Any], gradient: Callable[..., Tensor]) -> tuple[Any, Any]:
    """A loss with its gradient: as registered autograd takes it, and for `_applied`.

    The latter returns the loss alone.
    """

    class Loss:
        @staticmethod
        def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            ctx.save_for_backward(output[1], *inputs[:3])
            ctx.options = inputs[3:]

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            ctx.mark_non_differentiable(output[1])
            Loss.keep(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, grad_loss: Tensor, *_of_statistics: Tensor) -> tuple[Tensor | None, ...]:
            grad = gradient(grad_loss, *ctx.saved_tensors, *ctx.options)
            return (grad, *[None] * (2 + len(ctx.options)))

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, _scores: Tensor, arguments: tuple[Any, ...]) -> tuple[Tensor]:
            output = directly(*arguments)
            Loss.keep(ctx, arguments, output)
            return (output[0],)

        @staticmethod
        def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, None]:
            return gradient(grad_loss, *ctx.saved_tensors, *ctx.options), None

    return Loss, Recorded


def _differentiable_once(plain: Callable[..., Any], name: str) -> Any:
    """Gradients as an autograd.Function that refuses to be differentiated: unregistered, they would count as 0."""

    class Gradients(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            made = plain(*arguments)
            return made if isinstance(made, Tensor) else tuple(made)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
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

        with _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(getattr(_C.DispatchKey, key))):
            return operation(*(cast(argument) for argument in arguments))

    _LIBRARY.impl(name, kernel, key, with_keyset=True)


_LIBRARY.define("cpu_isas() -> str")
_LIBRARY.define("selected_cpu_isa(str dtype='float32') -> str")
_LIBRARY.define("select_cpu_isa(str name) -> ()")
_LIBRARY.define("cuda_architectures() -> str")
