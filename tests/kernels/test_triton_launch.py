"""Sides of a call as Triton's host code knows them, and kernels kept as compiled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from crossret_kernels import UnsupportedByBackend
from crossret_kernels.backends import INTERPRETED
from crossret_kernels.gpu import triton_launch
from crossret_kernels.gpu.sides import MOST_ROWS, HostSide, Rows
from crossret_kernels.inputs.ragged import Ragged, on_host


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
        fn = "one"

        def warmup(self, *arguments: Any, **options: Any) -> Any:
            made.append((arguments, options))
            return "compiled"

    monkeypatch.setattr(triton_launch, "_compiled", {})
    monkeypatch.setattr(triton_launch, "start", lambda *given: launched.append(given))
    kernel, kind = Kernel(), ("kind", 16)
    for argument, key in ((3, "a"), (4, "a"), (5, "b")):
        triton_launch.launch(kernel, (2, 1, 1), (argument,), kind, key, warps=8)
    assert launched == [("compiled", (2, 1, 1), argument, kind) for argument in (3, 4, 5)]
    assert [arguments for arguments, _ in made] == [(3,), (5,)]
    assert made[0][1] == {"KIND": kind, "grid": (2, 1, 1), "num_warps": 8, "enable_fp_fusion": True}


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
    monkeypatch.setattr(triton_launch.knobs.runtime.launch_enter_hook, "calls", ["a profiler's"])
    triton_launch.start(Compiled(), (4, 5, 1), "argument", "kind")
    assert started == [((4, 5, 1), "argument", "kind")]


def test_waiting_once_for_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda x: bool(getattr(x, "brought", False))))
    plain = torch.Tensor.cpu

    def cpu(x: torch.Tensor) -> torch.Tensor:
        waited.append(x.numel())
        return plain(x)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    mask = torch.tensor([[True, False], [True, True]])
    images = Ragged(torch.zeros(2, 2, 3), None, None, mask)
    captions = Ragged(torch.zeros(5, 3), torch.tensor([0, 2, 5]), None)
    sides = on_host(images, captions)
    assert waited == [7]
    assert sides[0].mask is not None and sides[1].offsets is not None
    assert torch.equal(sides[0].mask, mask) and sides[1].offsets.tolist() == [0, 2, 5]
    assert np.shares_memory(sides[1].values.numpy(), captions.values.numpy())
