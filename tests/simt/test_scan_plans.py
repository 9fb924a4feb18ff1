"""How backend "cuda" cuts calls of `scan_scores` up: from shapes alone where one part has room, else by lengths; either
way scores and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from crossret_kernels.cross_attention.cuda import backward, forward, plan
from crossret_kernels.cross_attention.options import CrossAttentionOptions
from crossret_kernels.gpu.sides import Side
from crossret_kernels.gpu.tuning import CudaAttention
from tests.kernels.scan_checks.kernels import DIRECTIONS, batch_of
from tests.kernels.strategies import Features
from tests.kernels.tolerance import score_weights
from tests.simt.launches import MOST_SHARED, Device

pytestmark = pytest.mark.usefixtures("one_thread")

LAYOUTS = pytest.mark.parametrize("layout", ["padded", "packed", "list", "mask"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def defaults(simulated: Device) -> None:
    simulated.choose(multiprocessors=3)


@contextmanager
def cut_up(**sizes: int) -> Iterator[list[int]]:
    """With workspaces of these sizes; in how many parts sides came that were cut up by lengths."""
    seen: list[int] = []

    def cutting(call: plan.Call) -> Any:
        made = own(call)
        seen.extend(map(len, made))
        return made

    own = plan.Call._cut_up
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.Call, "_cut_up", cutting)
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


@pytest.mark.parametrize("listed", [False, True], ids=["all", "listed"])
@DIRECTIONS
@LAYOUTS
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
    with cut_up(ROW_BYTES=800, CELLS=500) as seen:
        check_alike(made_of(batch, layout, **options), true)
    assert min(seen) > 1
    assert len(seen) == 4


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


@pytest.mark.parametrize("own", [0, 1], ids=["regions", "words"])
@pytest.mark.parametrize("wrong", [(99, -3), (2**40, -(2**40))], ids=str)
def test_lengths_that_leave_an_item_are_held_within_it(
    own: int, wrong: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those are that a CUDA graph finds on the device: nothing is read or written that is not the item's."""
    batch = batch_of(3, 4, longest=(6, 5)).to(torch.float32)
    held, given = (list(batch.lengths) for _ in range(2))
    held[own] = held[own].clone()
    held[own][:2] = torch.tensor([batch.arguments()[own].size(1), 0])
    given[own] = held[own].clone()
    given[own][:2] = torch.tensor(wrong)
    sides = [side.requires_grad_() for side in (batch.regions, batch.words)]
    results = []
    for lengths in (held, given):
        unseen = [Side(x, count, None, None, x.size(1), x.size(1)) for x, count in zip(sides, lengths, strict=True)]
        monkeypatch.setattr(plan, "both_sides", lambda *_, unseen=unseen: tuple(unseen))
        scores = scan_scores(*sides, *held, empty_score=0.25, backend="cuda")
        results.append((scores, *torch.autograd.grad(scores.square().sum(), sides)))
    for ours, true in zip(*results, strict=True):
        assert torch.equal(ours, true)


def test_lengths_that_do_not_lie_one_beside_the_other() -> None:
    batch = batch_of(3, 4).to(torch.float32)
    apart = [torch.stack([own, own * 0 + 99], 1)[:, 0] for own in batch.lengths]
    assert not apart[0].is_contiguous()
    scores = scan_scores(batch.regions, batch.words, *apart, backend="cuda")
    assert torch.equal(scores, scan_scores(batch.regions, batch.words, *batch.lengths, backend="cuda"))


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


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which sides were packed."""
    seen: list[int] = []
    own: Callable[..., Tensor] = plan.steps.pack_side

    def pack(*arguments: Any) -> Tensor:
        seen.append(1 - arguments[-1])
        return own(*arguments)

    monkeypatch.setattr(plan.steps, "pack_side", pack)
    return seen


@pytest.mark.parametrize("listed", [False, True], ids=["all", "listed"])
@DIRECTIONS
@DTYPES
def test_what_is_kept_for_gradients_does_not_change_them(
    packings: list[int], dtype: torch.dtype, direction: str, listed: bool
) -> None:
    """Of float16 nothing is: gradients pack it as float32."""
    batch = batch_of(4, 5, 20, (70, 9)).to(dtype)
    pairs = torch.tensor([[0, 4], [1, 2], [3, 0], [0, 4]]) if listed else None
    codes = CrossAttentionOptions(direction, "clipped_l2norm", 0.1, 9.0, "lse", 6.0, False).codes
    arguments = (
        batch.regions, None, batch.region_lengths, None, batch.words, None, batch.word_lengths, None, pairs, None,
        False, *codes,
    )  # fmt: skip
    results = []
    for save in (False, True):
        scores, *kept = forward.scores(*arguments, save)
        assert [x.numel() > 0 for x in kept] == [save and dtype is not torch.float16] * 2
        grad = score_weights(scores.shape).float()
        packings.clear()
        results.append((scores, *backward.gradients(grad, *kept, *arguments, save, True, True)))
        assert packings == ([] if kept[0].numel() else [1, 0])
    for ours, true in zip(*results, strict=True):
        assert torch.equal(ours, true)


def test_nothing_is_kept_where_gradients_come_in_parts() -> None:
    batch = batch_of(4, 5).to(torch.float32)
    with cut_up(CELLS=100) as seen:
        made_of(batch)
    assert max(seen) > 1  # of the gradients; scores, which keep no similarities, came in one
    assert len(seen) == 2
