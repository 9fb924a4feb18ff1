"""Sides of a call as Triton's host code knows them, and kernels kept as compiled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl

from crossret_kernels import UnsupportedByBackend, info
from crossret_kernels.backends import INTERPRETED
from crossret_kernels.gpu import triton_launch
from crossret_kernels.gpu.sides import MOST_ROWS, HostSide, Rows
from crossret_kernels.inputs.ragged import together_on_host


def side(values: torch.Tensor, **integers: Any) -> HostSide:
    given = {name: None if value is None else torch.as_tensor(value) for name, value in integers.items()}
    return HostSide.of(values, *(given.get(name) for name in ("offsets", "lengths", "mask")))


def test_rows_are_where_strides_say() -> None:
    wide = torch.randn(3, 7, 8)
    views = {"even": wide, "cut": wide[:, 1:5, 2:6], "repeated": wide[:1].expand(4, -1, -1), "flipped": wide.flip(1).mT}
    for name, values in views.items():
        of = side(values)
        n, longest, _ = values.shape
        rows = Rows.of(*of.layout[:2], values.element_size())
        begins = torch.arange(n)[:, None] * rows.item_stride + torch.arange(longest) * rows.row_stride
        storage = torch.empty(0).set_(of.features.untyped_storage())
        assert torch.equal(storage[begins + of.features.storage_offset()], values[..., 0]), name
        assert (rows.unit == 4) == (name in ("even", "repeated")), name  # the others' rows begin anywhere
        assert not rows.far


def test_geometry_of_every_layout() -> None:
    lengths = side(torch.zeros(3, 5, 4), lengths=[2, 5, 1])
    packed = side(torch.zeros(8, 4), offsets=[0, 2, 7, 8])
    mask = torch.tensor([[0, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]).bool()
    masked = side(torch.zeros(3, 5, 4), mask=mask)
    for of in (lengths, packed, masked):
        found = of.geometry(may_be_empty=False)
        assert found.lengths.tolist() == [2, 5, 1]
        assert found.starts.tolist() == [0, 2, 7, 8]
        assert (found.longest, found.n_rows) == (5, 8)
    assert lengths.geometry(may_be_empty=False).places is None
    places = masked.geometry(may_be_empty=False).places
    assert places is not None and places.tolist() == [1, 3, 0, 1, 2, 3, 4, 4]
    assert len({(of.layout, of.key) for of in (lengths, packed, masked)}) == 3
    assert side(torch.zeros(3, 5, 4)).geometry(may_be_empty=False).lengths.tolist() == [5, 5, 5]


def test_lengths_are_looked_at_again() -> None:
    """torch.compile's are by nothing else."""
    with pytest.raises(ValueError, match=r"item 1 has length 6, it must lie in 1..5"):
        side(torch.zeros(2, 5, 4), lengths=[1, 6]).geometry(may_be_empty=False)
    empty = side(torch.zeros(2, 5, 4), lengths=[0, 5])
    with pytest.raises(ValueError, match="item 0 has length 0"):
        empty.geometry(may_be_empty=False)
    assert empty.geometry(may_be_empty=True).starts.tolist() == [0, 0, 5]
    with pytest.raises(ValueError, match="offsets reach from 0 to 12, but there are 11 rows"):
        side(torch.zeros(11, 4), offsets=[0, 12]).geometry(may_be_empty=False)


def test_rows_are_counted_in_32_bits() -> None:
    values = torch.zeros(1, 1).expand(MOST_ROWS, 1)
    with pytest.raises(UnsupportedByBackend, match=f"rows of a side, these are {MOST_ROWS}"):
        side(values, offsets=[0, MOST_ROWS]).geometry(may_be_empty=False)


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
        triton_launch.launch(kernel, (2, 1, 1), (argument,), own, key, warps=8)
    assert launched == [("compiled", (2, 1, 1), argument, own) for argument, _, own in calls]
    assert [arguments for arguments, _ in made] == [(3,), (5,)]
    assert made[0][1] == {"KIND": (32, 16), "grid": (2, 1, 1), "num_warps": 8, "enable_fp_fusion": True}
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
def test_kernels_read_constants_in_what_they_call() -> None:
    assert triton_launch.constants_of(reads_constants) == {"ROWS", "COLUMNS"}


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


@pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
def test_the_public_way_to_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []

    class Kernel:
        fn = staticmethod(reads_constants)

        def __getitem__(self, grid: Any) -> Any:
            return lambda *given, **options: launched.append((grid, given, options))

    monkeypatch.setattr(triton_launch, "WHY_BY_TRITON", "it is too new")
    monkeypatch.setattr(triton_launch, "_compiled", {})
    monkeypatch.setattr(triton_launch, "_known", {})
    triton_launch.launch(Kernel(), (2, 1, 1), ("argument",), Kind(1, 2, 3), "key", warps=8)
    assert launched == [((2, 1, 1), ("argument",), {"KIND": (2, 3), "num_warps": 8, "enable_fp_fusion": True})]


def test_waiting_once_for_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda x: bool(getattr(x, "brought", False))))
    plain = torch.Tensor.cpu

    def cpu(x: torch.Tensor) -> torch.Tensor:
        waited.append(x.numel())
        return plain(x)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    mask = torch.tensor([[True, False], [True, True]])
    brought = together_on_host([mask, None, torch.tensor([0, 2, 5])])
    assert waited == [7]
    assert brought[0] is not None and brought[1] is None and brought[2] is not None
    assert torch.equal(brought[0], mask) and brought[2].tolist() == [0, 2, 5]
