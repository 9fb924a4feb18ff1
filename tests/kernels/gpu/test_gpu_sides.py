"""Sides of a call as GPU backends' host code and kernels have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import UnsupportedByBackend
from crossret_kernels.gpu import sides
from crossret_kernels.gpu.sides import MOST_ROWS, Side, both_sides

OTHER = (torch.zeros(2, 3, 4), None, None, None)


def side(values: Tensor, may_be_empty: bool = False, **integers: Any) -> Side:
    given = {name: torch.as_tensor(value) for name, value in integers.items()}
    own = (values, *(given.get(name) for name in ("offsets", "lengths", "mask")))
    return both_sides((*own, *OTHER), may_be_empty)[0]


def test_rows_are_where_strides_say() -> None:
    wide = torch.randn(3, 7, 8)
    views = {"even": wide, "cut": wide[:, 1:5, 2:6], "repeated": wide[:1].expand(4, -1, -1), "flipped": wide.flip(1).mT}
    for name, values in views.items():
        of = side(values)
        n, longest, _ = values.shape
        rows = of.row_layout
        begins = torch.arange(n)[:, None] * rows.item_stride + torch.arange(longest) * rows.row_stride
        storage = torch.empty(0).set_(of.features.untyped_storage())
        assert torch.equal(storage[begins + of.features.storage_offset()], values[..., 0]), name
        assert (rows.unit == 4) == (name in ("even", "repeated")), name  # the others' rows begin anywhere
        assert not rows.far


def test_of_every_layout() -> None:
    mask = torch.tensor([[0, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]).bool()
    padded = torch.zeros(3, 5, 4)
    lengths, masked, whole = side(padded, lengths=[2, 5, 1]), side(padded, mask=mask), side(padded)
    packed = side(torch.zeros(8, 4), offsets=[0, 2, 7, 8])
    for of in (lengths, masked, packed):
        assert of.known_counts().tolist() == [2, 5, 1]
        assert (of.n_items, of.slots) == (3, 5)
    assert [of.width for of in (lengths, masked, packed)] == [5, 5, 8]
    assert lengths.places is None and packed.places is None and masked.places is not None
    assert [of.extents is not None and of.extents.tolist() for of in (lengths, masked, packed, whole)] == [
        [2, 5, 1], [2, 5, 1], [0, 2, 7, 8], False,
    ]  # fmt: skip
    assert [row[:count] for row, count in zip(masked.places.tolist(), (2, 5, 1), strict=True)] == [
        [1, 3], [0, 1, 2, 3, 4], [4],
    ]  # fmt: skip
    assert [sorted(row) for row in masked.places.tolist()] == [[0, 1, 2, 3, 4]] * 3
    assert whole.known_counts().tolist() == [5, 5, 5]


def test_lengths_are_looked_at_again() -> None:
    """torch.compile's are by nothing else."""
    with pytest.raises(ValueError, match=r"item 1 has length 6, it must lie in 1..5"):
        side(torch.zeros(2, 5, 4), lengths=[1, 6])
    with pytest.raises(ValueError, match="item 0 has length 0"):
        side(torch.zeros(2, 5, 4), lengths=[0, 5])
    with pytest.raises(ValueError, match="item 0 has length 0"):
        side(torch.zeros(2, 0, 4))
    assert side(torch.zeros(2, 5, 4), True, lengths=[0, 5]).known_counts().tolist() == [0, 5]
    with pytest.raises(ValueError, match="offsets reach from 0 to 12, but there are 11 rows"):
        side(torch.zeros(11, 4), offsets=[0, 12])


def test_rows_are_counted_in_32_bits() -> None:
    values = torch.zeros(1, 1).expand(MOST_ROWS, 1)
    with pytest.raises(UnsupportedByBackend, match=f"rows of a side, padding included, these are {MOST_ROWS}"):
        side(values, offsets=[0, MOST_ROWS])


def test_while_a_graph_is_captured_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "capturing", lambda _: True)
    of = side(torch.zeros(2, 5, 4), lengths=[1, 9])
    assert of.counts is None and of.slots == 5
    with pytest.raises(RuntimeError, match="no CUDA graph can be captured of a call that comes in several parts"):
        of.known_counts()
    with pytest.raises(RuntimeError, match="packed items' offsets"):
        side(torch.zeros(8, 4), offsets=[0, 2, 8])


def test_both_sides_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda x: bool(getattr(x, "brought", False))))
    plain = torch.Tensor.cpu

    def cpu(x: Tensor) -> Tensor:
        waited.append(x.numel())
        return plain(x)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    mask = torch.tensor([[True, False], [True, True]])
    images, captions = both_sides(
        (torch.zeros(2, 2, 3), None, None, mask, torch.zeros(5, 3), torch.tensor([0, 2, 5]), None, None), False
    )
    assert waited == [7]
    assert images.known_counts().tolist() == [1, 2] and captions.known_counts().tolist() == [2, 3]
