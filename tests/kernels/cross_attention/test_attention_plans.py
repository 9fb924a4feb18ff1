"""Calls of stacked cross attention in Triton: what follows from their shapes alone, and what from their lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from crossret_kernels.backends import INTERPRETED, UnsupportedByBackend

pytest.importorskip("triton")

from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.cross_attention.triton import backward, chunks, feature_gradients, forward
from crossret_kernels.cross_attention.triton.call import AttentionCall
from crossret_kernels.cross_attention.triton.chunks import Layout, LengthPlan, listed, single_part_of
from crossret_kernels.gpu.tuning import Attention
from crossret_kernels.torch_internals import reduced_float32
from tests.kernels.cross_attention.kernels import nothing_kept
from tests.kernels.gpu.offline import Launch, recorded

OPTIONS: dict[str, Any] = {
    "direction": "t2i", "raw_feature_norm": "clipped_l2norm", "clip_slope": 0.1, "lambda_softmax": 9.0,
    "pooling": "avg", "lambda_lse": 6.0, "normalize": False,
}  # fmt: skip
WORDS = torch.zeros(3, 4, 8)
LENGTHS = torch.tensor([3, 8, 1])

recording = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")


def call_of(
    regions: Tensor, lengths: Tensor | None = LENGTHS, words: Tensor | None = None, pairs: Tensor | None = None,
    **options: Any,
) -> AttentionCall:  # fmt: skip
    words = WORDS.to(regions.dtype) if words is None else words
    codes = ScanOptions(**OPTIONS | options).codes
    sides = regions, None, lengths, None, words, None, None, None
    return AttentionCall(*sides, pairs, None, reduced_float32(on_gpu=True), *codes)


def layouts_of(n: int, regions: int, words: int, pairs: bool = False) -> list[Layout]:
    """Of n images and as many captions that have so many rows each; of listed ones, the first pair's."""
    sides = [torch.zeros(1, 1, 1).expand(n, rows, 64) for rows in (regions, words)]
    call = call_of(sides[0], None, sides[1], torch.zeros(1, 2, dtype=torch.int64) if pairs else None)
    if pairs:
        return [listed(call.spec, 0, 1, regions, words)]
    layout = single_part_of(call)
    if layout is not None:
        return [layout]
    contexts, queries = LengthPlan(call).parts(gradients=False)
    return [Layout(own, other) for own in contexts for other in queries]


def test_long_queries_meet_few_contexts() -> None:
    """Their similarities are no more than those of many short ones."""
    most = Attention.CELL_BYTES + 32 * 2**20
    for layouts in (layouts_of(2, 8, 20_000), layouts_of(600, 36, 8000)[:20]):
        assert all(4 * sum(layout.workspace) <= most for layout in layouts)


@pytest.mark.parametrize("pairs", [False, True])
def test_pairs_beyond_32_bits_are_refused(pairs: bool) -> None:
    with pytest.raises(UnsupportedByBackend, match="40000 and 30000 rows"):
        layouts_of(1, 40_000, 30_000, pairs)


def step(sides: list[Tensor], lengths: Tensor = LENGTHS, **options: Any) -> list[Launch]:
    with recorded() as launches:
        scores = scan_scores(*sides, lengths, backend="triton", **options)
        torch.autograd.grad(scores, sides, torch.zeros_like(scores))
    return launches


def leaves() -> list[Tensor]:
    return [torch.zeros(3, 8, 8, requires_grad=True), torch.zeros(3, 4, 8, requires_grad=True)]


def seen(launches: list[Launch]) -> list[Any]:
    def sizes_of(launch: Launch) -> Any:
        owners = [launch.arguments.get(name) for name in ("run", "contexts", "queries")]
        sizes = [getattr(owner, "sizes", getattr(owner, "source", None)) for owner in owners]
        return sizes, launch.arguments.get("strides")

    return [(x.name, x.grid, x.warps, x.kind, x.key, sizes_of(x)) for x in launches]


@recording
def test_calls_of_other_options_between_change_no_launch() -> None:
    sides = leaves()
    half = [side.detach().half().requires_grad_() for side in sides]
    calls: list[tuple[list[Tensor], dict[str, Any]]] = [
        (sides, {}), (half, {}), (sides, {"normalize": True}), (sides, {"direction": "i2t", "pooling": "lse"}),
        (sides, {"pairs": torch.zeros(2, 2, dtype=torch.int64)}),
        (sides, {"pairs": torch.zeros(5, 2, dtype=torch.int64)}),
    ]  # fmt: skip
    first = [seen(step(own, **options)) for own, options in calls]
    assert [seen(step(own, **options)) for own, options in calls] == first
    assert len({str(launches) for launches in first}) == len(calls)


@recording
def test_lengths_change_no_launch_of_a_small_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything made of them on the host."""
    for module in (forward, backward, chunks):
        for name in ("LengthPlan", "on_device", "planned_runs"):
            monkeypatch.delattr(module, name, raising=False)
    assert seen(step(leaves(), torch.tensor([1, 1, 1]))) == seen(step(leaves(), torch.tensor([8, 2, 5])))


@recording
def test_what_the_forward_pass_saves_is_not_made_again() -> None:
    made = [launch.name for launch in step(leaves())]
    for name, count in {"pack_rows": 1, "gram_matrices": 1, "attend": 1}.items():
        assert made.count(name) == count
    with recorded() as launches, torch.no_grad():
        scan_scores(*leaves(), LENGTHS, backend="triton")
    assert not any(launch.kind.SAVE for launch in launches if launch.name == "attend")


def contiguous_side(matrix: Tensor) -> int:
    """Of a matrix, or of a batch of them, the dimension whose elements follow one another."""
    return -1 if matrix.stride(-1) == 1 else -2


@recording
@pytest.mark.parametrize("options", [{}, {"direction": "i2t"}, {"pairs": torch.tensor([[0, 2], [4, 6], [4, 0]])}])
@pytest.mark.parametrize("dim", [100, 300, 1024])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_are_of_whole_pitches(
    dtype: torch.dtype, parts: bool, dim: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever numbers of rows there are: cuBLAS takes kernels of 2018 where a contiguous side is odd or begins so."""
    if parts:
        monkeypatch.setattr(Attention, "CELL_BYTES", 2**11)
        monkeypatch.setattr(Attention, "LISTED_BYTES", 2**11)
    sides = [torch.zeros(count, rows, dim, dtype=dtype, requires_grad=True) for count, rows in ((5, 37), (7, 21))]
    products: list[tuple[Tensor, Tensor, Tensor]] = []
    with nothing_kept(), recorded(), monkeypatch.context() as patch:
        for module in (chunks, feature_gradients):
            patch.setattr(module, "multiply", lambda *operands: products.append(operands))
        lengths = torch.tensor([37, 1, 5, 35, 2]), torch.tensor([3, 21, 1, 7, 20, 2, 2])
        scores = scan_scores(*sides, *lengths, backend="triton", **options)
        torch.autograd.grad(scores, sides, torch.zeros_like(scores))
    assert len(products) >= (12 if parts else 3)
    for operands in products:
        for matrix in operands:
            side = contiguous_side(matrix)
            rows = [matrix.stride(-3 - side), *matrix.stride()[:-2]]
            assert matrix.stride(side) == 1
            assert not any(x % 16 for x in (matrix.data_ptr(), matrix.size(side), *rows)), (matrix.shape, rows)
