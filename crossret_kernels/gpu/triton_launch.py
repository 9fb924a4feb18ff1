"""Launching Triton kernels at little cost to the host: what was compiled is kept by what it was compiled for."""

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

NEWEST_TRIED = (3, 9)  # of Triton's versions, whose insides `start` knows: these, and what a compiled kernel has
INSIDES = (
    "knobs.runtime.launch_enter_hook.calls", "knobs.runtime.launch_exit_hook.calls", "runtime.JITFunction.warmup",
    "compiler.CompiledKernel.run",
)  # fmt: skip
OF_COMPILED = ("function", "packed_metadata")

Launched = Callable[..., None]

_compiled: dict[Hashable, Launched] = {}  # by what tells compiled kernels apart
_known: dict[Hashable, Launched] = {}  # the same by what launches are given, so that they look up once


def why_by_triton(version: str) -> str | None:
    """Why Triton itself launches kernels, at several times the cost to the host; None where `start` does."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) > NEWEST_TRIED:
        return f"{version} is newer than {'.'.join(map(str, NEWEST_TRIED))}, the newest that was tried"
    of_compiled = triton.compiler.CompiledKernel.__init__.__code__.co_names
    lacking = [name for name in OF_COMPILED if name not in of_compiled]
    for name in INSIDES:
        try:
            attrgetter(name)(triton)
        except AttributeError:
            lacking.append(name)
    return f"{version} has no {', '.join(lacking)}" if lacking else None


WHY_BY_TRITON = why_by_triton(triton.__version__)


def n_compiled() -> int:
    """How many kernels this process has compiled, or found in Triton's cache on disk."""
    return len(_compiled)


def launch(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], kind: Any, key: Hashable, warps: int = 4,
    registers: int | None = None,
) -> None:  # fmt: skip
    """Launches a kernel on the current stream.

    Triton would look at every argument at every launch, for ten times as long. So what tells compiled kernels apart is
    named: all else, sizes that change from call to call above all, is among a kernel's `do_not_specialize`.

    Args:
        kernel: what Triton compiles; KIND is the last of its parameters.
        grid: of programs. Of none the kernel is compiled alone: for other batches of the shapes, which want it.
        arguments: the others; tensors are not empty, and begin at multiples of 16 bytes where the kernel's parameters
            do not except them.
        kind: a named tuple of compile-time constants. KIND are those that the kernel reads: calls that differ in others
            share what is compiled.
        key: what a compiled kernel depends on besides: the device and the tensors' dtypes.
        warps, registers: of a program, and that a thread may have; they go with kernel and kind.
    """
    if INTERPRETED:
        if grid[0]:
            kernel[grid](*arguments, KIND=kind)
        return
    own = kernel.fn, kind, key, warps  # a kernel's own hash is that of its source
    found = _known.get(own)
    if found is None:
        narrow = narrowed(kernel, kind)
        apart = kernel.fn, narrow, key, warps
        if apart not in _compiled:
            _compiled[apart] = compiled(kernel, grid, arguments, narrow, warps, registers)
        found = _known[own] = _compiled[apart]
    if grid[0]:
        found(grid, *arguments, kind)


def narrowed(kernel: Any, kind: Any) -> Any:
    """Of a named tuple of compile-time constants those that the kernel reads."""
    read = constants_of(kernel.fn)
    fields = tuple(name for name in kind._fields if name in read)
    return _tuple_of(type(kind).__name__, fields)(*(getattr(kind, name) for name in fields))


@cache
def constants_of(function: Callable[..., Any]) -> frozenset[str]:
    """Names of the constants that a kernel's function reads of its KIND, in functions that it calls, too."""
    found = set[str]()
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "KIND":
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(called := function.__globals__.get(node.id), JITFunction):
            found |= constants_of(called.fn)
    return frozenset(found)


@cache
def _tuple_of(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def compiled(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], kind: Any, warps: int, registers: int | None
) -> Launched:
    """What launches the kernel on a grid, compiled for arguments like these and for the current device.

    Where Triton launches, it compiles at the first launch. What launches takes a KIND behind the other arguments, and
    does not look at it. Multiplications and additions are fused, which versions of Triton disagree on by default.
    """
    options = {"KIND": kind, "num_warps": warps, "maxnreg": registers, "enable_fp_fusion": True}
    if WHY_BY_TRITON is not None:
        return partial(start_by_triton, kernel, options)
    return partial(start, kernel.warmup(*arguments, grid=grid, **options))


def start(found: Any, grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launches a compiled kernel as Triton itself does, without what only profilers look at."""
    hooks = triton.knobs.runtime
    if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
        found[grid](*arguments)
        return
    active, run = driver.active, found.run  # which loads the kernel: ahead of its function
    stream = active.get_current_stream(active.get_current_device())
    run(*grid, stream, found.function, found.packed_metadata, None, None, None, *arguments)


def start_by_triton(kernel: Any, options: dict[str, Any], grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launches a kernel the public way."""
    kernel[grid](*arguments[:-1], **options)


def encoded(value: int) -> int:
    """A size as named tuples hand it to kernels; `triton_tiles.shown` has its value. Below 2³⁰ − 2 it takes 32 bits.

    Triton compiles a kernel anew where an integer is 1 or a multiple of 16: in tuples even where it is told not to.
    """
    return 2 * value + 3


def encoded_sizes(sizes: Any) -> Any:
    """A named tuple with its sizes, and those of tuples in it, hidden."""
    return sizes._make([encoded_sizes(x) if isinstance(x, tuple) else 2 * x + 3 for x in sizes])
