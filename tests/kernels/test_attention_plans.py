"""Calls of stacked cross attention in Triton: what is made once for their options, and once for their lengths."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from crossret_kernels.backends import INTERPRETED, UnsupportedByBackend

pytest.importorskip("triton")

from crossret_kernels.cross_attention.triton.call import MOST_MADE, Call, Part, Plan, kind_of
from crossret_kernels.cross_attention.triton.chunks import Layout, parts_of
from tests.kernels.compile_cases import tf32
from tests.kernels.offline import Launch, recorded

OPTIONS = {
    "direction": "t2i", "raw_feature_norm": "clipped_l2norm", "clip_slope": 0.1, "lambda_softmax": 9.0,
    "pooling": "avg", "lambda_lse": 6.0, "normalize": False,
}  # fmt: skip
WORDS = torch.zeros(3, 4, 8)
LENGTHS = torch.tensor([3, 8, 1])


def call_of(regions: Tensor, lengths: Tensor | None = LENGTHS, pairs: Tensor | None = None, **options: Any) -> Call:
    words = WORDS.to(regions.dtype)
    numbers = {**OPTIONS, **options}.values()
    return Call(regions, None, lengths, None, words, None, None, None, pairs, None, *numbers)


def test_plans_are_made_once_for_every_set_of_lengths() -> None:
    regions = torch.zeros(3, 8, 8)
    first = call_of(regions).plan
    assert call_of(regions.clone(), LENGTHS.clone()).plan is first
    assert call_of(torch.zeros(3, 8, 16)[:, :, :8]).form is not first.form  # rows lie elsewhere
    assert call_of(torch.zeros(193)[1:].view(3, 8, 8)).form is not first.form
    for other in (
        call_of(regions, torch.tensor([3, 8, 2])),
        call_of(torch.zeros(3, 9, 8)),
        call_of(regions.half()),
        call_of(regions, pairs=torch.zeros(2, 2, dtype=torch.int64)),
        call_of(regions, direction="i2t"),
        call_of(regions, lambda_softmax=4.0),
    ):
        assert other.plan is not first
    assert call_of(regions).plan is first


def test_precision_is_of_the_plan() -> None:
    """It may change from call to call."""
    regions = torch.zeros(3, 8, 8)
    calls = []
    for allowed in (False, True, False):
        with tf32(allowed):
            calls.append(call_of(regions))
    assert calls[0].plan is calls[2].plan
    kinds = [call.plan.kept(kind_of, torch.float32) for call in calls[:2]]
    assert [(kind.MAIN, kind.FINE) for kind in kinds] == [("ieee", "tf32x3"), ("tf32", "tf32")]


def test_lengths_are_the_plans_own() -> None:
    """The caller may go on to write to theirs."""
    lengths = LENGTHS.clone()
    plan = call_of(torch.zeros(3, 8, 8), lengths).plan
    lengths.fill_(1)
    assert plan.contexts.lengths.tolist() == [3, 8, 1]
    assert [table.tolist() for table in plan.starts] == [[0, 3, 11, 12], [0, 4, 8, 12]]


def test_what_a_plan_keeps_is_of_its_key() -> None:
    plan = call_of(torch.zeros(3, 8, 8)).plan
    made = [plan.kept(Part, 0, (0, 3), dtype) for dtype in (torch.float32, torch.bfloat16)]
    assert made[0].key != made[1].key
    assert plan.kept(Part, 0, (0, 3), torch.float32) is made[0]
    assert (plan.kept(Part, 0, (1, 3), torch.float32).n_rows, made[0].n_rows) == (9, 12)


def layouts_of(n: int, regions: int, words: int, listed: bool = False) -> list[Layout]:
    """Of n images and as many captions that have so many rows each, the first; of listed ones, the first pair's."""
    sides = [torch.zeros(1, 1, 1).expand(n, rows, 64) for rows in (regions, words)]
    pairs = torch.zeros(1, 2, dtype=torch.int64) if listed else None
    plan = Call(sides[0], None, None, None, sides[1], None, None, None, pairs, None, *OPTIONS.values()).plan
    if listed:
        return [Layout(plan, (0, 1), (0, 0), torch.float32)]
    own, tiles = (pairwise(bounds) for bounds in parts_of(plan, False))
    return [Layout(plan, contexts, queries, torch.float32) for contexts, queries in product(own, tiles)]


def test_long_queries_meet_few_contexts() -> None:
    """Their similarities are no more than those of many short ones."""
    assert all(sum(layout.room) * 4 <= 128 * 2**20 for layout in layouts_of(2, 8, 20_000))
    assert all(sum(layout.room) * 4 <= 128 * 2**20 for layout in layouts_of(600, 36, 8000)[:20])


@pytest.mark.parametrize("listed", [False, True])
def test_pairs_beyond_32_bits_are_refused(listed: bool) -> None:
    with pytest.raises(UnsupportedByBackend, match="40000 and 30000 rows"):
        layouts_of(1, 40_000, 30_000, listed)


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [x for part in (*value.keys(), *value.values()) for x in tensors_of(part)]
    if isinstance(value, (tuple, list)):
        return [x for part in value for x in tensors_of(part)]
    return tensors_of(vars(value)) if type(value).__module__.startswith("crossret_kernels") else []


def step(sides: list[Tensor], **options: Any) -> list[Launch]:
    with recorded() as launches:
        scores = scan_scores(*sides, LENGTHS, backend="triton", **options)
        torch.autograd.grad(scores, sides, torch.zeros_like(scores))
    return launches


@pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
def test_a_plan_keeps_no_workspace() -> None:
    """Nor anything without end, of pairs of ever other numbers."""
    sides = [torch.zeros(3, 8, 8, requires_grad=True), torch.zeros(3, 4, 8, requires_grad=True)]
    step(sides)
    step(sides, pairs=torch.zeros(2, 2, dtype=torch.int64))
    plans: list[Plan] = [call_of(sides[0]).plan, call_of(sides[0], pairs=torch.zeros(2, 2, dtype=torch.int64)).plan]
    for plan in plans:
        assert plan._made
        tables = plan.tables[0].untyped_storage().data_ptr()
        assert {x.untyped_storage().data_ptr() for x in tensors_of(plan)} == {tables}
    for count in range(1, 100):
        plans[1].kept(Layout, (0, count), (0, 0), torch.float32)
        assert len(plans[1]._made) <= MOST_MADE


@pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
def test_calls_of_other_options_between_change_no_launch() -> None:
    sides = [torch.zeros(3, 8, 8, requires_grad=True), torch.zeros(3, 4, 8, requires_grad=True)]
    half = [side.detach().half().requires_grad_() for side in sides]
    calls: list[tuple[list[Tensor], dict[str, Any]]] = [
        (sides, {}), (half, {}), (sides, {"normalize": True}), (sides, {"direction": "i2t", "pooling": "lse"}),
        (sides, {"pairs": torch.zeros(2, 2, dtype=torch.int64)}),
        (sides, {"pairs": torch.zeros(5, 2, dtype=torch.int64)}),
    ]  # fmt: skip

    def seen(launches: list[Launch]) -> list[Any]:
        return [(x.name, x.grid, x.warps, x.kind, x.key, x.arguments.get("source"), sizes_of(x)) for x in launches]

    def sizes_of(launch: Launch) -> Any:
        return getattr(launch.arguments.get("run"), "sizes", None), launch.arguments.get("strides")

    first = [seen(step(own, **options)) for own, options in calls]
    assert [seen(step(own, **options)) for own, options in calls] == first
    assert len({str(launches) for launches in first}) == len(calls)


@pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
@pytest.mark.parametrize("wanted", [0, 1], ids=["regions", "words"])
def test_only_the_wanted_gradients_are_made(wanted: int) -> None:
    sides = [torch.zeros(3, 8, 8), torch.zeros(3, 4, 8)]
    sides[wanted].requires_grad_()
    with recorded() as launches:
        scan_scores(*sides, LENGTHS, backend="triton").sum().backward()
    names = [launch.name for launch in launches]
    assert names.count("store_gradients") == 1
    assert ("gram_gradients" in names) == (wanted == 0)
