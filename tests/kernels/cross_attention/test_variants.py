"""Options of later papers against their formulas, pair by pair: CHAN, BFAN, SPARC, both directions; who serves what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    ScanOptions,
    UnsupportedByBackend,
    scan_attend,
    scan_attention,
    scan_contributions,
    scan_factors,
    scan_scores,
    scan_topk,
)
from crossret_kernels.cross_attention import op
from crossret_kernels.two_sides import check_supported
from tests.kernels.strategies import Features
from tests.kernels.tolerance import DEFAULTS, ISAS, Expectation, cpu_isa, well_posed

LENGTHS = torch.tensor([5, 1, 4]), torch.tensor([6, 2, 3, 3])
FLOATS = torch.float32, torch.float64
FOCAL = {"focal": True, "lambda_softmax": 20.0}
SPREAD = {"raw_feature_norm": "minmax"}
SERVED = [*(("cpu", isa) for isa in ISAS), ("torch", None), ("reference", None)]
PROJECTED = {"relevance": "projection", "direction": "i2t", "raw_feature_norm": "no_norm", "lambda_softmax": 2.0}


def sides(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    regions, words = (torch.randn(n, rows, 8, generator=generator).to(dtype) for n, rows in ((3, 5), (4, 6)))
    return regions, words


def of_pairs(score: Callable[[Tensor, Tensor], Tensor], regions: Tensor, words: Tensor) -> Tensor:
    """Scores (3, 4) by a formula of the rows of one image and of one caption."""
    images = [item[:n] for item, n in zip(regions, LENGTHS[0].tolist(), strict=True)]
    captions = [item[:n] for item, n in zip(words, LENGTHS[1].tolist(), strict=True)]
    return torch.stack([torch.stack([score(v, e) for e in captions]) for v in images])


def chan(v: Tensor, e: Tensor) -> Tensor:
    """Visual-semantic assignment: every region codes itself by words, and keeps its length."""
    codes = torch.softmax(2.0 * v @ e.T, 1) @ e
    return torch.stack([region @ code / (code.norm() + 1e-8) for region, code in zip(v, codes, strict=True)]).mean()


def bfan(v: Tensor, e: Tensor) -> Tensor:
    """Words, of which there are several, attend to those regions alone that get more than an equal share."""
    s = torch.nn.functional.leaky_relu(v @ e.T, 0.1)
    n = s / (s.norm(dim=1, keepdim=True) + 1e-8)
    found = []
    for column, word in zip(n.T, e, strict=True):
        shares = torch.softmax(20.0 * column, 0)
        above = len(shares) * shares - shares.sum() > 1e-12
        shares = shares * above if above.any() else shares
        found.append(torch.cosine_similarity((shares / shares.sum()) @ v, word, dim=0))
    return torch.stack(found).mean()


def sparc(v: Tensor, e: Tensor) -> Tensor:
    """Tokens group patches by similarities between 0 and 1, from one share of them on."""
    found = []
    for word in e:
        s = v @ word
        shares = torch.ones_like(s)
        if len(s) > 1:
            shares = (s - s.min()) / (s.max() - s.min())
            shares = shares.where(shares >= 1 / len(s), 0)
        found.append(torch.cosine_similarity((shares / shares.sum()) @ v, word, dim=0))
    return torch.stack(found).mean()


@pytest.mark.parametrize(
    ("formula", "options"), [(chan, PROJECTED), (bfan, FOCAL), (sparc, SPREAD)], ids=["chan", "bfan", "sparc"]
)
def test_scores_and_gradients_are_the_papers(formula: Callable[..., Tensor], options: dict[str, Any]) -> None:
    own, published = ([side.requires_grad_() for side in sides()] for _ in range(2))
    expected = of_pairs(formula, *published)
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = torch.autograd.grad((expected * weights).sum(), published)
    for backend in ("reference", "torch"):
        scores = scan_scores(*own, *LENGTHS, backend=backend, **options)
        torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(torch.autograd.grad((scores * weights).sum(), own), gradients, rtol=1e-6, atol=1e-7)


def test_a_projection_is_the_cosine_times_the_length_of_the_query() -> None:
    regions, words = sides(torch.float32)
    pairs = torch.tensor([[0, 0], [2, 3]])
    for backend in ("cpu", "torch", "reference"):
        cosines, projections = (
            scan_attention(regions, words, *LENGTHS, pairs=pairs, relevance=name, backend=backend).relevances
            for name in ("cosine", "projection")
        )
        torch.testing.assert_close(projections, cosines * words[pairs[:, 1]].norm(dim=-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_focal_weights_that_are_equal_but_for_rounding_stay(isa: str) -> None:
    """Those of no temperature, and of a caption of one word, whose similarities are all 1 once they are normalised."""
    regions, words = (side.abs() for side in sides(torch.float32))
    one = torch.ones(4, dtype=torch.int64)
    for backend in ("cpu", "torch", "reference"):
        for lengths, lambda_softmax in ((LENGTHS[1], 0.0), (one, 20.0)):
            with cpu_isa(isa):
                weights = scan_attention(
                    regions, words, LENGTHS[0], lengths, pairs=torch.tensor([[0, 0], [2, 3]]), focal=True,
                    lambda_softmax=lambda_softmax, backend=backend,
                ).weights  # fmt: skip
            for pair, count in enumerate((5, 4)):
                equal = torch.full((count,), 1 / count)
                torch.testing.assert_close(weights[pair, 0, :count], equal, rtol=1e-3, atol=0)


@pytest.mark.parametrize(("backend", "isa"), SERVED)
def test_weights_of_equal_similarities_are_equal_and_have_no_gradient(backend: str, isa: str | None) -> None:
    """Of contexts that differ across the query alone, of one context, and of a query of zeros."""

    def attend(*lengths: list[int], **own: Any) -> Tensor:
        with cpu_isa(isa):
            pairs = torch.tensor([[0, 0]])
            return scan_attention(regions, words, *lengths, pairs=pairs, backend=backend, **SPREAD, **own).weights

    regions = torch.eye(4)[None, 1:].clone().requires_grad_()
    words = torch.tensor([[[2.0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 2, 3.0]]]).requires_grad_()
    weights, one = attend(), attend([1])
    torch.testing.assert_close(weights[0], torch.tensor([[1 / 3] * 3, [1 / 3] * 3, [0, 1 / 3, 2 / 3]]))
    assert one[0, :, 0].tolist() == [1, 1, 1]
    for loss in (weights[0, :2].square().sum(), one.square().sum()):
        gradients = torch.autograd.grad(loss, (regions, words), retain_graph=True)
        assert not any(gradient.any() for gradient in gradients)
    assert attend(threshold=0.6)[0, 2].tolist() == [0, 0, 1]
    assert attend(threshold=1.0)[0, 2].tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threshold", [None, 0.0, 0.3, 1.0])
def test_minmax_of_kernels(threshold: float | None, dtype: torch.dtype) -> None:
    """Queries fill vectors in part; contexts are one and many; weights focal and not."""
    generator = torch.Generator().manual_seed(8)
    regions, words = (torch.randn(3, rows, 40, generator=generator).to(dtype).double() for rows in (36, 21))
    batch = Features(regions, words, torch.tensor([36, 1, 19]), torch.tensor([21, 1, 6]), None)
    for own in ({"direction": "t2i"}, {"direction": "i2t", "relevance": "projection", "focal": threshold is None}):
        options = {**SPREAD, "threshold": threshold, "pooling": "lse", **own}
        assert well_posed(batch, {**DEFAULTS, **options})
        expected = Expectation.of(scan_scores, batch, dtype, **options)
        expected.check_faults()
        for isa in ISAS:
            expected.check("cpu", isa)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("cpu", torch.float32), *((name, dtype) for name in ("torch", "reference") for dtype in FLOATS)],
    ids=str,
)
def test_a_context_at_the_usual_threshold_stays(backend: str, dtype: torch.dtype) -> None:
    """The second of three is exactly at 1 / 3."""
    regions = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]], dtype=dtype)
    words, pairs = torch.tensor([[[1.0, 0.5]]], dtype=dtype), torch.tensor([[0, 0]])
    made = scan_attention(regions, words, pairs=pairs, raw_feature_norm="minmax", backend=backend)
    assert made.weights.flatten().tolist() == [0, 0.25, 0.75]


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 1.0])
def test_ties_share_the_gradients_of_minmax(threshold: float | None) -> None:
    """Whole numbers, two of them the least, two the greatest, and one at the threshold 0.5; gradients of any result."""
    regions = torch.eye(6)[None, :5].requires_grad_()
    words = torch.tensor([[[-1.0, 3, 1, -1, 3, 1], [2, 2, 0, 1, 0, 0]]]).requires_grad_()
    pairs, weights = torch.tensor([[0, 0]]), torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(0))
    made = []
    for backend, isa in SERVED:
        with cpu_isa(isa):
            result = scan_attend(regions, words, pairs=pairs, backend=backend, threshold=threshold, **SPREAD)
            loss = (result.weights * weights).sum() + (result.attended[..., :5] * weights).sum() + result.scores.sum()
            made.append((result.weights, *torch.autograd.grad(loss, (regions, words))))
    for own in made:
        torch.testing.assert_close(own, made[-1])


@pytest.mark.parametrize(("backend", "isa"), SERVED)
def test_no_number_stays_no_number(backend: str, isa: str | None) -> None:
    """In any place, beside similarities that differ and beside such as agree."""
    for row in range(3):
        for words in (torch.eye(4)[None, :1], torch.ones(1, 1, 4)):
            regions = torch.eye(4)[None, :3].repeat(2, 1, 1)
            regions[1, row, 3] = torch.nan
            with cpu_isa(isa):
                scores = scan_scores(regions, words, backend=backend, **SPREAD)
            assert scores.isnan().flatten().tolist() == [False, True]


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("scale", [2.0**60, 2.0**-60])
def test_minmax_of_any_size(scale: float, backend: str) -> None:
    regions, words = sides(torch.float32)
    call: dict[str, Any] = {"pairs": torch.tensor([[0, 0], [2, 3]]), "backend": backend, **SPREAD}
    plain, scaled = (scan_attention(regions * x, words * x, *LENGTHS, **call).weights for x in (1.0, scale))
    torch.testing.assert_close(scaled, plain)


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("listed", [False, True])
def test_both_directions_are_the_mean(listed: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "one_product_serves", lambda _: True)
    regions, words = (side.requires_grad_() for side in sides(torch.float32))
    lengths = torch.tensor([5, 0, 4]), LENGTHS[1]
    call: dict[str, Any] = {"backend": backend, "empty_score": -3.4e38, "pooling": "lse", "focal": True}
    if listed:
        call["candidates"] = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2]])
    made = []
    for options in ({"direction": "both", "lambda_softmax": (9.0, 4.0)}, None):
        if options:
            scores = scan_scores(regions, words, *lengths, **call, **options)
        else:
            ways = (("t2i", 9.0), ("i2t", 4.0))
            each = [
                scan_scores(
                    regions,
                    words,
                    *lengths,
                    direction=way,
                    lambda_softmax=x,
                    **{"query": "caption", **call} if listed else call,
                )
                for way, x in ways
            ]
            scores = each[0] / 2 + each[1] / 2
        made.append((scores, *torch.autograd.grad(scores.sum(), (regions, words))))
    torch.testing.assert_close(*made)
    assert (made[0][0] == -3.4e38).sum() == (2 if listed else 4)


@pytest.mark.parametrize(
    ("n_images", "n_captions", "dim", "count", "layout", "together"),
    [
        (7, 20, 40, None, "padded", True),
        (7, 20, 40, None, "packed", True),
        (7, 20, 40, None, "listed", True),
        (7, 20, 40, 140, "padded", True),
        (7, 20, 40, 14, "padded", False),  # two captions of each image: their 10 words are fewer than its 36 regions
        (1, 20, 40, None, "padded", True),
        (20, 1, 40, None, "padded", False),
        (7, 20, 35, None, "padded", False),  # regions are more than D
        (7, 0, 40, None, "padded", False),
    ],
)
def test_one_product_where_factors_pay(
    n_images: int, n_captions: int, dim: int, count: int | None, layout: str, together: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Either way the scores are the same."""
    generator = torch.Generator().manual_seed(0)
    given: list[Any] = []
    for n, rows in ((n_images, 36), (n_captions, 5)):
        values = torch.randn(n, rows, dim, generator=generator)
        packed = values.flatten(0, 1), torch.arange(n + 1) * rows
        given.append({"padded": values, "packed": packed, "listed": list(values)}[layout])
    pairs = None if count is None else torch.cartesian_prod(torch.arange(n_images), torch.arange(n_captions))[:count]
    calls: list[str] = []

    def counted(run: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
        return lambda *arguments: calls.append(name) or run(*arguments)

    for name in ("BOTH_WAYS", "LISTED_BOTH_WAYS"):
        monkeypatch.setattr(op, name, counted(getattr(op, name), name))
    options: dict[str, Any] = {"direction": "both", "lambda_softmax": (9.0, 4.0), "pairs": pairs}
    found, expected = (scan_scores(*given, backend=backend, **options) for backend in ("cpu", "torch"))
    torch.testing.assert_close(found, expected)
    assert calls == (["LISTED_BOTH_WAYS" if layout == "listed" else "BOTH_WAYS"] if together else [])
    monkeypatch.setattr(op, "MOST_FACTORS", 0)
    torch.testing.assert_close(scan_scores(*given, backend="cpu", **options), expected)
    assert len(calls) == together


def test_the_best_by_both_directions() -> None:
    batch = sides(torch.float32)
    options = ScanOptions(direction="both", lambda_softmax=(9.0, 4.0))
    values, indices = scan_topk(*batch, *LENGTHS, k=2, options=options)
    best = scan_scores(*batch, *LENGTHS, options=options).T.sort(dim=1, descending=True)
    assert torch.equal(indices, best.indices[:, :2])
    torch.testing.assert_close(values, best.values[:, :2])


@pytest.mark.parametrize("function", [scan_attend, scan_attention, scan_contributions])
def test_attention_has_one_direction(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=f"direction of {function.__name__} must be one of t2i, i2t, not 'both'"):
        function(*sides(), pairs=torch.tensor([[0, 0]]), direction="both")


def test_factors_have_one_direction() -> None:
    regions, words = sides(torch.float32)
    factors = scan_factors(regions)
    for call in (lambda **own: scan_scores(regions, words, **own), lambda **own: scan_topk(regions, words, k=1, **own)):
        with pytest.raises(ValueError, match="direction beside factors must be one of t2i, i2t, not 'both'"):
            call(factors=factors, direction="both")


@pytest.mark.parametrize(
    ("options", "told"),
    [(SPREAD, "raw_feature_norm='minmax'"), (FOCAL, "focal=True"), (PROJECTED, "relevance='projection'")],
)
def test_kernels_that_do_not_serve_an_option_say_so(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UnsupportedByBackend, match=f"backend 'cuda' has no kernels of {told}: backend='torch' serves"):
        check_supported("cuda", ScanOptions(**options))


@pytest.mark.parametrize("options", [SPREAD, FOCAL, {"direction": "both"}], ids=str)
def test_inside_torch_compile(options: dict[str, Any]) -> None:
    torch.compiler.reset()
    batch = sides(torch.float32)
    score = torch.compile(lambda *given: scan_scores(*given, **options), fullgraph=True, backend="eager")
    torch.testing.assert_close(score(*batch), scan_scores(*batch, **options))
