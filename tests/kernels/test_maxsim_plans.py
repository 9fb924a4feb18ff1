"""One call of Sum-Max in Triton: where rows lie, plans made once for every set of lengths, lengths that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import UnsupportedByBackend

pytest.importorskip("triton")

from crossret_kernels.gpu.sides import MOST_ROWS, HostSide
from crossret_kernels.maxsim.calls import Call, Shape
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.triton.call import TritonCall
from crossret_kernels.torch_internals import reduced_float32
from tests.kernels.compile_cases import tf32

WORDS = torch.zeros(3, 4, 8)


def call_of(regions: Tensor, *integers: Tensor | None, empty_score: float | None = None) -> Call:
    arguments: tuple[Any, ...] = (regions, *(*integers, None, None, None)[:3], WORDS, None, None, None, None)
    return TritonCall.of((*arguments, empty_score, False, *MaxSimOptions("t2i", "sum", False).codes))


def test_rows_are_where_strides_say() -> None:
    wide = torch.randn(3, 7, 8)
    views = {"even": wide, "cut": wide[:, 1:5, 2:6], "repeated": wide[:1].expand(4, -1, -1)}
    for name, values in views.items():
        shape = Shape.of(HostSide.of(values, None, None, None), may_be_empty=False)
        per_item, item_stride, row_stride = shape.strides
        rows = torch.arange(shape.n_rows)
        begins = rows // per_item * item_stride + rows % per_item * row_stride
        elements = torch.as_strided(values, (wide.numel(),), (1,), storage_offset=0)
        assert torch.equal(elements[begins + values.storage_offset()], values.flatten(0, 1)[:, 0]), name
        assert (per_item == 1) == (name == "even"), name  # where rows lie evenly none is divided for
        assert shape.unit == (1 if name == "cut" else 4), name


def test_rows_are_counted_in_32_bits() -> None:
    values = torch.zeros(1, 1, 1).expand(2, MOST_ROWS // 2, 1)
    with pytest.raises(UnsupportedByBackend, match=f"rows of a side, padding included, these are {MOST_ROWS}"):
        Shape.of(HostSide.of(values, None, torch.ones(2, dtype=torch.int64), None), may_be_empty=False)


def test_plans_are_made_once_for_every_set_of_lengths() -> None:
    regions = torch.zeros(3, 8, 8)

    def plan(lengths: list[int], features: Tensor = regions, index: bool = False) -> Any:
        return call_of(features, None, torch.tensor(lengths)).plan(index)

    first = plan([3, 8, 1])
    assert plan([3, 8, 1]) is first
    assert plan([3, 8, 1], regions.clone()) is first
    assert plan([3, 8, 2]) is not first
    assert plan([3, 8, 1], index=True) is not first
    assert plan([3, 8, 1], torch.zeros(3, 9, 8)) is not first  # rows lie elsewhere
    assert plan([3, 8, 1], torch.zeros(3, 8, 9)[:, :, :8]) is not first
    assert (first.contexts.firsts.tolist(), first.contexts.lengths.tolist()) == ([0, 8, 16], [3, 8, 1])
    assert call_of(torch.zeros(12, 8), torch.tensor([0, 3, 11, 12])).plan(False).contexts.firsts.tolist() == [0, 3, 11]


def test_plans_are_of_all_that_tells_calls_apart() -> None:
    regions, words, none = torch.zeros(3, 8, 8), torch.tensor([4, 1, 2]), [None] * 3
    options: tuple[Any, ...] = (None, "t2i", "sum", False)

    def call(
        regions: Tensor = regions, of_words: Tensor | None = words, pairs: int | None = None,
        options: tuple[Any, ...] = options,
    ) -> Call:  # fmt: skip
        listed = None if pairs is None else torch.zeros(pairs, 2, dtype=torch.int64)
        empty_score, *others = options
        codes = reduced_float32(on_gpu=True), *MaxSimOptions(*others).codes
        return TritonCall.of(
            (regions, *none, WORDS.to(regions.dtype), None, of_words, None, listed, empty_score, *codes)
        )

    plans = [
        call().plan(False), call().plan(True), call().plan(True, gradients=True), call(pairs=2).plan(False),
        call(of_words=None).plan(False), call(of_words=torch.tensor([4, 2, 2])).plan(False),
        call(regions.half()).plan(False), call(options=(0.0, *options[1:])).plan(False),
        call(options=(None, "i2t", "sum", False)).plan(False), call(options=(None, "t2i", "avg", False)).plan(False),
        call(options=(None, "t2i", "sum", True)).plan(False),
    ]  # fmt: skip
    with tf32(True):
        plans.append(call().plan(False))
    assert len({id(plan) for plan in plans}) == len(plans)
    assert call().plan(False) is plans[0]


def test_another_items_rows_stand_in_for_none() -> None:
    plan = call_of(torch.zeros(4, 8, 8), None, torch.tensor([0, 2, 0, 8]), empty_score=1.0).plan(False)
    assert plan is not None and plan.contexts.empty is not None
    assert plan.contexts.firsts.tolist() == [8, 8, 8, 24]
    assert plan.contexts.lengths.tolist() == [1, 2, 1, 8]
    assert plan.contexts.empty.tolist() == [1, 0, 1, 0]
    assert call_of(torch.zeros(4, 8, 8), None, torch.zeros(4, dtype=torch.int64), empty_score=1.0).plan(False) is None


@pytest.mark.parametrize(
    ("regions", "offsets", "lengths", "message"),
    [
        ((2, 4, 8), None, [4, 5], "item 1 has length 5, it must lie in 1..4"),
        ((2, 4, 8), None, [0, 4], "item 0 has length 0"),
        ((8, 8), [0, 3, 9], None, "reach from 0 to 9, but there are 8 rows"),
        ((8, 8), [1, 3, 8], None, "reach from 1 to 8"),
        ((8, 8), [0, 9, 8], None, "item 0 has length 9|item 1 has length -1"),
        ((8, 8), [0, 4, 4, 8], None, "item 1 has length 0"),
    ],
)
def test_no_plan_reaches_beyond_the_features(
    regions: tuple[int, ...], offsets: list[int] | None, lengths: list[int] | None, message: str
) -> None:
    """Lengths that nothing else looked at, as inside torch.compile."""
    integers = [None if x is None else torch.tensor(x) for x in (offsets, lengths)]
    with pytest.raises(ValueError, match=message):
        call_of(torch.zeros(regions), *integers).plan(False)
