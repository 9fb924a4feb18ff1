"""`scan_scores` by backend "triton" of items too long for a tile on the chip, against the float64 oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import assume, given

from crossret_kernels import scan_scores, scan_topk
from crossret_kernels.cross_attention import long_tiling, tiling, triton_long
from crossret_kernels.ragged import as_ragged
from tests.kernels.strategies import IN_HALF_RANGE, Features, examples, features, nearly_cancelling, scan_options
from tests.kernels.tolerance import Expectation, well_posed

DIRECTIONS = pytest.mark.parametrize("direction", ["t2i", "i2t"])
PAIRS = torch.tensor([[0, 1], [3, 4], [2, 0], [0, 1], [0, 4]])
NUMPYS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the arithmetic that is asked for
USUAL = [(tiling, "SMALL", tiling.SMALL), (tiling, "LARGE", tiling.LARGE), (long_tiling, "BLOCK", long_tiling.BLOCK)]


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """All items are too long, and a few of them take several tiles of several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (tiling, "SMALL", 0),
            (tiling, "LARGE", 0),
            (long_tiling, "BLOCK", 32),
            (long_tiling, "MOST_ROWS", 96),
            (long_tiling, "MOST_COLUMNS", 64),
        ):
            patch.setattr(module, name, value)
        yield


def batch_of(rows: tuple[int, int] = (37, 21), dim: int = 24, n: tuple[int, int] = (4, 5), **more: Any) -> Features:
    generator = torch.Generator().manual_seed(rows[0])
    sides = [
        torch.randn(count, longest, dim, generator=generator, dtype=torch.float64)
        for count, longest in zip(n, rows, strict=True)
    ]
    lengths = [torch.randint(1, side.size(1) + 1, (side.size(0),), generator=generator) for side in sides]
    lengths[0][0], lengths[1][-1] = rows
    return Features(sides[0], sides[1], lengths[0], lengths[1], more.get("pairs"))


def check(batch: Features, dtype: torch.dtype, **options: Any) -> None:
    expected = Expectation.of(scan_scores, batch, dtype, **options)
    sides = batch.regions.to(dtype), batch.words.to(dtype)
    scores = scan_scores(*sides, *batch.lengths, pairs=batch.pairs, backend="triton", **options)
    assert float((scores.double() - expected.truth[0]).abs().max()) <= expected.bounds[0]


@examples(30)
@given(batch=features(), options=scan_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    assume(well_posed(batch, options))
    check(batch, torch.float32, **options)


@examples(15)
@given(batch=features(IN_HALF_RANGE), options=scan_options())
def test_float16(batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(torch.float16).to(torch.float64)
    assume(well_posed(batch, options))
    check(batch, torch.float16, **options)


@DIRECTIONS
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("dim", [24, 64], ids=["few features", "many features"])
def test_items_of_several_blocks(direction: str, dim: int, listed: bool) -> None:
    batch = batch_of((70, 35), dim, pairs=PAIRS if listed else None)
    for norm, pooling in (("clipped_l2norm", "lse"), ("softmax", "max"), ("no_norm", "avg")):
        check(batch, torch.float32, direction=direction, raw_feature_norm=norm, pooling=pooling, normalize=True)


@pytest.mark.parametrize("rows", [(129, 3), (80, 65), (2, 140)])
def test_items_too_long_for_a_tile_on_the_chip(rows: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in USUAL:
        monkeypatch.setattr(module, name, value)
    check(batch_of(rows, 8, (2, 2)), torch.float32, raw_feature_norm="l1norm", normalize=False)


@pytest.mark.parametrize("tiles", [1, 2])
def test_gram_matrices_of_few_tiles_at_a_time(tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_long, "GRAM_BYTES", tiles * 4 * 96 * 48)
    monkeypatch.setattr(triton_long, "CELL_BYTES", 1)
    check(batch_of(dim=64, n=(9, 3)), torch.float32, pooling="lse", normalize=False)


@DIRECTIONS
def test_layouts_and_views_score_alike(direction: str) -> None:
    batch = batch_of(n=(4, 6)).to(torch.float32)
    options = {"direction": direction, "backend": "triton"}
    expected = scan_scores(*batch.arguments(), **options)
    for layout in ("packed", "list"):
        torch.testing.assert_close(scan_scores(*batch.arguments(layout), **options), expected, rtol=0, atol=1e-6)
    wide = torch.full((4, 40, 40), torch.nan)
    wide[:, 3:40, 5:29] = batch.regions
    words = batch.words.transpose(1, 2).contiguous().transpose(1, 2)  # rows are not contiguous
    scores = scan_scores(wide[:, 3:40, 5:29], words, *batch.lengths, **options)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    candidates = torch.tensor([[2, 0], [1, 1], [3, 2], [0, 3], [0, 1], [2, 2]])[: 6 if direction == "t2i" else 4]
    chosen = scan_scores(*batch.arguments(), candidates=candidates, **options)
    of_queries = expected.T if direction == "t2i" else expected
    torch.testing.assert_close(chosen, of_queries.gather(1, candidates), rtol=0, atol=1e-6)


@NUMPYS
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e25])
@pytest.mark.parametrize("norm", ["softmax", "clipped_l2norm", "no_norm"])
@DIRECTIONS
def test_what_is_not_finite_stays_in_its_item(direction: str, norm: str, value: float) -> None:
    batch = batch_of(dim=64).to(torch.float32)
    options = {"direction": direction, "raw_feature_norm": norm, "pooling": "lse", "backend": "triton"}
    clean = scan_scores(*batch.arguments(), **options)
    regions = batch.regions.clone()
    regions[1, 0, 3] = value
    scores = scan_scores(regions, batch.words, *batch.lengths, **options)
    others = torch.tensor([0, 2, 3])
    assert scores[1].isnan().all()
    assert torch.equal(scores[others], clean[others])


@pytest.mark.parametrize("dim", [20, 64])
def test_contexts_whose_products_are_out_of_range_are_no_numbers(dim: int) -> None:
    """Rather than wrong ones; in their own scores."""
    batch = batch_of(dim=dim).to(torch.float32)
    clean = scan_scores(*batch.arguments(), backend="triton")
    batch.regions[1] *= 2e7
    scores = scan_scores(*batch.arguments(), backend="triton")
    assert scores[1].isnan().all()
    assert torch.equal(scores[[0, 2, 3]], clean[[0, 2, 3]])


@NUMPYS
@DIRECTIONS
def test_huge_lambdas(direction: str) -> None:
    batch = batch_of().to(torch.float32)
    options = {"direction": direction, "pooling": "lse", "lambda_softmax": 3.4e38, "lambda_lse": 3e38}
    scores = scan_scores(batch.regions, batch.words, backend="triton", **options)
    expected = scan_scores(batch.regions, batch.words, backend="reference", **options)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)


@NUMPYS
@pytest.mark.parametrize("value", [1.0, torch.nan])
def test_attended_vectors_that_nearly_cancel(value: float) -> None:
    """The kernels must see it and take the long way, beside what is not finite too."""
    batch = nearly_cancelling()
    for norm, scaled in (("no_norm", False), ("clipped", True)):
        options = {"raw_feature_norm": norm, "lambda_softmax": 1.0, "normalize": scaled}
        expected = Expectation.of(scan_scores, batch, torch.float32, **options)
        regions = batch.regions.float()
        regions[3, 0, 0] *= value
        scores = scan_scores(regions, batch.words.float(), backend="triton", **options)
        errors = (scores.double() - expected.truth[0]).abs()
        assert errors[3].isnan().all() == (value != value)
        assert float(errors[:3].max()) <= expected.bounds[0]


def test_elements_past_two_to_the_31() -> None:
    """Rows lie 600 million elements apart in memory that is never touched in between."""
    apart = 600_000_000
    values = torch.empty(4 * apart + 8, dtype=torch.float16)
    words = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)).half()
    near = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(1)).half()
    far = values.as_strided((5, 1, 8), (apart, apart, 1)).copy_(near)
    for direction in ("t2i", "i2t"):
        scores = scan_scores(far, words, direction=direction, backend="triton")
        assert torch.equal(scores, scan_scores(near, words, direction=direction, backend="triton"))


def test_best_images_of_every_caption() -> None:
    batch = batch_of(n=(9, 4)).to(torch.float32)
    values, indices = scan_topk(*batch.arguments(), k=3, backend="triton")
    best = scan_scores(*batch.arguments(), backend="triton").T.sort(dim=1, descending=True, stable=True)
    assert torch.equal(indices, best.indices[:, :3])
    torch.testing.assert_close(values, best.values[:, :3], rtol=0, atol=1e-6)


def test_inside_torch_compile() -> None:
    batch = batch_of().to(torch.float32)
    score = torch.compile(lambda v, e: scan_scores(v, e, backend="triton") * 2, fullgraph=True, backend="aot_eager")
    sides = batch.regions, batch.words
    assert torch.equal(score(*sides), scan_scores(*sides, backend="triton") * 2)


def test_tiles_are_as_small_as_fills_them_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BLOCK", 128), ("MOST_ROWS", 640), ("MOST_COLUMNS", 256)):
        monkeypatch.setattr(long_tiling, name, value)

    def slots(regions: list[int], words: list[int], whole: bool = False) -> tuple[int, int]:
        sides = [
            as_ragged([torch.zeros(n, 4).half() for n in lengths], None, name="", lengths_name="", item="")
            for lengths in (regions, words)
        ]
        tile = long_tiling.long_tiling(*sides, whole)
        return tile.rows, tile.columns

    assert slots([197] * 30, [77] * 30) == (640, 256)
    assert slots([64] * 30, list(range(6, 21)) * 20) == (128, 128)
    assert slots([1030] * 3, [700, 6]) == (1152, 768)
    assert slots([197] * 30, [20] * 30, whole=True) == (256, 32)
