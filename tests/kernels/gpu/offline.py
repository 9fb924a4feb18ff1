"""Compiles the Triton kernels that a call would launch, for GPUs that are not there, and reads what came of it.

A call of the host side runs on CPU tensors with launches recorded instead of made. From a launch's arguments Triton's
own binder derives what it would compile: types, constants, which integers and addresses divide by 16.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from crossret_kernels import backends
from crossret_kernels.cross_attention.triton import chunks, feature_gradients
from crossret_kernels.gpu import sides, triton_launch
from tests.kernels.cross_attention.kernels import nothing_kept

ARCHITECTURES = (80, 90, 100)
LITTLE_MEMORY = (86, 89, 120)  # GeForce RTX 30 to 50, A10, L4, L40S
SHARED_LIMITS = {80: 163, 90: 227, 100: 227, **dict.fromkeys(LITTLE_MEMORY, 99)}  # KiB that a block may have
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
WARP = 32
LEAST_SIDE, COLLIDING = 16, 8  # of tiles that are looked at, and lanes that meet in a bank


@dataclass(frozen=True)
class Launch:
    """A kernel with all arguments of one launch, by name, and the grid's size."""

    kernel: Any
    arguments: dict[str, Any]
    grid: tuple[int, ...]
    warps: int
    registers: int | None = None

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def kind(self) -> Any:
        """What the kernel is compiled for, by name."""
        return self.arguments["KIND"]

    @property
    def precision(self) -> str | None:
        """Of its products, as Triton calls it; None where the kernel has none."""
        names = ("MAIN", "PRECISION", "FINE")
        return next((getattr(self.kind, name) for name in names if hasattr(self.kind, name)), None)

    @property
    def rows(self) -> int:
        """Of a tile's products: of queries, of contexts where those are multiplied with one another, of a block."""
        names = ("C",) if "gram" in self.name else ("M", "N", "ROWS")
        return int(next((getattr(self.kind, name) for name in names if hasattr(self.kind, name)), 0))

    @property
    def dtype(self) -> torch.dtype:
        """Of the features, or of the first tensor that is given."""
        return tensors_of(tuple(self.arguments.values()))[0].dtype

    def specialised(self, architecture: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """(source, options, what tells one compilation from another), as Triton's launcher finds them."""
        backend = make_backend(GPUTarget("cuda", architecture, WARP))
        bind = create_function_from_signature(self.kernel.signature, self.kernel.params, backend)
        keywords = {"enable_fp_fusion": True, "num_warps": self.warps, "maxnreg": self.registers}
        bound, specialisation, options = bind(**self.arguments, **keywords)
        parsed, signature, constants, attributes = self.kernel._pack_args(
            backend, keywords, bound, specialisation, options
        )
        source = ASTSource(self.kernel, signature, constants, attributes)
        return source, parsed.__dict__, {"signature": signature, "constants": constants, "attributes": attributes}

    @property
    def key(self) -> str:
        """Alike for launches that share a compiled kernel."""
        _, options, parts = self.specialised(ARCHITECTURES[0])
        return f"{self.name} {parts} {[options[name] for name in ('num_warps', 'num_stages', 'maxnreg')]}"


@contextmanager
def recorded(shared: int = SHARED_LIMITS[90]) -> Iterator[list[Launch]]:
    """Collects launches for a device with so many KiB of shared memory a block.

    None is made, nor PyTorch's products, so that results hold whatever the memory held. "triton" serves CPU tensors.
    """
    launches: list[Launch] = []
    unsupported = backends.unsupported_reason

    def record(kernel: Any, _grid: Any, _arguments: Any, kind: Any, *threads: Any) -> Callable[..., None]:
        def recorder(grid: tuple[int, ...], *given: Any) -> None:
            arguments = (*given[:-1], kind)
            launches.append(Launch(kernel, dict(zip(kernel.arg_names, arguments, strict=True)), grid, *threads))

        return recorder

    def reason(backend: str, *others: Any) -> str | None:
        return None if backend == "triton" else unsupported(backend, *others)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(triton_launch, "compiled", record)
        patch.setattr(triton_launch, "_compiled", {})
        patch.setattr(triton_launch, "_known", {})
        patch.setattr(backends, "unsupported_reason", reason)
        for module in (chunks, feature_gradients):
            patch.setattr(module, "multiply", lambda *_: None)
        if shared * 2**10 != sides.SIMULATED_SHARED_MEMORY:
            patch.setattr(sides, "SIMULATED_SHARED_MEMORY", shared * 2**10)
            stack.enter_context(nothing_kept())  # for other devices
        yield launches


def tensors_of(arguments: Any) -> list[torch.Tensor]:
    """All tensors among arguments, those in tuples too."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    return [x for part in arguments for x in tensors_of(part)] if isinstance(arguments, tuple) else []


def launches_of(call: Callable[[], Any], shared: int = SHARED_LIMITS[90]) -> list[Launch]:
    """Those of one call that differ in what is compiled."""
    with recorded(shared) as launches:
        call()
    return list({launch.key: launch for launch in launches}.values())


@dataclass(frozen=True)
class Compiled:
    """What a compiled kernel needs: bytes of shared memory a block, registers and bytes of stack a thread; its code."""

    shared: int
    registers: int
    stack: int
    ptx: str = field(repr=False)
    tiles: str = field(repr=False)  # Triton's own code, which says how tiles lie

    def collisions(self) -> set[str]:
        """Tiles that lie unswizzled in shared memory, one side contiguous, while eight lanes or more run along the
        other: as many of each access meet in a bank.
        """
        layouts = dict(re.findall(r"^(#\w+) = (#ttg\.\S.*)$", self.tiles, re.MULTILINE))
        found = set()
        for line in self.tiles.splitlines():
            tile = re.search(r"<(?:\d+x)?(\d+)x(\d+)x(\w+), (#shared\d*)", line)
            access = re.search(r"async_copy_global_to_local|local_load|local_store|local_alloc", line)
            if tile is None or access is None or min(int(tile[1]), int(tile[2])) < LEAST_SIDE:
                continue
            kept = re.search(r"vec = \d+, perPhase = \d+, maxPhase = 1, order = \[(\d),", layouts[tile[4]])
            for blocked in re.findall(r"#blocked\d*", line) if kept else ():
                lanes = re.search(r"threadsPerWarp = \[(\d+), (\d+)\]", layouts[blocked])
                if kept and lanes and int(lanes[2 - int(kept[1])]) >= COLLIDING:
                    found.add(f"{access[0]} {tile[1]}x{tile[2]}x{tile[3]}")
        return found


def compiled(launch: Launch, architecture: int, directory: Path) -> Compiled:
    """The launch's kernel compiled anew; `directory` takes Triton's cache, which is not read."""
    source, options, _ = launch.specialised(architecture)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(directory))
        patch.setenv("TRITON_ALWAYS_COMPILE", "1")
        kernel = triton.compile(source, target=GPUTarget("cuda", architecture, WARP), options=options)
    cubin = directory / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    usage = subprocess.run(
        [CUOBJDUMP, "--dump-resource-usage", cubin], check=True, capture_output=True, text=True
    ).stdout  # fmt: skip
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    return Compiled(kernel.metadata.shared, int(found[1]), int(found[2]), kernel.asm["ptx"], kernel.asm["ttgir"])


class _Known(Exception):
    """How much shared memory a kernel takes, which is known ahead of its machine code."""


def shared_memory_of(launch: Launch, architecture: int, directory: Path) -> float:
    """KiB that the launch's kernel takes, compiled as far as that takes; as `compiled` otherwise."""

    def known(_backend: Any, _source: Any, metadata: dict[str, Any], *_others: Any) -> None:
        raise _Known(metadata["shared"])

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Known) as found:
        patch.setattr(CUDABackend, "make_ptx", known)
        compiled(launch, architecture, directory)
    return float(found.value.args[0]) / 2**10
