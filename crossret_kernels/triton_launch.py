"""Launching Triton kernels at little cost to the host: what was compiled is kept with what it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from crossret_kernels.backends import INTERPRETED


class Constants:
    """What kernels of a call are compiled for, by name, and those that were.

    One is made for every kind of call (`constants_for`): whatever Triton would compile a kernel anew for, dtypes and
    the device included, has to be part of what tells kinds apart. Sizes that change from call to call are kernels'
    `do_not_specialize`. Compile-time constants stand last in a kernel's signature.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self._handles: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
        self._variants: dict[tuple[Any, ...], Constants] = {}

    def having(self, **changed: Any) -> Constants:
        """The same with some values changed or added."""
        key = tuple(changed.items())
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = Constants(self.values | changed)
        return found

    def of(self, kernel: Any) -> dict[str, Any]:
        """Those that a kernel takes."""
        return {name: value for name, value in self.values.items() if name in kernel.arg_names}

    def handle(self, kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], warps: int) -> Any:
        """(The kernel as compiled, its constants in their order), compiled at the first launch with these constants."""
        found = self._handles.get(kernel)
        if found is None:
            own = self.of(kernel)
            ordered = tuple(own[name] for name in kernel.arg_names if name in own)
            # Multiplications and additions are fused, which versions of Triton disagree on by default.
            compiled = kernel.warmup(*arguments, grid=grid, enable_fp_fusion=True, num_warps=warps, **own)
            found = self._handles[kernel] = compiled, ordered
        return found


_kinds: dict[Hashable, Constants] = {}


def constants_for(kind: Hashable, make: Callable[[], dict[str, Any]]) -> Constants:
    """The constants of a kind of call, made at the first of them."""
    found = _kinds.get(kind)
    if found is None:
        found = _kinds[kind] = Constants(make())
    return found


def launch(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], constants: Constants, warps: int = 4
) -> None:
    """Launches a kernel on the current stream; `warps` goes with the kernel, as constants do."""
    if INTERPRETED:
        kernel[grid](*arguments, **constants.of(kernel))
        return
    compiled, ordered = constants.handle(kernel, grid, arguments, warps)
    compiled[grid](*arguments, *ordered)


def precisions(dtype: torch.dtype) -> tuple[str, str]:
    """Of products of features, and of the products that come after them."""
    if dtype != torch.float32:
        return "tf32", "tf32"
    return ("tf32", "tf32") if torch.backends.cuda.matmul.fp32_precision == "tf32" else ("ieee", "tf32x3")
