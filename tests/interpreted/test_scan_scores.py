"""`scan_scores` by backend "triton" against the float64 oracle, forward and backward, in many small tiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given

from crossret_kernels import kept_plans, scan_scores, scan_topk
from crossret_kernels.cross_attention.triton import backward, call, chunks, forward
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
# Every two of a direction, a norm and a value.
NOT_FINITE = [
    (("t2i", "i2t")[(i + j) % 2], norm, value)
    for i, norm in enumerate(("softmax", "clipped_l2norm", "no_norm"))
    for j, value in enumerate((torch.nan, torch.inf, -torch.inf, 1e25))
]
OPERATION = torch.ops.crossret.scan_scores_triton


USUAL = {"TILE": call.TILE, "BLOCK": call.BLOCK}


@contextmanager
def sizes(**values: int) -> Iterator[None]:
    """Tiles, blocks and workspaces of these sizes, wherever they are looked up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_plans, "_kept", kept_plans._Kept())  # none of other sizes
        for name, value in values.items():
            owners = [module for module in (call, chunks, backward) if hasattr(module, name)]
            assert owners, name
            for module in owners:
                patch.setattr(module, name, value)
        yield


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Iterator[None]:
    """A few items take several tiles, and longer ones several blocks of them; some calls are fused, others not."""
    with sizes(TILE=32, BLOCK=16, FUSED_CELLS=700):
        yield


def batch_of(
    n_images: int, n_captions: int, dim: int = 24, longest: tuple[int, int] = (12, 9), **more: Any
) -> Features:
    generator = torch.Generator().manual_seed(n_images)
    sides = [
        torch.randn(n, rows, dim, generator=generator, dtype=torch.float64)
        for n, rows in zip((n_images, n_captions), longest, strict=True)
    ]
    lengths = [torch.randint(1, side.size(1) + 1, (side.size(0),), generator=generator) for side in sides]
    return Features(sides[0], sides[1], lengths[0], lengths[1], more.get("pairs"))


@examples(25)
@given(batch=features(most=FEW_ITEMS), options=scan_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    assume(well_posed(batch, options))
    Expectation.of(scan_scores, batch, torch.float32, **options).check("triton")


@examples(12)
@given(batch=features(IN_HALF_RANGE, FEW_ITEMS), options=scan_options())
def test_float16(batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(torch.float16).to(torch.float64)
    assume(well_posed(batch, options))
    Expectation.of(scan_scores, batch, torch.float16, **options).check("triton")


@DIRECTIONS
@pytest.mark.parametrize("longest", [(3, 2), (37, 35)], ids=str)
def test_exponentials_of_what_is_not_there(direction: str, longest: tuple[int, int]) -> None:
    """Beside opposites, whose similarities are far below the zeros that stand where there are none."""
    batch = batch_of(2, 3, 2, longest)
    batch = replace(batch, regions=batch.regions.abs() * 4, words=-batch.words.abs() * 4)
    for norm, lambda_softmax in (("no_norm", 20.0), ("l2norm", 120.0)):
        options = {"direction": direction, "raw_feature_norm": norm, "lambda_softmax": lambda_softmax}
        Expectation.of(scan_scores, batch, torch.float32, lambda_lse=200.0, pooling="lse", **options).check("triton")


@DIRECTIONS
@pytest.mark.parametrize(
    ("norm", "pooling", "listed"),
    [
        ("clipped_l2norm", "lse", False),
        ("softmax", "max", False),
        ("l1norm", "sum", True),
        ("no_norm", "avg", True),
    ],
)
def test_items_of_several_tiles_and_blocks(direction: str, norm: str, pooling: str, listed: bool) -> None:
    pairs = torch.tensor([[0, 1], [1, 0], [0, 1]]) if listed else None
    batch = batch_of(2, 2, longest=(37, 35), pairs=pairs)
    options = {"direction": direction, "raw_feature_norm": norm, "pooling": pooling, "normalize": not listed}
    Expectation.of(scan_scores, batch, torch.float32, **options).check("triton")


@pytest.mark.parametrize("rows", [(129, 3), (2, 140)])
def test_items_longer_than_the_usual_tile(rows: tuple[int, int]) -> None:
    batch = batch_of(2, 2, 8, rows)
    with sizes(**USUAL):
        Expectation.of(scan_scores, batch, torch.float32, raw_feature_norm="l1norm").check("triton")


@pytest.mark.parametrize(
    ("direction", "dtype", "normalize", "longest"),  # every two
    [
        ("t2i", torch.float32, False, (12, 9)),
        ("t2i", torch.float16, True, (12, 35)),
        ("i2t", torch.float32, True, (35, 17)),
        ("i2t", torch.float16, False, (12, 9)),
    ],
    ids=str,
)
def test_workspaces_of_one_item(direction: str, dtype: torch.dtype, normalize: bool, longest: tuple[int, int]) -> None:
    """Every run is then as small as it can be; sums of both sides go one after the other."""
    batch = batch_of(3, 4, longest=longest)
    expected = Expectation.of(scan_scores, batch, dtype, direction=direction, normalize=normalize)
    with sizes(CELL_BYTES=1, ROW_BYTES=1):
        expected.check("triton")
    with sizes(GRAM_BYTES=1):
        expected.check("triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_listed_pairs_in_runs(dtype: torch.dtype) -> None:
    """Of some items all pairs are listed, of one none, one pair twice; an item's lie in two runs."""
    pairs = torch.tensor([[0, 3], [2, 0], [0, 1], [0, 0], [2, 3], [0, 2], [2, 3]])
    batch = batch_of(4, 4, pairs=pairs)
    expected = Expectation.of(scan_scores, batch, dtype, normalize=True)
    expected.check("triton")
    with sizes(LISTED_BYTES=40_000):
        expected.check("triton")


@DIRECTIONS
def test_only_one_side_needs_a_gradient(direction: str) -> None:
    batch = batch_of(3, 5).to(torch.float32)
    whole = [side.clone().requires_grad_() for side in (batch.regions, batch.words)]
    scan_scores(*whole, *batch.lengths, direction=direction, backend="triton").sum().backward()
    for needed in (0, 1):
        sides = [batch.regions.clone(), batch.words.clone()]
        sides[needed].requires_grad_()
        scan_scores(*sides, *batch.lengths, direction=direction, backend="triton").sum().backward()
        assert torch.equal(sides[needed].grad, whole[needed].grad)
        assert sides[1 - needed].grad is None


@DIRECTIONS
def test_layouts_and_views_score_alike(direction: str) -> None:
    batch = batch_of(4, 6).to(torch.float32)
    expected = scan_scores(*batch.arguments(), direction=direction, backend="triton")
    for layout in ("packed", "list"):
        scores = scan_scores(*batch.arguments(layout), direction=direction, backend="triton")
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    wide = torch.full((4, 20, 40), torch.nan)
    wide[:, 3:15, 5:29] = batch.regions
    words = batch.words.transpose(1, 2).contiguous().transpose(1, 2)  # rows are not contiguous
    views = wide[:, 3:15, 5:29], words
    scores = scan_scores(*views, *batch.lengths, direction=direction, backend="triton")
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    candidates = torch.tensor([[2, 0], [1, 1], [3, 2], [0, 3], [0, 1], [2, 2]])[: 6 if direction == "t2i" else 4]
    chosen = scan_scores(*batch.arguments(), candidates=candidates, direction=direction, backend="triton")
    of_queries = expected.T if direction == "t2i" else expected
    torch.testing.assert_close(chosen, of_queries.gather(1, candidates), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the arithmetic that is asked for
@pytest.mark.parametrize(("direction", "norm", "value"), NOT_FINITE)
def test_what_is_not_finite_stays_in_its_item(direction: str, norm: str, value: float) -> None:
    """In scores and, where its pairs have none, in gradients: it shares tiles with other items."""
    batch = batch_of(4, 5, longest=(5, 4)).to(torch.float32)
    options = {"direction": direction, "raw_feature_norm": norm, "pooling": "lse", "backend": "triton"}
    sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
    sides[0].data[1, 0, 3] = value
    scores = scan_scores(*sides, *batch.lengths, **options)
    others = torch.tensor([0, 2, 3])
    clean = scan_scores(batch.regions, batch.words, *batch.lengths, **options)
    assert scores[1].isnan().all()
    assert torch.equal(scores[others], clean[others])
    scores[others].sum().backward()
    spoilt = [side.grad for side in sides]
    clean_sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
    scan_scores(*clean_sides, *batch.lengths, **options)[others].sum().backward()
    torch.testing.assert_close(spoilt[0][others], clean_sides[0].grad[others], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(spoilt[1], clean_sides[1].grad, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the arithmetic that is asked for
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e25])
def test_attended_vectors_that_cancel_beside_what_is_not_finite(value: float) -> None:
    """The long way reads the rows of the whole tile."""
    generator = torch.Generator().manual_seed(3)
    regions = torch.randn(3, 2, 16, generator=generator)
    regions[0, 1] = -(1 + 1e-3) * regions[0, 0]
    words = 1e-2 * torch.randn(3, 3, 16, generator=generator)
    options = {"raw_feature_norm": "no_norm", "lambda_softmax": 1.0, "backend": "triton"}
    clean = scan_scores(regions, words, **options)
    regions[1, 0, 3] = value
    scores = scan_scores(regions, words, **options)
    assert scores[1].isnan().all()
    assert torch.equal(scores[[0, 2]], clean[[0, 2]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the arithmetic that is asked for
def test_attended_vectors_that_cancel_beside_queries_out_of_range() -> None:
    """Whose products with them float32 cannot hold: other captions share the sums over queries."""
    generator = torch.Generator().manual_seed(3)
    regions = 1e6 * torch.randn(3, 2, 16, generator=generator)
    regions[:, 1] = -(1 + 1e-3) * regions[:, 0]
    sides = [regions.requires_grad_(), (1e-6 * torch.randn(3, 3, 16, generator=generator)).requires_grad_()]
    options = {"lambda_softmax": 1e-3, "pooling": "avg", "backend": "triton"}
    clean = scan_scores(*sides, **options)[:, [0, 2]]
    expected = torch.autograd.grad(clean.sum(), sides)
    sides[1].data[1, 0] = 1e37
    scores = scan_scores(*sides, **options)
    assert scores[:, 1].isnan().all()
    assert torch.equal(scores[:, [0, 2]], clean)
    for ours, true in zip(torch.autograd.grad(scores[:, [0, 2]].sum(), sides), expected, strict=True):
        assert torch.equal(ours, true)


def test_empty_slots_take_no_attended_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their even weights cancel these regions, as the word's do not; the long way takes long, and for nothing."""
    region = torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(0))
    regions = torch.cat([region, -region], 1)
    monkeypatch.setattr(forward, "attended_vectors", None)
    assert scan_scores(regions, region, backend="triton").isfinite().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the arithmetic that is asked for
@pytest.mark.parametrize(
    ("direction", "dtype", "listed", "value"),  # every two
    [
        ("t2i", torch.float32, False, torch.nan),
        ("i2t", torch.float16, True, torch.nan),
        ("t2i", torch.float16, False, torch.inf),
        ("i2t", torch.float32, True, torch.inf),
        ("t2i", torch.float32, True, 1e30),
        ("i2t", torch.float16, False, 1e30),
    ],
    ids=str,
)
def test_padding_is_never_read(direction: str, dtype: torch.dtype, listed: bool, value: float) -> None:
    """Nor has it a gradient, whatever it holds."""
    pairs = torch.tensor([[0, 2], [3, 0], [1, 3]]) if listed else None
    results = []
    for fill in (0.0, value):
        batch = batch_of(4, 5).to(dtype)
        sides = [batch.regions, batch.words]
        for side, lengths in zip(sides, batch.lengths, strict=True):
            for item, length in zip(side, lengths.tolist(), strict=True):
                item[length:] = fill
            side.requires_grad_()
        scores = scan_scores(*sides, *batch.lengths, direction=direction, normalize=True, pairs=pairs, backend="triton")
        results.append((scores, *torch.autograd.grad(scores.sum(), sides)))
    for clean, ours in zip(*results, strict=True):
        assert torch.equal(clean, ours)


@pytest.mark.parametrize("scale", [1e-20, 1e-22])
@pytest.mark.parametrize("normalize", [False, True])
def test_words_whose_squares_are_out_of_range(normalize: bool, scale: float) -> None:
    batch = batch_of(2, 3, dim=8, longest=(4, 3))
    batch.words[1, 0] *= scale
    results = []
    for dtype, backend in ((torch.float64, "reference"), (torch.float32, "triton")):
        sides = [batch.regions.to(dtype).requires_grad_(), batch.words.to(dtype).requires_grad_()]
        scores = scan_scores(*sides, *batch.lengths, normalize=normalize, backend=backend)
        results.append(torch.autograd.grad(scores.sum(), sides))
    for true, ours in zip(*results, strict=True):
        assert (ours - true).abs().max() <= 1e-5 * true.abs().max()


def test_contexts_whose_products_are_out_of_range_are_no_numbers() -> None:
    """Rather than wrong ones; in their own scores."""
    batch = batch_of(3, 4).to(torch.float32)
    clean = scan_scores(*batch.arguments(), backend="triton")
    batch.regions[1] *= 2e7
    scores = scan_scores(*batch.arguments(), backend="triton")
    assert scores[1].isnan().all()
    assert torch.equal(scores[[0, 2]], clean[[0, 2]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the arithmetic that is asked for
@DIRECTIONS
def test_huge_lambdas(direction: str) -> None:
    """Of items of many rows: a norm along one row leaves logits that only rounding tells apart."""
    batch = batch_of(3, 4).to(torch.float32)
    sides = batch.regions, batch.words
    options = {"direction": direction, "pooling": "lse", "lambda_softmax": 3.4e38, "lambda_lse": 3e38}
    scores = scan_scores(*sides, backend="triton", **options)
    expected = scan_scores(*sides, backend="reference", **options)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    batch.regions[0] *= 1e6  # whose logits, without a norm, float32 cannot hold
    options |= {"raw_feature_norm": "no_norm", "lambda_softmax": 1e35}
    scores = scan_scores(*sides, backend="triton", **options)
    expected = scan_scores(*sides, backend="reference", **options)
    torch.testing.assert_close(scores[1:], expected[1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("listed", [False, True])
@DIRECTIONS
def test_tiles_without_a_gradient_are_left_out(direction: str, listed: bool) -> None:
    """As of most pairs of a hardest-negative loss: what their memory held, here NaN, is not read."""
    pairs = torch.tensor([[0, 3], [2, 0], [0, 1], [4, 6], [2, 3]]) if listed else None
    batch = batch_of(5, 7).to(torch.float32)
    sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
    scores, expected = (
        scan_scores(*sides, *batch.lengths, direction=direction, pairs=pairs, backend=backend)
        for backend in ("triton", "reference")
    )
    chosen = torch.zeros_like(scores)
    chosen[1:5:3] = torch.tensor([0.7, -0.4]) if listed else torch.eye(7)[[2, 6]]
    chosen *= 2.0**-40  # a small gradient is one
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        found = torch.autograd.grad(scores, sides, chosen)
    finally:
        torch.use_deterministic_algorithms(False)
    for ours, true in zip(found, torch.autograd.grad(expected, sides, chosen), strict=True):
        torch.testing.assert_close(ours * 2.0**40, true * 2.0**40, rtol=1e-4, atol=1e-6)


def test_rows_that_listed_items_lack_are_not_multiplied() -> None:
    """Of pairs beside longer ones, what their memory held, here NaN."""
    lengths = torch.tensor([17, 2]), torch.tensor([3, 1])
    batch = replace(batch_of(2, 2, 8, (17, 3)), region_lengths=lengths[0], word_lengths=lengths[1])
    results = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "reference")):
        sides = [batch.regions.to(dtype).requires_grad_(), batch.words.to(dtype).requires_grad_()]
        torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
        try:
            scores = scan_scores(*sides, *lengths, pairs=torch.tensor([[0, 1], [1, 0]]), backend=backend)
            results.append(torch.autograd.grad(scores.sum(), sides))
        finally:
            torch.use_deterministic_algorithms(False)
    for ours, true in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("listed", [False, True])
def test_gradients_of_scores_that_are_views(listed: bool) -> None:
    """Expanded and transposed ones are read where they are."""
    batch = batch_of(3, 4).to(torch.float32)
    pairs = torch.tensor([[0, 1], [2, 3], [1, 1]]) if listed else None
    sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
    scores = scan_scores(*sides, *batch.lengths, pairs=pairs, backend="triton")
    wide = torch.randn(*scores.shape[::-1], 2)[..., 0]
    for grad in (torch.tensor(0.5).expand_as(scores), wide.T if not listed else wide):
        found = torch.autograd.grad(scores, sides, grad, retain_graph=True)
        expected = torch.autograd.grad(scores, sides, grad.contiguous(), retain_graph=True)
        for ours, true in zip(found, expected, strict=True):
            assert torch.equal(ours, true)


@pytest.mark.parametrize("listed", [False, True])
@DIRECTIONS
def test_masks_and_empty_items(direction: str, listed: bool) -> None:
    """Rows that a mask leaves out are never read and have no gradient; items without rows score what is asked for."""
    batch = batch_of(4, 5, longest=(6, 35)).to(torch.float32)
    generator = torch.Generator().manual_seed(2)
    masks = [torch.rand(side.shape[:2], generator=generator) < 0.6 for side in (batch.regions, batch.words)]
    masks[0][1], masks[1][4], masks[1][0] = False, False, True
    pairs = torch.tensor([[0, 4], [1, 2], [3, 0], [0, 3], [3, 0]]) if listed else None
    results = []
    for fill, dtype, backend in ((torch.nan, torch.float32, "triton"), (0.0, torch.float64, "reference")):
        sides = [batch.regions.to(dtype), batch.words.to(dtype)]
        for side, mask in zip(sides, masks, strict=True):
            side[~mask] = fill
            side.requires_grad_()
        scores = scan_scores(
            *sides, region_mask=masks[0], word_mask=masks[1], empty_score=-2.5, pairs=pairs, direction=direction,
            pooling="lse", backend=backend,
        )  # fmt: skip
        weights = torch.arange(1.0, 1 + scores.numel()).view(scores.shape).to(scores)
        results.append((scores, *torch.autograd.grad((scores * weights).sum(), sides)))
    for ours, true in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-5)
    assert (results[0][0] == -2.5).sum() == (2 if listed else 8)


def test_of_equal_relevances_the_first_gets_the_gradient() -> None:
    regions = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]])
    words = torch.tensor([1.0, 0.5]).expand(1, 3, 2).clone().requires_grad_()
    scan_scores(regions, words, raw_feature_norm="no_norm", pooling="max", backend="triton").backward()
    assert words.grad[0, 0].all()
    assert not words.grad[0, 1:].any()


@pytest.mark.parametrize(("empty", "words"), [(0, 2), (1, 17)], ids=["contexts", "queries"])
def test_runs_of_empty_items_alone(empty: int, words: int) -> None:
    """A row that is not there stands for them: what its memory held, here NaN, is not multiplied."""
    batch = batch_of(2 - empty, 1 + empty, 8, (17, words)).to(torch.float32)
    lengths = [torch.full((2 - empty,), 17), torch.full((1 + empty,), words)]
    lengths[empty][0] = 0
    results = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "reference")):
        sides = [batch.regions.to(dtype).requires_grad_(), batch.words.to(dtype).requires_grad_()]
        torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
        try:
            with sizes(CELL_BYTES=1, ROW_BYTES=1):
                scores = scan_scores(*sides, *lengths, empty_score=0.5, backend=backend)
                results.append((scores, *torch.autograd.grad(scores.sum(), sides)))
        finally:
            torch.use_deterministic_algorithms(False)
    for ours, true in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_stays_with_its_pair(others: float) -> None:
    batch = batch_of(3, 4, longest=(5, 4)).to(torch.float32)
    sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
    scores = scan_scores(*sides, *batch.lengths, backend="triton")
    grad = torch.full_like(scores, others)
    grad[0, 2] = torch.nan
    of_regions, of_words = torch.autograd.grad(scores, sides, grad)
    assert of_regions[0, 0].isnan().any()
    assert of_words[2, 0].isnan().any()
    assert of_regions[1:].isfinite().all()
    assert of_words[[0, 1, 3]].isfinite().all()


def test_attended_vectors_that_nearly_cancel() -> None:
    """The kernels must see it and take the long way."""
    batch = nearly_cancelling()
    for norm, scaled in (("no_norm", False), ("clipped", True)):
        expected = Expectation.of(
            scan_scores, batch, torch.float32, raw_feature_norm=norm, lambda_softmax=1.0, normalize=scaled
        )
        expected.check("triton")


@pytest.mark.parametrize("n", [3, 17], ids=["in one block", "in two"])
def test_contexts_that_cancel_together(n: int) -> None:
    """No two of three are nearly opposed; of seventeen all of the first block are alike, which the next one undoes."""
    generator = torch.Generator().manual_seed(3)
    directions = torch.linalg.qr(torch.randn(2, 24, 2, generator=generator, dtype=torch.float64))[0].mT
    sums = directions[:, :1].expand(-1, n - 1, -1)
    if n == 3:
        sums = sums * torch.tensor([[0.5], [0.5]]) + directions[:, 1:] * torch.tensor([[0.8], [-0.8]])
    regions = 0.1 * torch.cat([sums, -1.001 * sums.sum(1, keepdim=True)], 1)
    words = torch.randn(2, 1, 24, generator=generator, dtype=torch.float64)
    batch = Features(regions, words, torch.full((2,), n), torch.ones(2, dtype=torch.int64), None)
    expected = Expectation.of(scan_scores, batch, torch.float32, raw_feature_norm="no_norm", lambda_softmax=1e-3)
    expected.check("triton")


@pytest.mark.parametrize("lambda_softmax", [9.0, 20.0, 21.0, 50.0])
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_one_opposed_word_leaves_every_weight_tiny(scale: float, lambda_softmax: float) -> None:
    generator = torch.Generator().manual_seed(5)
    regions = scale * torch.rand(2, 4, 8, generator=generator, dtype=torch.float64)
    words = -torch.rand(2, 1, 8, generator=generator, dtype=torch.float64)
    batch = Features(regions, words, torch.full((2,), 4), torch.ones(2, dtype=torch.int64), None)
    for norm in ("l2norm", "clipped_l2norm"):
        options = {"raw_feature_norm": norm, "lambda_softmax": lambda_softmax}
        Expectation.of(scan_scores, batch, torch.float32, **options).check("triton")


def test_elements_past_two_to_the_31() -> None:
    """Rows lie 600 million elements apart in memory that is never touched in between."""
    apart = 600_000_000
    values = torch.empty(4 * apart + 8, dtype=torch.float16)
    regions = values.as_strided((5, 1, 8), (apart, apart, 1))
    words = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)).half()
    near = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(1)).half()
    regions.copy_(near)
    for direction in ("t2i", "i2t"):
        scores = scan_scores(regions, words, direction=direction, backend="triton")
        assert torch.equal(scores, scan_scores(near, words, direction=direction, backend="triton"))


def test_twice_the_same_bits() -> None:
    batch = batch_of(5, 7).to(torch.float32)
    results = []
    for _ in range(2):
        sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
        scores = scan_scores(*sides, *batch.lengths, backend="triton")
        scores.square().sum().backward()
        results.append((scores, sides[0].grad, sides[1].grad))
    for once, again in zip(*results, strict=True):
        assert torch.equal(once, again)


@pytest.mark.parametrize("n", [(0, 3), (3, 0), (0, 0)])
def test_no_pairs(n: tuple[int, int]) -> None:
    sides = [torch.randn(count, 2, 4, requires_grad=True) for count in n]
    scores = scan_scores(*sides, backend="triton")
    assert scores.shape == n
    scores.sum().backward()
    assert all(side.grad is not None and not side.grad.any() for side in sides)
    for pairs in (None, torch.tensor([[0, 1], [1, 0], [1, 1]])):
        empty = torch.zeros(2, dtype=torch.int64)
        sides = [torch.randn(2, 3, 4, requires_grad=True) for _ in range(2)]
        scores = scan_scores(*sides, word_lengths=empty, empty_score=0.5, pairs=pairs, backend="triton")
        scores.sum().backward()
        assert (scores == 0.5).all()
        assert all(side.grad is not None and not side.grad.any() for side in sides)
    none = torch.empty(0, 2, dtype=torch.int64)
    assert scan_scores(torch.randn(2, 2, 4), torch.randn(2, 2, 4), pairs=none, backend="triton").shape == (0,)


def test_best_images_of_every_caption() -> None:
    batch = batch_of(9, 4).to(torch.float32)
    values, indices = scan_topk(*batch.arguments(), k=3, backend="triton")
    scores = scan_scores(*batch.arguments(), backend="triton").T
    best = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(indices, best.indices[:, :3])
    torch.testing.assert_close(values, best.values[:, :3], rtol=0, atol=1e-6)


@pytest.mark.parametrize("pairs", [None, torch.tensor([[0, 1], [2, 0]])], ids=["all", "listed"])
def test_registration(pairs: torch.Tensor | None) -> None:
    batch = batch_of(3, 2, dim=8, longest=(4, 3)).to(torch.float32)
    sides = (
        batch.regions.requires_grad_(),
        None,
        batch.region_lengths,
        None,
        batch.words.requires_grad_(),
        None,
        batch.word_lengths,
        None,
    )
    options = (None, "t2i", "clipped_l2norm", 0.1, 9.0, "lse", 6.0, True)
    torch.library.opcheck(OPERATION.default, (*sides, pairs, *options))
    scores = OPERATION(*sides, pairs, *options)
    detached = [side.detach() if isinstance(side, torch.Tensor) else side for side in sides]
    backward = torch.ops.crossret.scan_scores_triton_backward.default
    torch.library.opcheck(backward, (torch.ones_like(scores), *detached, pairs, *options, True, False))


def test_inside_torch_compile() -> None:
    batch = batch_of(3, 2, dim=8, longest=(4, 3)).to(torch.float32)
    score = torch.compile(lambda v, e: scan_scores(v, e, backend="triton") * 2, fullgraph=True, backend="aot_eager")
    sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
    scores = score(*sides)
    expected = scan_scores(*sides, backend="triton") * 2
    assert torch.equal(scores, expected)
    for ours, true in zip(
        torch.autograd.grad(scores.sum(), sides), torch.autograd.grad(expected.sum(), sides), strict=True
    ):
        assert torch.equal(ours, true)
