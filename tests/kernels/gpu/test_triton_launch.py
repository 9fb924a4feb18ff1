"""Kernels kept as compiled, and what launches them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import triton
import triton.language as tl

from crossret_kernels import info
from crossret_kernels.backends import INTERPRETED
from crossret_kernels.gpu import triton_launch


@pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
def test_a_kernel_is_compiled_once_for_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    made, launched = [], []

    class Kernel:
        fn = staticmethod(reads_constants)

        def warmup(self, *arguments: Any, **options: Any) -> Any:
            made.append((arguments, options))
            return "compiled"

    monkeypatch.setattr(triton_launch, "_compiled", {})
    monkeypatch.setattr(triton_launch, "start", lambda *given: launched.append(given))
    monkeypatch.setattr(triton_launch, "_known", {})
    kernel, kind = Kernel(), Kind(ROWS=16, COLUMNS=32, OTHER=1)
    calls = [(3, "a", kind), (4, "a", kind), (5, "b", kind), (6, "a", kind._replace(OTHER=2))]
    for argument, key, own in calls:
        triton_launch.launch(kernel, (2, 1, 1), (argument,), own, key, warps=8, registers=96)
    assert launched == [("compiled", (2, 1, 1), argument, own) for argument, _, own in calls]
    assert [arguments for arguments, _ in made] == [(3,), (5,)]
    options = {"KIND": (32, 16), "grid": (2, 1, 1), "num_warps": 8, "maxnreg": 96, "enable_fp_fusion": True}
    assert made[0][1] == options
    triton_launch.launch(kernel, (0, 1, 1), (7,), kind._replace(ROWS=32), "a", warps=8)
    assert (len(made), len(launched)) == (3, 4)


class Kind(NamedTuple):
    OTHER: int
    COLUMNS: int
    ROWS: int


def reads_constants(KIND: Any) -> Any:  # noqa: N803 (as kernels have it)
    """It has nothing to do with KIND.OTHER."""
    return KIND.ROWS, called


@triton.jit
def called(x, KIND: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    return x + KIND.COLUMNS


@pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
def test_kernels_start_on_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Compiled:
        function, packed_metadata = "function", "metadata"

        def run(self, *given: Any) -> None:
            started.append(given)

        def __getitem__(self, grid: Any) -> Any:
            return lambda *given: started.append((grid, *given))

    active = SimpleNamespace(get_current_device=lambda: 3, get_current_stream=lambda device: f"stream of {device}")
    monkeypatch.setattr(triton_launch, "driver", SimpleNamespace(active=active))
    triton_launch.start(Compiled(), (4, 5, 1), "argument", "kind")
    assert started.pop() == (4, 5, 1, "stream of 3", "function", "metadata", None, None, None, "argument", "kind")
    monkeypatch.setattr(triton.knobs.runtime.launch_enter_hook, "calls", ["a profiler's"])
    triton_launch.start(Compiled(), (4, 5, 1), "argument", "kind")
    assert started == [((4, 5, 1), "argument", "kind")]


def test_a_newer_triton_launches_kernels_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_launch.why_by_triton("3.6.0") is triton_launch.why_by_triton("3.9.1+cu130") is None
    newer = "3.10.0 is newer than 3.9, the newest that was tried"
    assert triton_launch.why_by_triton("3.10.0") == newer
    monkeypatch.setattr(triton_launch, "INSIDES", ("compiler.CompiledKernel.run", "knobs.gone"))
    monkeypatch.setattr(triton_launch, "OF_COMPILED", ("function", "lost"))
    assert triton_launch.why_by_triton("3.9.0") == "3.9.0 has no lost, knobs.gone"
    monkeypatch.setattr(info, "WHY_BY_TRITON", newer)
    monkeypatch.setattr(info, "INTERPRETED", False)
    assert f"\nTriton {triton.__version__}: kernels for CUDA devices of compute capability 8.0 or newer, launched by " \
        f"Triton itself, slower for the host: {newer}\n" in info.describe()  # fmt: skip
