"""`scan_attend` by backend "triton" against the oracle in float64: layouts, gradients, NaN, opcheck, orders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import ScanOptions, UnsupportedByBackend, scan_attend, scan_attention
from crossret_kernels.gpu.tuning import AttendedPairs
from tests.every_two import every_two
from tests.interpreted.programs import ORDERS, programs_share_nothing
from tests.kernels.strategies import DIRECTIONS, NORM_MODES

PAIRS = torch.tensor([[0, 1], [2, 0], [0, 1], [1, 2], [2, 2]])
LENGTHS = torch.tensor([5, 1, 3]), torch.tensor([2, 7, 4])


def sides(dim: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(dim)
    return [torch.randn(3, n, dim, generator=generator).to(dtype) for n in (6, 8)]


def laid_out(given: list[Tensor], layout: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position and by name; a mask keeps a row here and there, and nothing of one image."""
    if layout == "padded":
        return (*given, *LENGTHS), {}
    if layout == "mask":
        masks = [torch.arange(x.size(0) * x.size(1)).view(x.shape[:2]) % 3 != 0 for x in given]
        masks[0][1] = False
        return tuple(given), {"region_mask": masks[0], "word_mask": masks[1], "empty_score": -0.5}
    items = [[x[:n] for x, n in zip(x, own.tolist(), strict=True)] for x, own in zip(given, LENGTHS, strict=True)]
    if layout == "list":
        return tuple(items), {}
    offsets = (torch.cat([torch.zeros(1, dtype=torch.int64), own.cumsum(0)]) for own in LENGTHS)
    return tuple(zip(map(torch.cat, items), offsets, strict=True)), {}


def everything(function: Any, given: list[Tensor], layout: str, backend: str, **options: Any) -> list[Tensor]:
    """Results, and gradients through all of them, each number counting otherwise."""
    leaves = [x.clone().requires_grad_() for x in given]
    arguments, named = laid_out(leaves, layout)
    made = function(*arguments, **named, **options, pairs=PAIRS, backend=backend)
    weights = [torch.linspace(-1, 2, x.numel()).view_as(x).to(x) for x in made]
    return [*made, *torch.autograd.grad(sum((x * w).sum() for x, w in zip(made, weights, strict=True)), leaves)]


def check(function: Any, given: list[Tensor], layout: str, **options: Any) -> None:
    """Within some units of the greatest number of each result."""
    ours = everything(function, given, layout, "triton", **options)
    theirs = everything(function, [x.double() for x in given], layout, "reference", **options)
    for one, other in zip(ours, theirs, strict=True):
        unit = 2.0**-11 if one.dtype == torch.float16 else 2.0**-18
        torch.testing.assert_close(one.double(), other, rtol=0, atol=unit * max(1.0, float(other.detach().abs().max())))


@pytest.mark.parametrize(
    ("order", "layout", "dtype", "direction"),
    every_two(ORDERS, ["padded", "packed", "list", "mask"], [torch.float32, torch.float16], DIRECTIONS),
    indirect=["order"],
)
def test_layouts_and_gradients(layout: str, dtype: torch.dtype, direction: str) -> None:
    with programs_share_nothing():
        check(scan_attend, sides(70, dtype), layout, direction=direction, normalize=True, lambda_softmax=4.0)


@pytest.mark.parametrize("norm", NORM_MODES)
@pytest.mark.parametrize("pooling", ["lse", "avg", "sum", "max"])
def test_options(norm: str, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs in several parts, whose gradients are added up."""
    monkeypatch.setattr(AttendedPairs, "CELL_BYTES", 2 * 8 * 16 * 16)
    options: dict[str, Any] = {"raw_feature_norm": norm, "pooling": pooling, "lambda_softmax": -2.0}
    check(scan_attend, sides(64), "padded", **options)
    check(scan_attention, sides(12), "mask", direction="i2t", normalize=True, **options)


LATER = (
    {"relevance": "projection", "lambda_softmax": 4.0},
    {"focal": True, "lambda_softmax": 20.0},
    {"raw_feature_norm": "minmax", "threshold": 0.3},
    {"raw_feature_norm": "minmax", "focal": True, "relevance": "projection"},
)


@pytest.mark.parametrize("options", LATER, ids=str)
def test_options_of_later_papers(options: dict[str, Any]) -> None:
    check(scan_attend, sides(64), "padded", pooling="lse", **options)
    check(scan_attention, sides(12), "mask", direction="i2t", normalize=True, **options)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 1.0])
def test_similarities_that_tie(threshold: float | None) -> None:
    """Whole numbers, of which several are the least, the greatest or at the threshold 0.5, or all agree."""
    words = torch.tensor([[-1.0, 3, 1, -1, 3, 1], [2, 2, 2, 2, 2, 2], [1, 2, 0, 0, 1, 0], [0, -3, 0, 0, -3, 0]])
    given = [torch.eye(6).expand(3, -1, -1), torch.cat([words, words]).expand(3, -1, -1)]
    check(scan_attend, given, "padded", raw_feature_norm="minmax", threshold=threshold)


@pytest.mark.parametrize("scale", [1e18, 1e-18])
def test_minmax_of_any_size(scale: float) -> None:
    """Differences of similarities may be out of range."""
    plain, scaled = (
        scan_attention(*(x * by for x in sides(20)), pairs=PAIRS, raw_feature_norm="minmax", backend="triton").weights
        for by in (1.0, scale)
    )
    torch.testing.assert_close(scaled, plain)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN in the interpreter
@pytest.mark.parametrize("options", [{}, *LATER[1:3]], ids=str)
def test_nan_stays_in_its_pairs_and_padding_is_never_read(options: dict[str, Any]) -> None:
    given = sides(20)
    clean = everything(scan_attend, given, "padded", "triton", **options)
    for side, own in zip(given, LENGTHS, strict=True):
        for item, length in zip(side, own.tolist(), strict=True):
            item[length:] = torch.nan
    torch.testing.assert_close(everything(scan_attend, given, "padded", "triton", **options), clean, rtol=0, atol=0)
    given[0][2, 1, 0] = torch.nan
    ours = everything(scan_attend, given, "padded", "triton", **options)
    well = PAIRS[:, 0] != 2
    for one, other in zip(ours[:4], clean, strict=False):
        assert torch.equal(one[well], other[well])
        assert one[~well].isnan().any()
    assert torch.equal(ours[4][:2], clean[4][:2]) and torch.equal(ours[5][1], clean[5][1])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cells", [1, 10**9], ids=["many parts", "one part"])
def test_nan_of_an_item_without_pairs_is_not_in_its_gradient(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttendedPairs, "CELL_BYTES", cells)
    given = [torch.cat([x, torch.full_like(x[:1], torch.nan)]).requires_grad_() for x in sides(20)]
    made = scan_attend(*given, pairs=PAIRS, backend="triton")
    for gradient in torch.autograd.grad(sum(x.sum() for x in made), given):
        assert gradient.isfinite().all() and gradient[0].any() and not gradient[3].any()


@pytest.mark.parametrize("norm", ["clipped_l2norm", "l1norm"])
@pytest.mark.parametrize("scale", [1e12, 1e-9])
def test_squares_of_similarities_may_leave_the_range(norm: str, scale: float) -> None:
    check(scan_attend, [x * scale for x in sides(20)], "padded", raw_feature_norm=norm, lambda_softmax=4.0)


def test_what_no_tile_holds_is_refused() -> None:
    long = torch.randn(2, 200, 8)
    with pytest.raises(UnsupportedByBackend, match="one tile of 4096, these items take 256 × 256"):
        scan_attend(long, long, pairs=PAIRS[:1], backend="triton")


def test_no_pairs() -> None:
    leaves = [x.requires_grad_() for x in sides(9)]
    made = scan_attend(*leaves, pairs=PAIRS[:0], backend="triton")
    assert [x.shape for x in made] == [(0,), (0, 8, 9), (0, 8, 6), (0, 8)]
    assert all(not x.any() for x in torch.autograd.grad(sum(x.sum() for x in made), leaves))


@pytest.mark.parametrize("attended", [False, True])
def test_opcheck(attended: bool) -> None:
    regions, words = sides(9)
    arguments = regions, None, LENGTHS[0], None, words, None, LENGTHS[1], None, PAIRS
    options = None, False, *ScanOptions(normalize=True, pooling="lse").codes, 8, 6, attended
    grads = [torch.ones(5, *last) for last in ((), (8, 9 if attended else 0), (8, 6), (8,))]
    operations = torch.ops.crossret
    torch.library.opcheck(operations.scan_attend_triton_backward.default, (*grads, *arguments, *options, True, False))
    for side in (regions, words):
        side.requires_grad_()
    torch.library.opcheck(operations.scan_attend_triton.default, (*arguments, *options))
