"""Launching Triton kernels at little cost to the host: what was compiled is kept by what it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from triton import knobs
from triton.runtime import driver

from crossret_kernels.backends import INTERPRETED

_compiled: dict[Hashable, Callable[..., None]] = {}


def launch(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], kind: Any, key: Hashable, warps: int = 4
) -> None:
    """Launches a kernel on the current stream.

    Triton would look at every argument at every launch, for ten times as long. So what tells compiled kernels apart is
    named: all else, sizes that change from call to call above all, is among a kernel's `do_not_specialize`.

    Args:
        kernel: what Triton compiles; KIND is the last of its parameters.
        grid: of programs.
        arguments: the others; tensors are not empty, and begin at multiples of 16 bytes where the kernel's parameters
            do not except them.
        kind: a named tuple of compile-time constants, the kernel's KIND.
        key: what a compiled kernel depends on besides: the device and the tensors' dtypes.
        warps: of a program; goes with kernel and kind.
    """
    if INTERPRETED:
        kernel[grid](*arguments, KIND=kind)
        return
    own = kernel.fn, kind, key, warps  # a kernel's own hash is that of its source
    found = _compiled.get(own)
    if found is None:
        found = _compiled[own] = compiled(kernel, grid, arguments, kind, warps)
    found(grid, *arguments, kind)


def compiled(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], kind: Any, warps: int
) -> Callable[..., None]:
    """What launches the kernel, compiled for arguments like these and for the current device, on a grid.

    Multiplications and additions are fused, which versions of Triton disagree on by default.
    """
    found = kernel.warmup(*arguments, KIND=kind, grid=grid, num_warps=warps, enable_fp_fusion=True)
    return partial(start, found)


def start(found: Any, grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launches a compiled kernel as Triton itself does, without what only profilers look at."""
    if knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
        found[grid](*arguments)
        return
    active, run = driver.active, found.run  # which loads the kernel: ahead of its function
    stream = active.get_current_stream(active.get_current_device())
    run(*grid, stream, found.function, found.packed_metadata, None, None, None, *arguments)


def hidden(value: int) -> int:
    """A size as named tuples hand it to kernels; `triton_tiles.shown` has its value. Below 2³⁰ − 2 it takes 32 bits.

    Triton compiles a kernel anew where an integer is 1 or a multiple of 16: in tuples even where it is told not to.
    """
    return 2 * value + 3


def all_hidden(sizes: Any) -> Any:
    """A named tuple with its sizes, and those of tuples in it, hidden."""
    return type(sizes)(*(all_hidden(x) if isinstance(x, tuple) else hidden(x) for x in sizes))
