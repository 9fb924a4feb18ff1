"""Launches of Triton kernels at little cost to the host: compiled kernels are kept by all that tells them apart."""

from __future__ import annotations

import ast
import inspect
import re
from collections import namedtuple
from collections.abc import Callable, Hashable
from functools import cache, partial
from operator import attrgetter
from typing import Any

import triton
from triton.runtime import JITFunction, driver

from crossret_kernels.backends import INTERPRETED

NEWEST_TRIED = (3, 9)  # newest version of Triton that was tried; INSIDES are names that `start` needs of it
INSIDES = (
    "knobs.runtime.launch_enter_hook.calls", "knobs.runtime.launch_exit_hook.calls", "runtime.JITFunction.warmup",
    "compiler.CompiledKernel.run",
)  # fmt: skip
OF_COMPILED = ("function", "packed_metadata")

Launched = Callable[..., None]

_compiled: dict[Hashable, Launched] = {}  # compiled kernels, by constants they read
_known: dict[Hashable, Launched] = {}  # the same by all constants of a launch, for one look-up


def why_by_triton(version: str) -> str | None:
    """Reason to launch by Triton's slower way; None where `start` fits this version."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) > NEWEST_TRIED:
        return f"{version} is newer than {'.'.join(map(str, NEWEST_TRIED))}, the newest that was tried"
    names = triton.compiler.CompiledKernel.__init__.__code__.co_names
    lacking = [name for name in OF_COMPILED if name not in names]
    for name in INSIDES:
        try:
            attrgetter(name)(triton)
        except AttributeError:
            lacking.append(name)
    return f"{version} has no {', '.join(lacking)}" if lacking else None


WHY_BY_TRITON = why_by_triton(triton.__version__)


def n_compiled() -> int:
    """Number of kernels that this process has compiled or loaded from Triton's cache on disk."""
    return len(_compiled)


def launch(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], kind: Any, key: Hashable, warps: int = 4,
    registers: int | None = None,
) -> None:  # fmt: skip
    """Launches a kernel on the current stream.

    Triton inspects every argument at every launch, which takes ten times as long. Here the caller names all that
    compiled kernels depend on; sizes that change from call to call are among a kernel's `do_not_specialize`.

    Args:
        kernel: Triton's; KIND is its last parameter.
        grid: programs; with 0 the kernel is only compiled, as later batches of these shapes need it.
        arguments: all but KIND; tensors are not empty, and begin at multiples of 16 bytes unless the kernel excepts
            them.
        kind: named tuple of compile-time constants; calls that differ in constants a kernel does not read share it.
        key: everything else that compiled kernels depend on: device and dtypes.
        warps, registers: of a program, and maximal of a thread; they follow from kernel and kind.
    """
    if INTERPRETED:
        if grid[0]:
            kernel[grid](*arguments, KIND=kind)
        return
    full_key = kernel.fn, kind, key, warps  # hash(kernel) would hash its source
    launcher = _known.get(full_key)
    if launcher is None:
        narrow = narrowed(kernel, kind)
        narrow_key = kernel.fn, narrow, key, warps
        if narrow_key not in _compiled:
            _compiled[narrow_key] = compiled(kernel, grid, arguments, narrow, warps, registers)
        launcher = _known[full_key] = _compiled[narrow_key]
    if grid[0]:
        launcher(grid, *arguments, kind)


def narrowed(kernel: Any, kind: Any) -> Any:
    """The fields of a named tuple of constants that the kernel reads."""
    read = constants_of(kernel.fn)
    fields = tuple(name for name in kind._fields if name in read)
    return _tuple_of(type(kind).__name__, fields)(*(getattr(kind, name) for name in fields))


@cache
def constants_of(function: Callable[..., Any]) -> frozenset[str]:
    """Names of the KIND fields that a kernel's function reads, functions that it calls included."""
    names = set[str]()
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "KIND":
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(callee := function.__globals__.get(node.id), JITFunction):
            names |= constants_of(callee.fn)
    return frozenset(names)


@cache
def _tuple_of(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def compiled(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], kind: Any, warps: int, registers: int | None
) -> Launched:
    """Launcher of a kernel compiled for such arguments and the current device; it ignores the KIND behind its
    arguments.

    Triton's own way compiles at the first launch. Multiply-adds are fused: versions of Triton differ in their default.
    """
    options = {"KIND": kind, "num_warps": warps, "maxnreg": registers, "enable_fp_fusion": True}
    if WHY_BY_TRITON is not None:
        return partial(start_by_triton, kernel, options)
    return partial(start, kernel.warmup(*arguments, grid=grid, **options))


def start(kernel: Any, grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launches a compiled kernel as Triton does, without the work that only profilers need."""
    hooks = triton.knobs.runtime
    if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
        kernel[grid](*arguments)
        return
    active, run = driver.active, kernel.run  # `run` loads the kernel, and comes ahead of its function
    stream = active.get_current_stream(active.get_current_device())
    run(*grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments)


def start_by_triton(kernel: Any, options: dict[str, Any], grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launches a kernel through Triton's public interface."""
    kernel[grid](*arguments[:-1], **options)


def encoded(value: int) -> int:
    """A size as an odd number from 3 on, which `triton_tiles.decoded` reverts; 32 bits hold sizes below 2³⁰ − 2.

    Triton compiles a kernel anew where an integer is 1 or a multiple of 16, in tuples even for `do_not_specialize`.
    """
    return 2 * value + 3


def encoded_sizes(sizes: Any) -> Any:
    """A named tuple of sizes, nested ones included, encoded."""
    return sizes._make([encoded_sizes(x) if isinstance(x, tuple) else 2 * x + 3 for x in sizes])
