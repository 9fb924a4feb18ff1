"""Pairs, candidates and options of the scores: what they select, and how bad ones are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    gated_attention_scores,
    gated_attention_weights,
    heterogeneous_attention_weights,
    heterogeneous_scores,
    maxsim_argmax,
    maxsim_scores,
    maxsim_topk,
    pairwise_scores,
    scan_attention,
    scan_scores,
    scan_topk,
)
from tests.kernels.gated import gated_parameters
from tests.kernels.heterogeneous import make_layers

FUNCTIONS = (scan_scores, maxsim_scores)
BACKENDS = ("cpu", "torch", "reference")
N_IMAGES, N_CAPTIONS = 3, 4
REGION_LENGTHS, WORD_LENGTHS = [5, 1, 4], [6, 3, 1, 2]
GENERATOR = torch.Generator().manual_seed(0)
REGIONS, WORDS = torch.randn(N_IMAGES, 5, 16, generator=GENERATOR), torch.randn(N_CAPTIONS, 6, 16, generator=GENERATOR)
PAIRS = torch.tensor([[2, 1], [0, 0], [0, 0], [1, 3], [2, 1], [0, 2]])

functions = pytest.mark.parametrize("function", FUNCTIONS)
backends = pytest.mark.parametrize("backend", BACKENDS)
directions = pytest.mark.parametrize("direction", ["t2i", "i2t"])


def run(function: Callable[..., Tensor], weight: Callable[[Tensor], Tensor], **options: Any) -> tuple[Tensor, ...]:
    """Scores, and the gradients of regions and words under weighted scores."""
    dtype = torch.float32 if options["backend"] == "cpu" else torch.float64
    regions, words = (side.to(dtype, copy=True).requires_grad_() for side in (REGIONS, WORDS))
    scores = function(regions, words, REGION_LENGTHS, WORD_LENGTHS, **options)
    return scores, *torch.autograd.grad(weight(scores), (regions, words))


def assert_same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    """Equal but for rounding."""
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e3 * torch.finfo(a.dtype).eps * b.abs().max().item())


@functions
@backends
@directions
def test_pairs_are_entries_of_the_matrix(function: Callable[..., Tensor], backend: str, direction: str) -> None:
    weights = torch.arange(1.0, 7.0)
    options = {"direction": direction, "backend": backend}
    ours = run(function, lambda s: (s * weights).sum(), pairs=PAIRS, **options)
    matrix, *gradients = run(function, lambda s: (s[PAIRS[:, 0], PAIRS[:, 1]] * weights).sum(), **options)
    assert_same(ours, (matrix[PAIRS[:, 0], PAIRS[:, 1]], *gradients))


@functions
@backends
@directions
def test_candidates_are_entries_of_the_matrix(function: Callable[..., Tensor], backend: str, direction: str) -> None:
    candidates = torch.tensor([[2, 0, 2, 1], [0, 1, 1, 2], [1, 0, 2, 0], [2, 2, 2, 2]])
    if direction == "i2t":
        candidates = torch.tensor([[3, 0], [1, 1], [2, 3]])
    weights = torch.arange(1.0, 1.0 + candidates.numel()).view(candidates.shape)

    def entries(matrix: Tensor) -> Tensor:
        return matrix.T.gather(1, candidates) if direction == "t2i" else matrix.gather(1, candidates)

    options = {"direction": direction, "backend": backend}
    ours = run(function, lambda s: (s * weights).sum(), candidates=candidates, **options)
    matrix, *gradients = run(function, lambda s: (entries(s) * weights).sum(), **options)
    assert_same(ours, (entries(matrix), *gradients))


@functions
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_indices_of_every_integer_type(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    assert torch.equal(function(REGIONS, WORDS, pairs=PAIRS.to(dtype)), function(REGIONS, WORDS, pairs=PAIRS))
    candidates = torch.tensor([[0, 1], [2, 1], [1, 1], [2, 0]])
    assert torch.equal(
        function(REGIONS, WORDS, candidates=candidates.to(dtype)), function(REGIONS, WORDS, candidates=candidates)
    )


@functions
@pytest.mark.parametrize("name", ["pairs", "candidates"])
def test_bad_narrow_indices_are_named_among_more_items_than_they_count(
    function: Callable[..., Tensor], name: str
) -> None:
    regions = REGIONS[:1].expand(1000, 5, 16)
    indices = torch.tensor([[5, 1], [5, 1], [5, 1], [-1, 0]], dtype=torch.int8)
    place = "[3]" if name == "pairs" else "[3][0]"
    with pytest.raises(ValueError, match=re.escape(f"{name}{place} names image -1, but there are 1000 images")):
        function(regions, WORDS, **{name: indices})


@functions
@backends
def test_indices_of_any_strides(function: Callable[..., Tensor], backend: str) -> None:
    wide = torch.cat([PAIRS, PAIRS.flip(1)], 1)
    for view in (wide[:, :2], wide[::2, :2], PAIRS.T.contiguous().T, PAIRS[:1].expand(5, 2)):
        scores = function(REGIONS, WORDS, pairs=view, backend=backend)
        assert torch.equal(scores, function(REGIONS, WORDS, pairs=view.contiguous(), backend=backend))
    candidates = torch.tensor([[0, 1, 2]]).expand(N_CAPTIONS, 3)
    scores = function(REGIONS, WORDS, candidates=candidates, backend=backend)
    assert torch.equal(scores, function(REGIONS, WORDS, candidates=candidates.contiguous(), backend=backend))


@pytest.fixture
def seven_pairs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossret_kernels.inputs.pairs.PAIRS_AT_ONCE", 7)


def many_candidates(direction: str, width: int, dtype: torch.dtype) -> Tensor:
    queries, others = (N_CAPTIONS, N_IMAGES) if direction == "t2i" else (N_IMAGES, N_CAPTIONS)
    return torch.randint(others, (width, queries), generator=torch.Generator().manual_seed(width), dtype=dtype).T


def packed(side: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    rows = torch.cat([item[:length] for item, length in zip(side, lengths, strict=True)])
    return rows, torch.tensor([0, *lengths]).cumsum(0)


LAID_OUT = {
    "padded": (REGIONS, WORDS, REGION_LENGTHS, WORD_LENGTHS),
    "packed": (packed(REGIONS, REGION_LENGTHS), packed(WORDS, WORD_LENGTHS)),
}


@pytest.mark.usefixtures("seven_pairs_at_once")
@functions
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("width", [3, 7, 16])
def test_slices_are_the_list(
    function: Callable[..., Any], direction: str, layout: str, dtype: torch.dtype, width: int
) -> None:
    """Slices of some rows, of one, and of parts of one give what the list does, and so with argmax.

    Sum-Max to the last bit; attention to rounding, as few queries are attended for in another form.
    """
    candidates = many_candidates(direction, width, dtype)
    own = torch.arange(len(candidates))[:, None].expand_as(candidates)
    pairs = torch.stack((candidates.long(), own) if direction == "t2i" else (own, candidates.long()), 2).view(-1, 2)
    variants: tuple[Callable[..., Any], ...] = (
        (lambda *sides, **options: (function(*sides, **options),), maxsim_argmax)
    )[: 1 + (function is maxsim_scores)]
    for made in variants:
        expected = made(*LAID_OUT[layout], pairs=pairs, direction=direction)
        for selection in ({"candidates": candidates}, {"pairs": pairs.to(dtype)}):
            ours = made(*LAID_OUT[layout], direction=direction, **selection)
            for one, other in zip(ours, expected, strict=True):
                assert one.dtype == other.dtype
                shape = (*candidates.shape, *other.shape[1:]) if "candidates" in selection else other.shape
                if function is maxsim_scores:
                    assert torch.equal(one, other.view(shape))
                torch.testing.assert_close(one, other.view(shape), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("seven_pairs_at_once")
@functions
@pytest.mark.parametrize("way", ["no_grad", "backward", "func"])
def test_gradients_go_through_many_candidates(function: Callable[..., Tensor], way: str) -> None:
    candidates = many_candidates("t2i", 9, torch.int32)
    regions = REGIONS.clone().requires_grad_()
    own = torch.arange(N_CAPTIONS)[:, None].expand_as(candidates)
    expected = function(regions, WORDS, REGION_LENGTHS, WORD_LENGTHS)[candidates.long(), own]
    (gradient,) = torch.autograd.grad(expected.square().sum(), regions)

    def scores(v: Tensor) -> Tensor:
        return function(v, WORDS, REGION_LENGTHS, WORD_LENGTHS, candidates=candidates)

    if way == "no_grad":
        with torch.no_grad():
            ours = scores(regions)
        assert not ours.requires_grad
        assert torch.equal(ours, expected)
    elif way == "backward":
        torch.testing.assert_close(torch.autograd.grad(scores(regions).square().sum(), regions)[0], gradient)
    else:
        ours = torch.func.grad(lambda v: scores(v).square().sum())(REGIONS)
        torch.testing.assert_close(ours, gradient)


@functions
@backends
@pytest.mark.parametrize(
    ("selection", "shape"),
    [
        ({"pairs": torch.zeros(0, 2, dtype=torch.int64)}, (0,)),
        ({"candidates": torch.zeros(N_CAPTIONS, 0, dtype=torch.int64)}, (N_CAPTIONS, 0)),
    ],
    ids=["pairs", "candidates"],
)
def test_no_pairs_have_no_scores(
    function: Callable[..., Tensor], backend: str, selection: dict[str, Tensor], shape: tuple[int, ...]
) -> None:
    scores, *gradients = run(function, Tensor.sum, backend=backend, **selection)
    assert scores.shape == shape
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


@functions
@backends
def test_no_images_have_no_candidates(function: Callable[..., Tensor], backend: str) -> None:
    candidates = torch.zeros(0, 2, dtype=torch.int64)
    scores = function(REGIONS[:0], WORDS, direction="i2t", candidates=candidates, backend=backend)
    assert scores.shape == (0, 2)


CONTEXTS = {
    side: torch.randn(n, 2, 16, generator=GENERATOR) for side, n in (("region", N_IMAGES), ("word", N_CAPTIONS))
}
GATED: dict[str, Any] = {
    "region_contexts": CONTEXTS["region"], "word_contexts": CONTEXTS["word"],
    "parameters": gated_parameters(16, 16, 7, 5, 4, GENERATOR),
}  # fmt: skip
LAYERED = {"layers": make_layers(1, 16), "heads": 2}
OF_CANDIDATES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "scan t2i": (scan_scores, {"direction": "t2i"}),
    "scan i2t": (scan_scores, {"direction": "i2t"}),
    "scan i2t torch": (scan_scores, {"direction": "i2t", "backend": "torch"}),
    "maxsim t2i": (maxsim_scores, {"direction": "t2i"}),
    "maxsim i2t": (maxsim_scores, {"direction": "i2t"}),
    "scan attention t2i": (scan_attention, {"direction": "t2i"}),
    "scan attention i2t": (scan_attention, {"direction": "i2t"}),
    "argmax t2i": (maxsim_argmax, {"direction": "t2i"}),
    "argmax i2t": (maxsim_argmax, {"direction": "i2t"}),
    "gated": (gated_attention_scores, GATED),
    "gated weights": (gated_attention_weights, GATED),
    "layers t2i": (heterogeneous_scores, LAYERED),
    "layers i2t": (heterogeneous_scores, {**LAYERED, "direction": "i2t"}),
    "layers' weights": (heterogeneous_attention_weights, LAYERED),
    "no layers": (heterogeneous_scores, {"layers": (), "direction": "i2t"}),
    "no layers' weights": (heterogeneous_attention_weights, {"layers": ()}),
    "pairwise": (pairwise_scores, {"scorer": lambda v, _v, e, _e: v.sum((1, 2)) - e.square().sum((1, 2))}),
}


@pytest.mark.usefixtures("seven_pairs_at_once")
@pytest.mark.parametrize("name", OF_CANDIDATES)
@pytest.mark.parametrize("query", ["caption", "image", None])
def test_candidates_are_those_of_the_query(name: str, query: str | None) -> None:
    """Whatever side attends: without a query the attending one's, or the caption's where none does."""
    function, options = OF_CANDIDATES[name]
    of = query or ("image" if options.get("direction") == "i2t" else "caption")
    count, others = (N_CAPTIONS, N_IMAGES) if of == "caption" else (N_IMAGES, N_CAPTIONS)
    candidates = torch.arange(count * 5).view(count, 5) * 7 % 11 % others
    own = torch.arange(count)[:, None].expand_as(candidates)
    pairs = torch.stack((candidates, own) if of == "caption" else (own, candidates), 2).view(-1, 2)
    sides: tuple[Any, ...] = (REGIONS, WORDS)
    lengths = {"region_lengths": REGION_LENGTHS, "word_lengths": WORD_LENGTHS}
    ours = function(*sides, **lengths, **options, candidates=candidates, query=query)
    expected = function(*sides, **lengths, **options, pairs=pairs)
    results = zip(*[made if isinstance(made, tuple) else (made,) for made in (ours, expected)], strict=True)
    for one, other in results:
        torch.testing.assert_close(one, other.view(*candidates.shape, *other.shape[1:]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", OF_CANDIDATES)
def test_a_query_of_no_candidates_is_refused(name: str) -> None:
    function, options = OF_CANDIDATES[name]
    candidates = torch.zeros(N_CAPTIONS, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="query goes with candidates"):
        function(REGIONS, WORDS, **options, pairs=PAIRS, query="caption")
    with pytest.raises(ValueError, match="query must be one of caption, image, not 'captions'"):
        function(REGIONS, WORDS, **options, candidates=candidates, query="captions")
    with pytest.raises(ValueError, match=re.escape("candidates must have shape (3, K), a row for each image")):
        function(REGIONS, WORDS, **options, candidates=candidates, query="image")


@functions
@directions
@pytest.mark.parametrize("query", ["caption", "image"])
def test_a_retrieval_is_rescored_as_it_is(function: Callable[..., Tensor], direction: str, query: str) -> None:
    search = scan_topk if function is scan_scores else maxsim_topk
    options: dict[str, Any] = {"direction": direction, "query": query}
    values, indices = search(REGIONS, WORDS, REGION_LENGTHS, WORD_LENGTHS, k=2, **options)
    scores = function(REGIONS, WORDS, REGION_LENGTHS, WORD_LENGTHS, candidates=indices, **options)
    torch.testing.assert_close(scores, values)


Case = tuple[str, dict[str, Any], type[Exception], str]

SELECTION_ERRORS: tuple[Case, ...] = (
    ("list", {"pairs": [[0, 0]]}, TypeError, "pairs must be an integer tensor, not list"),
    ("masked", {"pairs": np.ma.masked_array([[0, 0]], [[0, 1]])}, TypeError,
     "pairs must be an array without a mask, not a MaskedArray"),
    ("candidates masked", {"candidates": np.ma.masked_array([[0], [0], [0], [0]])}, TypeError,
     "candidates must be an array without a mask, not a MaskedArray"),
    ("floats", {"pairs": torch.zeros(1, 2)}, TypeError, "pairs must be integers, not torch.float32"),
    ("booleans", {"pairs": torch.tensor([[True, False]])}, TypeError, "pairs must be integers, not torch.bool"),
    ("flat", {"pairs": torch.tensor([0, 0])}, ValueError, "pairs must have shape (P, 2), got (2,)"),
    ("triples", {"pairs": torch.zeros(4, 3).long()}, ValueError, "pairs must have shape (P, 2), got (4, 3)"),
    ("image", {"pairs": torch.tensor([[0, 0], [3, 0]])}, ValueError, "pairs[1] names image 3, but there are 3 images"),
    ("caption", {"pairs": torch.tensor([[0, 4]])}, ValueError, "pairs[0] names caption 4, but there are 4 captions"),
    ("negative", {"pairs": torch.tensor([[0, 0], [0, -1]])}, ValueError, "pairs[1] names caption -1"),
    ("meta", {"pairs": torch.zeros(1, 2, device="meta").long()}, ValueError, "pairs is on the meta device"),
    ("sparse", {"pairs": torch.ones(1, 2).long().to_sparse()}, TypeError, "pairs must be a dense tensor"),
    ("both", {"pairs": PAIRS, "candidates": PAIRS}, ValueError, "pairs and candidates exclude each other"),
    ("candidates list", {"candidates": [[0]]}, TypeError, "candidates must be an integer tensor, not list"),
    ("candidates floats", {"candidates": torch.zeros(4, 2)}, TypeError, "candidates must be integers"),
    ("candidates flat", {"candidates": torch.zeros(4).long()}, ValueError, "candidates must have shape (4, K)"),
    ("rows", {"candidates": torch.zeros(3, 2).long()}, ValueError, "candidates must have shape (4, K)"),
    ("i2t rows", {"candidates": torch.zeros(4, 2).long(), "direction": "i2t"}, ValueError, "must have shape (3, K)"),
    ("entry", {"candidates": torch.tensor([[0, 1], [1, 2], [2, 3], [0, 0]])}, ValueError,
     "candidates[2][1] names image 3, but there are 3 images"),
    ("i2t entry", {"candidates": torch.tensor([[0, 1], [-1, 2], [2, 3]]), "direction": "i2t"}, ValueError,
     "candidates[1][0] names caption -1, but there are 4 captions"),
    ("candidates meta", {"candidates": torch.zeros(4, 2, device="meta").long()}, ValueError, "candidates is on"),
)  # fmt: skip

OPTION_ERRORS: tuple[Case, ...] = (
    ("direction", {"direction": "i2i"}, ValueError, "direction must be one of t2i, i2t, not 'i2i'"),
    ("pooling", {"pooling": "mean"}, ValueError, "pooling must be one of "),
    ("no pooling", {"pooling": None}, ValueError, "not None"),
    ("normalize", {"normalize": 1}, TypeError, "normalize must be True or False, not 1"),
    ("normalize by name", {"normalize": "no"}, TypeError, "normalize must be True or False, not 'no'"),
    (
        "backend",
        {"backend": "gpu"},
        ValueError,
        "backend must be one of cpu, triton, cuda, torch, reference, not 'gpu'",
    ),
)

SCAN_ERRORS: tuple[Case, ...] = (
    ("norm", {"raw_feature_norm": "l2"}, ValueError, "raw_feature_norm must be one of softmax, l2norm, clipped_l2norm"),
    *(
        (f"{name} {kind}", {name: value}, error, f"{name} must be {message}")
        for name in ("clip_slope", "lambda_softmax", "lambda_lse")
        for kind, value, error, message in (
            ("nan", float("nan"), ValueError, "a finite number in float32, not nan"),
            ("infinite", float("-inf"), ValueError, "a finite number in float32, not -inf"),
            ("beyond float32", 1e39, ValueError, "a finite number in float32, not 1e+39"),
            ("huge", 10**400, ValueError, "a finite number in float32"),
            ("text", "9", TypeError, "a number, not str"),
            ("nothing", None, TypeError, "a number, not NoneType"),
            ("flag", True, TypeError, "a number, not bool"),
            ("learnt", torch.tensor(9.0, requires_grad=True), TypeError, "a number, not Tensor"),
        )
    ),
    *(
        (
            f"lambda_lse {value}",
            {"lambda_lse": value},
            ValueError,
            f"lambda_lse must be above 0 in float32, not {value}",
        )
        for value in (0, -1.0, 1e-46)
    ),
)


def cases(*tables: tuple[Case, ...]) -> list[Any]:
    return [pytest.param(*case[1:], id=case[0]) for table in tables for case in table]


@functions
@pytest.mark.parametrize(("options", "error", "message"), cases(SELECTION_ERRORS, OPTION_ERRORS))
def test_bad_selections_and_options_are_named(
    function: Callable[..., Tensor], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        function(REGIONS, WORDS, **options)


@pytest.mark.parametrize(("options", "error", "message"), cases(SCAN_ERRORS))
@backends
def test_bad_numbers_are_named(backend: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        scan_scores(REGIONS, WORDS, backend=backend, **options)


@functions
def test_checks_that_ran_once_tell_flags_from_their_equals(function: Callable[..., Tensor]) -> None:
    function(REGIONS, WORDS, normalize=True)
    with pytest.raises(TypeError, match="normalize must be True or False, not 1"):
        function(REGIONS, WORDS, normalize=1)


@pytest.mark.parametrize("number", [Fraction(1, 2), 10**20], ids=["fraction", "beyond 64 bits"])
@pytest.mark.parametrize("name", ["clip_slope", "lambda_softmax", "lambda_lse", "empty_score"])
@backends
def test_numbers_are_what_their_floats_are(backend: str, name: str, number: Any) -> None:
    options = {"pooling": "lse", "region_lengths": [5, 0, 5], "empty_score": 0.0, "backend": backend}
    ours, theirs = (scan_scores(REGIONS, WORDS, **{**options, name: value}) for value in (number, float(number)))
    assert torch.equal(ours, theirs)


def test_sum_max_has_no_lse() -> None:
    with pytest.raises(ValueError, match="pooling must be one of sum, avg, max, not 'lse'"):
        maxsim_scores(REGIONS, WORDS, pooling="lse")
