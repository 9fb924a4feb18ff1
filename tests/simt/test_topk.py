"""The best k merged by the CUDA kernels on the CPU, against Python's sort, which is stable, after every block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import backends, maxsim_scores, maxsim_topk, scan_scores, scan_topk
from crossret_kernels.topk import streamed as topk
from crossret_kernels.topk.cuda import MOST, merge_in_cuda, merges_in_cuda
from tests.kernels.rankings import assert_same_bits, blocks_of, sorted_scores
from tests.kernels.strategies import examples
from tests.simt.launches import SCHEDULES, Device, Schedule

pytestmark = pytest.mark.usefixtures("simulated")
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)

# Two NaN of different bits, and both zeros.
SPECIAL = torch.tensor([0x7FC00000, -0x3FFFFF, 0x7F800000, -0x800000, 0, -(2**31), 1], dtype=torch.int32).view(
    torch.float32
)


@pytest.fixture(autouse=True)
def defaults(device: Device) -> None:
    device.choose()


def none_yet(rows: int) -> tuple[Tensor, Tensor]:
    return torch.empty(rows, 0), torch.empty(rows, 0, dtype=torch.int64)


def laid_out(scores: Tensor, layout: str) -> Tensor:
    """The same scores, in rows, in columns, or among NaN that are no scores."""
    rows, columns = scores.shape
    if layout == "rows":
        return scores.contiguous()
    if layout == "columns":
        return scores.T.contiguous().T
    spread = torch.full((columns + 1, 2, rows, 3) if layout == "apart" else (rows, 2, columns, 3), torch.nan)
    apart = spread[:columns, 0, :, 1].T if layout == "apart" else spread[:, 1, :, 2]
    apart.copy_(scores)
    return apart


def check(scores: Tensor, stops: list[int], k: int, layout: str) -> None:
    best, start = none_yet(len(scores)), 0
    for stop in stops:
        best = merge_in_cuda(*best, laid_out(scores[:, start:stop], layout), start, k)
        assert_same_bits(best, sorted_scores(scores[:, :stop], "image", k))
        start = stop


@dataclass(frozen=True)
class Case:
    scores: Tensor
    stops: list[int]
    k: int
    layout: str


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Scores that often tie, rise or fall, cut into blocks."""
    rows = draw(st.integers(1, 4) | st.sampled_from((32, 35)))
    blocks = draw(st.lists(st.integers(1, 40) | st.sampled_from((256, 257, 600)), min_size=1, max_size=4))
    columns = sum(blocks)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scores = torch.randn(rows, columns, generator=generator)
    kind = draw(st.sampled_from(("random", "ties", "rising", "falling", "equal")))
    if kind == "ties":
        scores = (scores * 2).round() / 2
    elif kind in ("rising", "falling"):
        scores = scores.sort(dim=1, descending=kind == "falling").values
    elif kind == "equal":
        scores = torch.full_like(scores, draw(st.sampled_from((0.0, -torch.inf, torch.nan))))
    special = torch.rand(rows, columns, generator=generator) < draw(st.sampled_from((0.0, 0.01, 0.5)))
    scores[special] = SPECIAL[torch.randint(len(SPECIAL), (int(special.sum()),), generator=generator)]
    k = draw(st.integers(1, 12) | st.sampled_from((columns - 1, columns, columns + 3, 300)))
    layout = draw(st.sampled_from(("rows", "columns", "apart", "apart in rows")))
    return Case(scores, torch.tensor(blocks).cumsum(0).tolist(), max(k, 1), layout)


@given(case=cases(), schedule=st.sampled_from(SCHEDULES))
@examples(150)
def test_merged_is_sorted(device: Device, case: Case, schedule: Schedule) -> None:
    device.choose(schedule)
    check(case.scores, case.stops, case.k, case.layout)


@every_schedule
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(
    ("rows", "stops", "k"),
    [
        (2, [2600, 3300], 1000),  # more than wait at once
        (1, [70_000], 3),  # several runs of columns, and of their words
        (1, [1, 9300], MOST),
        (33, [300, 4900], 5),
    ],
)
def test_many_columns(device: Device, layout: str, rows: int, stops: list[int], k: int, schedule: Schedule) -> None:
    device.choose(schedule)
    scores = torch.randn(rows, stops[-1], generator=torch.Generator().manual_seed(k)).mul(20).round() / 20
    check(scores, stops, k, layout)


@pytest.mark.parametrize("k", [4976, 4977, 5120, 5121])
def test_48_kib_of_shared_memory_and_what_the_kernel_declares(k: int) -> None:
    """Unasked a kernel has them in all: 8 bytes for each of k and 1,024 scores, beside 1,152 that it declares."""
    check(torch.arange(5200.0).view(1, -1), [5200], k, "rows")


@every_schedule
@pytest.mark.parametrize("k", [1, 700])
def test_every_score_is_better_than_those_before(device: Device, k: int, schedule: Schedule) -> None:
    device.choose(schedule)
    check(torch.arange(5200.0).view(1, -1), [900, 5200], k, "rows")


def test_nothing_better_changes_nothing() -> None:
    """The k-th itself is no better, nor is anything better than NaN, nor −∞ than −∞."""
    for last in (1.0, torch.nan, -torch.inf):
        values, indices = torch.tensor([[torch.nan, last]]), torch.tensor([[3, 1]])
        merged = merge_in_cuda(values, indices, torch.tensor([[last, -torch.inf]]).expand(1, 2), 9, 2)
        assert merged[0] is values
        assert merged[1] is indices
        assert indices.tolist() == [[3, 1]]


def test_large_indices() -> None:
    values, indices = merge_in_cuda(*none_yet(1), torch.tensor([[1.0, 2.0]]), 2**40, 2)
    assert (values.tolist(), indices.tolist()) == ([[2.0, 1.0]], [[2**40 + 1, 2**40]])


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_no_rows_or_columns(shape: tuple[int, int]) -> None:
    values, indices = merge_in_cuda(*none_yet(shape[0]), torch.empty(shape), 0, 4)
    assert values.shape == indices.shape == (shape[0], min(4, shape[1]))


def refused(*_: Any) -> None:
    raise AssertionError("merged in PyTorch operations")


@pytest.mark.parametrize("query", topk.QUERIES)
@pytest.mark.parametrize("block_scores", [1, 40, 10**6])
@pytest.mark.parametrize(("score", "best"), [(scan_scores, scan_topk), (maxsim_scores, maxsim_topk)])
def test_streams_end_as_they_do_without_it(score: Any, best: Any, block_scores: int, query: str) -> None:
    generator = torch.Generator().manual_seed(5)
    images, captions = (torch.randint(-1, 2, (n, 3, 2), generator=generator).float() for n in (60, 7))
    for k in (1, 5, 100):
        with blocks_of(block_scores, 10**4), pytest.MonkeyPatch.context() as patch:
            expected = best(images, captions, k=k, query=query, backend="cpu")
            patch.setattr(topk, "_merge", refused)
            patch.setenv("CROSSRET_BACKEND", "cpu")  # of the scores
            found = topk.feature_topk(partial(score), images, captions, k=k, query=query, backend="cuda")
        assert_same_bits(found, expected)


def test_it_merges_for_those_who_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CROSSRET_BACKEND", raising=False)
    scores = torch.rand(3, 4)
    assert merges_in_cuda("cuda", scores, MOST)
    assert not merges_in_cuda(None, scores, 1)
    assert not merges_in_cuda("cpu", scores, 1)
    monkeypatch.setenv("CROSSRET_BACKEND", "cuda")
    assert merges_in_cuda(None, scores, 1)
    assert not merges_in_cuda("torch", scores, 1)
    # What it cannot merge is merged otherwise.
    assert not merges_in_cuda("cuda", scores, MOST + 1)
    assert not merges_in_cuda("cuda", scores.double(), 1)
    assert not merges_in_cuda("cuda", scores.half(), 1)
    monkeypatch.setattr(backends, "SIMULATED", False)
    assert not merges_in_cuda("cuda", scores, 1)


def test_traced() -> None:
    arguments = (torch.full((3, 5), 0.5), torch.zeros(3, 5, dtype=torch.int64), torch.rand(3, 9), 5, 7)
    torch.library.opcheck(torch.ops.crossret.merge_topk_cuda.default, arguments)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({2: torch.rand(3)}, "scores must be a 2-D float32 tensor"),
        ({2: torch.rand(3, 9).double()}, "scores must be a 2-D float32 tensor"),
        ({2: torch.rand(4, 9)}, "values must be a contiguous 2-D float32 tensor of the scores' rows"),
        ({0: torch.rand(5, 3).T}, "values must be a contiguous 2-D float32 tensor of the scores' rows"),
        ({1: torch.zeros(3, 5)}, "indices must be a contiguous 2-D int64 tensor of the scores' rows"),
        ({1: torch.zeros(3, 4).long()}, "indices must be a contiguous 2-D int64 tensor of the scores' rows"),
        ({3: -1}, "of -1 and 9 scores 5 are not the best"),
        ({3: 6}, "of 6 and 9 scores 5 are not the best"),
        ({2: torch.rand(3, 1), 3: 3}, "of 3 and 1 scores 5 are not the best"),
        (
            {0: torch.rand(3, MOST + 1), 1: torch.zeros(3, MOST + 1).long()},
            f"k is {MOST + 1} but the kernels merge up to {MOST}",
        ),
    ],
)
def test_the_operation_checks_what_kernels_rely_on(changed: dict[int, Any], message: str) -> None:
    arguments: list[Any] = [torch.rand(3, 5), torch.zeros(3, 5).long(), torch.rand(3, 9), 5, 7]
    for index, value in changed.items():
        arguments[index] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.crossret.merge_topk_cuda(*arguments)
