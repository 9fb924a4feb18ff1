"""How backend "cuda" cuts calls of `scan_scores` up: from shapes alone where one part has room, else by lengths; either
way scores and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from crossret_kernels.cross_attention.cuda import backward, plan
from crossret_kernels.gpu.tuning import CudaAttention
from tests.kernels.cross_attention.kernels import batch_of
from tests.kernels.strategies import Features
from tests.kernels.tolerance import score_weights
from tests.simt.launches import MOST_SHARED, Device

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL_PARTS = {"ROW_BYTES": 800, "CELLS": 500}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def defaults(simulated: Device) -> None:
    simulated.choose(multiprocessors=3)


@contextmanager
def cut_up(**sizes: int) -> Iterator[list[int]]:
    """With workspaces of these sizes; in how many parts sides came that were cut up by lengths."""
    seen: list[int] = []

    def cutting(call: plan.CudaCall) -> Any:
        made = own(call)
        seen.extend(map(len, made))
        return made

    own = plan.CudaCall._cut_up
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.CudaCall, "_cut_up", cutting)
        for name, value in sizes.items():
            patch.setattr(CudaAttention, name, value)
        yield seen


@contextmanager
def nothing_of_lengths() -> Iterator[None]:
    """Whatever makes tables of lengths, or copies them, is an error."""

    def refuse(*_: Any) -> None:
        raise AssertionError("lengths were looked at")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "on_device", refuse)
        yield


def made_of(batch: Features, layout: str = "padded", **options: Any) -> list[Tensor]:
    """Scores and gradients."""
    sides = [side.clone().requires_grad_() for side in (batch.regions, batch.words)]
    arguments: list[Any] = [*sides, *batch.lengths]
    if layout == "mask":
        masks = [torch.arange(x.size(1)).flip(0) < own[:, None] for x, own in zip(sides, batch.lengths, strict=True)]
        arguments = sides
        options |= {"region_mask": masks[0], "word_mask": masks[1]}
    elif layout != "padded":
        items = [
            [item[:count] for item, count in zip(side, own.tolist(), strict=True)]
            for side, own in zip(sides, batch.lengths, strict=True)
        ]
        arguments = [own if layout == "list" else packed(own) for own in items]
    scores = scan_scores(*arguments, backend="cuda", **options)
    weights = score_weights(scores.shape).to(scores)
    return [scores.detach(), *torch.autograd.grad((scores * weights).sum(), sides)]


def packed(items: list[Tensor]) -> tuple[Tensor, Tensor]:
    counts = torch.tensor([len(item) for item in items])
    return torch.cat(items), torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def check_alike(ours: list[Tensor], true: list[Tensor]) -> None:
    """But for the order of sums over parts, of bfloat16 for what their products are rounded to."""
    for made, expected in zip(ours, true, strict=True):
        unit = 4 * torch.finfo(made.dtype).eps
        assert (made - expected).abs().max() <= unit * expected.abs().max()


@pytest.mark.parametrize(
    ("layout", "direction", "listed"),  # every two
    [
        (layout, direction, (i + j) % 2 == 1)
        for i, layout in enumerate(("padded", "packed", "list", "mask"))
        for j, direction in enumerate(("t2i", "i2t"))
    ],
)
@DTYPES
def test_slots_and_lengths_make_the_same(dtype: torch.dtype, layout: str, direction: str, listed: bool) -> None:
    """Lengths in one part, for which padding leaves no room, and in several."""
    pairs = torch.randint(0, 7, (30, 2), generator=torch.Generator().manual_seed(1)) if listed else None
    batch = batch_of(7, 9, 20, (12, 15)).to(dtype)
    options = {"direction": direction, "pairs": pairs, "pooling": "lse", "normalize": True}
    with cut_up() as seen:
        true = made_of(batch, layout, **options)
    assert seen == []
    rows = max(int(own.sum()) for own in batch.lengths)
    with cut_up(ROW_BYTES=rows * 20 * dtype.itemsize) as seen:
        check_alike(made_of(batch, layout, **options), true)
    assert seen[:2] == [1, 1]
    assert (max(seen[2:]) == 1) == (dtype is not torch.float16)  # whose gradients pack float32
    with cut_up(**SMALL_PARTS) as seen:
        check_alike(made_of(batch, layout, **options), true)
    assert min(seen) > 1
    assert len(seen) == 4


def test_gradients_have_tiles_of_32_rows_where_99_kib_are_shared() -> None:
    """By bfloat16 features, whose usual items fit them to the last few bytes."""
    rows, *_ = plan.steps.attention_job_sizes(1, False, 36, True, 99 * 1024)
    assert rows == 32


def test_a_call_in_one_part_is_known_from_shapes() -> None:
    batch = batch_of(5, 4).to(torch.float32)
    with nothing_of_lengths(), cut_up() as seen:
        for layout in ("padded", "packed", "mask"):
            made_of(batch, layout)
    assert seen == []


def test_parts_of_items_with_all_their_rows_are_known_from_shapes() -> None:
    batch = batch_of(5, 4).to(torch.float32)
    sides = [side.requires_grad_() for side in (batch.regions, batch.words)]
    expected = scan_scores(*sides, backend="cuda")
    of_expected = torch.autograd.grad(expected.square().sum(), sides)
    with nothing_of_lengths(), cut_up(ROW_BYTES=3000, CELLS=300) as seen:
        scores = scan_scores(*sides, backend="cuda")
        gradients = torch.autograd.grad(scores.square().sum(), sides)
    assert min(seen) > 1
    check_alike([scores, *gradients], [expected, *of_expected])


def test_padding_longer_than_any_item_that_is_attended_to(simulated: Device) -> None:
    simulated.choose(most_shared=MOST_SHARED[-1])
    batch = batch_of(3, 4).to(torch.float32)
    wide = torch.full((3, plan.most_attended_rows(torch.device("cpu"), True) + 9, 24), torch.nan)
    wide[:, :12] = batch.regions
    made = []
    for regions in (batch.regions, wide):
        own = regions.clone().requires_grad_()
        scores = scan_scores(own, batch.words, *batch.lengths, raw_feature_norm="softmax", backend="cuda")
        made.append([scores, torch.autograd.grad(scores.sum(), own)[0][:, :12]])
    check_alike(*made)


@DTYPES
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize(("rows", "n_captions"), [((36, 20), 5000), ((197, 77), 1000)], ids=str)
def test_what_scores_hold_beside_themselves(
    rows: tuple[int, int], n_captions: int, direction: str, dtype: torch.dtype, simulated: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """At most 256 MiB: packed parts of both sides, of 1,000 images and D = 1,024. Nothing is computed, nor written."""
    simulated.choose(idle=True)
    held: dict[int, int] = {}
    pack = plan.CudaCall.pack

    def packing(call: plan.CudaCall, own: int, part: Any) -> Tensor:
        packed = pack(call, own, part)
        held[own] = max(held.get(own, 0), packed.nbytes)
        return packed

    monkeypatch.setattr(plan.CudaCall, "pack", packing)
    regions = torch.empty(1000, rows[0], 1024, dtype=dtype)
    words = torch.empty(n_captions, rows[1], 1024, dtype=dtype)
    scan_scores(regions, words, direction=direction, backend="cuda")
    assert 2**26 < sum(held.values()) <= 2**28


@pytest.mark.parametrize("options", [{}, {"direction": "i2t"}, {"pairs": torch.tensor([[0, 2], [4, 6], [4, 0]])}])
@pytest.mark.parametrize("sizes", [{}, SMALL_PARTS], ids=["one part", "parts"])
@DTYPES
def test_products_are_of_whole_eights(
    dtype: torch.dtype, sizes: dict[str, int], options: dict[str, Any], simulated: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Sides whose elements follow one another, and strides, whatever numbers of rows there are: cuBLAS takes kernels of
    earlier cards for products of others.
    """
    simulated.choose(idle=True)
    operands: list[Tensor] = []

    def product(left: Tensor, right: Tensor) -> Tensor:
        assert left.size(1) == right.size(0)
        operands.extend((left, right))
        return torch.empty(left.size(0), right.size(1))

    monkeypatch.setattr(backward, "_product", product)
    sides = [torch.zeros(count, rows, 100, dtype=dtype, requires_grad=True) for count, rows in ((5, 37), (7, 21))]
    lengths = torch.tensor([37, 1, 5, 35, 2]), torch.tensor([3, 21, 1, 7, 20, 2, 2])
    with cut_up(**sizes) as seen:
        scores = scan_scores(*sides, *lengths, backend="cuda", **options)
        torch.autograd.grad(scores, sides, torch.ones_like(scores))
    assert len(operands) == 4 if not sizes else min(seen) > 1
    for matrix in operands:
        inner = matrix.stride().index(1)
        numbers = matrix.size(inner), matrix.stride(1 - inner), matrix.storage_offset()
        assert not any(number % 8 for number in numbers), (matrix.shape, matrix.stride(), numbers)
