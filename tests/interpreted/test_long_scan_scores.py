"""`scan_scores` by backend "triton" of items too long for a tile on the chip, against the float64 oracle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import assume, given

from crossret_kernels import UnsupportedByBackend, scan_scores, scan_topk
from crossret_kernels.cross_attention import long_tiling, tiling, triton_gradients, triton_long, triton_long_gradients
from crossret_kernels.inputs import as_ragged
from tests.kernels.strategies import (
    FEW_ITEMS,
    IN_HALF_RANGE,
    Features,
    examples,
    features,
    nearly_cancelling,
    scan_options,
)
from tests.kernels.tolerance import Expectation, well_posed

DIRECTIONS = pytest.mark.parametrize("direction", ["t2i", "i2t"])
PAIRS = torch.tensor([[0, 1], [3, 4], [2, 0], [0, 1], [0, 4]])
FEW_PAIRS = torch.tensor([[0, 1], [1, 0], [0, 1]])
NUMPYS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the arithmetic that is asked for
# Every two of a direction, a norm and a value.
NOT_FINITE = [
    (("t2i", "i2t")[(i + j) % 2], norm, value)
    for i, norm in enumerate(("softmax", "clipped_l2norm", "no_norm"))
    for j, value in enumerate((torch.nan, -torch.inf, 1e25))
]
USUAL = [(tiling, "SMALL", tiling.SMALL), (tiling, "LARGE", tiling.LARGE), (long_tiling, "BLOCK", long_tiling.BLOCK)]


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """All items are too long, and a few of them take several tiles of several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (tiling, "SMALL", 0),
            (tiling, "LARGE", 0),
            (long_tiling, "BLOCK", 32),
            *((module, "MOST_ROWS", 96) for module in (triton_long, triton_long_gradients)),
            *((module, "MOST_COLUMNS", 64) for module in (triton_long, triton_long_gradients)),
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
    Expectation.of(scan_scores, batch, dtype, **options).check("triton")


@examples(10)
@given(batch=features(most=FEW_ITEMS), options=scan_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    assume(well_posed(batch, options))
    check(batch, torch.float32, **options)


@examples(5)
@given(batch=features(IN_HALF_RANGE, FEW_ITEMS), options=scan_options())
def test_float16(batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(torch.float16).to(torch.float64)
    assume(well_posed(batch, options))
    check(batch, torch.float16, **options)


@DIRECTIONS
@pytest.mark.parametrize(
    ("norm", "dim", "pooling", "listed"),
    [
        ("clipped_l2norm", 24, "lse", False),  # fewer features than contexts
        ("softmax", 80, "max", False),
        ("l1norm", 80, "sum", True),
        ("no_norm", 24, "avg", True),
    ],
)
def test_items_of_several_blocks(direction: str, norm: str, dim: int, pooling: str, listed: bool) -> None:
    batch = batch_of((70, 35), dim, (2, 2), pairs=FEW_PAIRS if listed else None)
    check(batch, torch.float32, direction=direction, raw_feature_norm=norm, pooling=pooling, normalize=not listed)


@pytest.mark.parametrize("rows", [(129, 3), (80, 65), (2, 140)])
def test_items_too_long_for_a_tile_on_the_chip(rows: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in USUAL:
        monkeypatch.setattr(module, name, value)
    check(batch_of(rows, 8, (2, 2)), torch.float32, raw_feature_norm="l1norm", normalize=False)


@DIRECTIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("tiles", [1, 2])
def test_workspaces_of_few_tiles(
    direction: str, dtype: torch.dtype, tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run, rectangle and chunk is as small as it can be; of half precision both sides' sums come one by one."""
    monkeypatch.setattr(triton_long_gradients, "most_units", lambda _tile: tiles)
    for module, name, value in (
        (triton_long, "GRAM_BYTES", tiles * 4 * 64 * 48),
        (triton_long, "CELL_BYTES", 1),
        (triton_long_gradients, "GRAM_BYTES", tiles * 4 * 64 * 48),
        (triton_gradients, "SUM_BYTES", tiles * 4 * 64 * 64),
        (triton_long_gradients, "MOST_ROWS", 64),
    ):
        monkeypatch.setattr(module, name, value)
    check(batch_of(dim=64, n=(3, 4)), dtype, direction=direction, pooling="lse", normalize=tiles == 1)


def test_listed_pairs_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some items several pairs are listed, of one none; an item's lie in two chunks, or two parts of the list."""
    batch = batch_of(pairs=PAIRS)
    expected = Expectation.of(scan_scores, batch, torch.float32, normalize=True)
    monkeypatch.setattr(triton_long_gradients, "GRAM_BYTES", 4 * 64 * 48)
    monkeypatch.setattr(triton_long_gradients, "most_units", lambda _tile: 3)
    expected.check("triton")
    monkeypatch.setattr(triton_long_gradients, "SORTED_PAIRS", 3)
    expected.check("triton")


@DIRECTIONS
def test_only_one_side_needs_a_gradient(direction: str) -> None:
    batch = batch_of(n=(3, 2)).to(torch.float32)
    options = {"direction": direction, "backend": "triton"}
    whole = [side.clone().requires_grad_() for side in (batch.regions, batch.words)]
    scan_scores(*whole, *batch.lengths, **options).sum().backward()
    for needed in (0, 1):
        sides = [batch.regions.clone(), batch.words.clone()]
        sides[needed].requires_grad_()
        scan_scores(*sides, *batch.lengths, **options).sum().backward()
        assert torch.equal(sides[needed].grad, whole[needed].grad)
        assert sides[1 - needed].grad is None


def test_a_gradient_that_is_not_finite_stays_with_its_pair() -> None:
    batch = batch_of().to(torch.float32)
    sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
    scores = scan_scores(*sides, *batch.lengths, backend="triton")
    grad = torch.ones_like(scores)
    grad[0, 2] = torch.nan
    of_regions, of_words = torch.autograd.grad(scores, sides, grad)
    assert of_regions[0, 0].isnan().any()
    assert of_words[2, 0].isnan().any()
    assert of_regions[1:].isfinite().all()
    assert of_words[[0, 1, 3, 4]].isfinite().all()


@DIRECTIONS
def test_layouts_and_views_score_alike(direction: str) -> None:
    batch = batch_of(n=(4, 3)).to(torch.float32)
    options = {"direction": direction, "backend": "triton"}
    expected = scan_scores(*batch.arguments(), **options)
    for layout in ("packed", "list"):
        torch.testing.assert_close(scan_scores(*batch.arguments(layout), **options), expected, rtol=0, atol=1e-6)
    wide = torch.full((4, 40, 40), torch.nan)
    wide[:, 3:40, 5:29] = batch.regions
    words = batch.words.transpose(1, 2).contiguous().transpose(1, 2)  # rows are not contiguous
    scores = scan_scores(wide[:, 3:40, 5:29], words, *batch.lengths, **options)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    candidates = torch.tensor([[2, 0], [1, 1], [0, 2], [0, 1]])[: 3 if direction == "t2i" else 4]
    chosen = scan_scores(*batch.arguments(), candidates=candidates, **options)
    of_queries = expected.T if direction == "t2i" else expected
    torch.testing.assert_close(chosen, of_queries.gather(1, candidates), rtol=0, atol=1e-6)


@NUMPYS
@pytest.mark.parametrize(("direction", "norm", "value"), NOT_FINITE)
def test_what_is_not_finite_stays_in_its_item(direction: str, norm: str, value: float) -> None:
    """In scores and, where its pairs have none, in gradients: all images share a tile."""
    batch = batch_of(dim=64, n=(3, 2)).to(torch.float32)
    batch.region_lengths[1:] = torch.tensor([9, 12])
    options = {"direction": direction, "raw_feature_norm": norm, "pooling": "lse", "backend": "triton"}
    others = torch.tensor([0, 2])
    results = []
    for own in (value, 1.0):
        sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
        sides[0].data[1, 0, 3] = own
        scores = scan_scores(*sides, *batch.lengths, **options)
        results.append((scores[others], *torch.autograd.grad(scores[others].sum(), sides)))
        assert scores[1].isnan().all() == (own is value)
    (scores, of_regions, of_words), (clean, clean_of_regions, clean_of_words) = results
    assert torch.equal(scores, clean)
    torch.testing.assert_close(of_regions[others], clean_of_regions[others], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(of_words, clean_of_words, rtol=1e-5, atol=1e-6)


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
    batch = batch_of(n=(2, 2)).to(torch.float32)
    score = torch.compile(lambda v, e: scan_scores(v, e, backend="triton") * 2, fullgraph=True, backend="aot_eager")
    sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
    results = []
    for scores in (score(*sides), scan_scores(*sides, backend="triton") * 2):
        results.append((scores, *torch.autograd.grad(scores.sum(), sides)))
    assert all(torch.equal(ours, eager) for ours, eager in zip(*results, strict=True))


def test_tiles_are_as_small_as_fills_them_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tiling, "BLOCK", 128)

    def slots(regions: list[int], words: list[int], whole: bool = False) -> tuple[int, int]:
        sides = [
            as_ragged([torch.zeros(n, 4).half() for n in lengths], None, None, ("", "", ""), "").joined()
            for lengths in (regions, words)
        ]
        tile = long_tiling.long_tiling(*sides, whole, 640, 256)
        return tile.rows, tile.columns

    assert slots([197] * 30, [77] * 30) == (640, 256)
    assert slots([64] * 30, list(range(6, 21)) * 20) == (128, 128)
    assert slots([1030] * 3, [700, 6]) == (1152, 768)
    assert slots([197] * 30, [20] * 30, whole=True) == (256, 32)


@pytest.mark.parametrize("most", [tiling.SHARED_KIB[9, 0], tiling.OTHERS_KIB])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_workspaces_stay_within_their_bound(dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the largest batches, on a device of 148 cores; 16 MiB are left for norms and plans."""
    monkeypatch.setattr(long_tiling, "BLOCK", 128)
    monkeypatch.setattr(long_tiling, "large_fit", lambda _device: most >= tiling.LARGE_KIB)
    for rows in itertools.product((20, 65, 129, 577, 1025, 2048), repeat=2):
        sides = [as_ragged(torch.zeros(2, n, 1, dtype=dtype), None, None, ("", "", ""), "") for n in rows]
        tile = long_tiling.long_tiling(*sides, False, 640, 256)
        grams = 4 * tile.rows * tile.gram_columns
        programs = min(triton_long.most_programs(tile), 2 * 148)
        scores = 4 * programs * sum(triton_long.program_sizes(tile))
        assert scores + max(grams, triton_long.GRAM_BYTES) <= 240 * 2**20, rows
        tile = long_tiling.long_tiling(*sides, False, 256, 256)
        grams = 4 * tile.rows * tile.gram_columns
        units = 4 * triton_long_gradients.most_units(tile) * sum(triton_long_gradients.unit_sizes(tile))
        sums = 0 if dtype == torch.float32 else triton_gradients.SUM_BYTES
        assert units + 2 * max(grams, triton_long_gradients.GRAM_BYTES) + sums <= 240 * 2**20, rows


def test_more_cells_than_int32_counts_are_refused() -> None:
    sides = [as_ragged(torch.zeros(1, n, 1), None, None, ("", "", ""), "") for n in (50_000, 45_000)]
    with pytest.raises(UnsupportedByBackend, match="items of 50000 and 45000 rows"):
        long_tiling.long_tiling(*sides, False, 640, 256)
