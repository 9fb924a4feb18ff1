"""Pairs, candidates and options of the scores: what they select, and how bad ones are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
    pairwise_scores,
    scan_attend,
    scan_attend_scores,
    scan_attention,
    scan_scores,
)
from tests.kernels.gated_attention.batches import gated_parameters
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.told import told

FUNCTIONS = (scan_scores, maxsim_scores)
BACKENDS = ("cpu", "torch", "reference")
N_IMAGES, N_CAPTIONS = 3, 4
REGION_LENGTHS, WORD_LENGTHS = [5, 1, 4], [6, 3, 1, 2]
GENERATOR = torch.Generator().manual_seed(0)
REGIONS, WORDS = torch.randn(N_IMAGES, 5, 16, generator=GENERATOR), torch.randn(N_CAPTIONS, 6, 16, generator=GENERATOR)
PAIRS = torch.tensor([[2, 1], [0, 0], [0, 0], [1, 3], [2, 1], [0, 2]])

functions = pytest.mark.parametrize("function", FUNCTIONS)
backends = pytest.mark.parametrize("backend", BACKENDS)


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
    "scan attend t2i": (scan_attend, {"direction": "t2i"}),
    "scan attend scores i2t": (
        scan_attend_scores,
        {"direction": "i2t", "scorer": lambda made, q, _m, _p: (made.attended * q).sum((1, 2))},
    ),
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
@pytest.mark.parametrize(("query", "width"), [("caption", 5), ("image", 130), (None, 3)])
def test_candidates_are_those_of_the_query(name: str, query: str | None, width: int) -> None:
    """Whatever side attends: without a query the attending one's, or the caption's where none does.

    In slices of some rows and of parts of one, where there are many or their integers are narrow.
    """
    function, options = OF_CANDIDATES[name]
    of = query or ("image" if options.get("direction") == "i2t" else "caption")
    count, others = (N_CAPTIONS, N_IMAGES) if of == "caption" else (N_IMAGES, N_CAPTIONS)
    candidates = torch.arange(count * width).view(count, width) * 7 % 11 % others
    own = torch.arange(count)[:, None].expand_as(candidates)
    pairs = torch.stack((candidates, own) if of == "caption" else (own, candidates), 2).view(-1, 2)
    sides: tuple[Any, ...] = (REGIONS, WORDS)
    lengths = {"region_lengths": REGION_LENGTHS, "word_lengths": WORD_LENGTHS}
    ours = function(*sides, **lengths, **options, candidates=candidates, query=query)
    expected = function(*sides, **lengths, **options, pairs=pairs)
    narrow = function(*sides, **lengths, **options, pairs=pairs.to(torch.uint8))
    results = [made if isinstance(made, tuple) else (made,) for made in (ours, narrow, expected)]
    for one, listed, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other.view(*candidates.shape, *other.shape[1:]), rtol=0, atol=1e-5)
        torch.testing.assert_close(listed, other, rtol=0, atol=1e-5)


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


Case = tuple[str, dict[str, Any], type[Exception], str]

SELECTION_ERRORS: tuple[Case, ...] = (
    ("list", {"pairs": [[0, 0]]}, TypeError, "pairs must be an integer tensor, not list"),
    ("masked", {"pairs": np.ma.masked_array([[0, 0]], [[0, 1]])}, TypeError,
     "pairs must be an array without a mask, not a MaskedArray"),
    ("floats", {"pairs": torch.zeros(1, 2)}, TypeError, "pairs must be integers, not torch.float32"),
    ("flat", {"pairs": torch.tensor([0, 0])}, ValueError, "pairs must have shape (P, 2), got (2,)"),
    ("image", {"pairs": torch.tensor([[0, 0], [3, 0]])}, ValueError, "pairs[1] names image 3, but there are 3 images"),
    ("caption", {"pairs": torch.tensor([[0, 4]])}, ValueError, "pairs[0] names caption 4, but there are 4 captions"),
    ("both", {"pairs": PAIRS, "candidates": PAIRS}, ValueError, "pairs and candidates exclude each other"),
    ("rows", {"candidates": torch.zeros(3, 2).long()}, ValueError, "candidates must have shape (4, K)"),
    ("i2t rows", {"candidates": torch.zeros(4, 2).long(), "direction": "i2t"}, ValueError, "must have shape (3, K)"),
    ("entry", {"candidates": torch.tensor([[0, 1], [1, 2], [2, 3], [0, 0]])}, ValueError,
     "candidates[2][1] names image 3, but there are 3 images"),
    ("i2t entry", {"candidates": torch.tensor([[0, 1], [-1, 2], [2, 3]]), "direction": "i2t"}, ValueError,
     "candidates[1][0] names caption -1, but there are 4 captions"),
)  # fmt: skip

SCAN_ERRORS: tuple[Case, ...] = (
    ("norm", {"raw_feature_norm": "l2"}, ValueError, "raw_feature_norm must be one of softmax, l2norm, clipped_l2norm"),
    *(
        (f"{name} {kind}", {name: value}, error, f"{name} must be {message}")
        for name in ("clip_slope", "lambda_softmax", "lambda_lse")
        for kind, value, error, message in (
            ("nan", float("nan"), ValueError, "a finite number in float32, not nan"),
            ("beyond float32", 1e39, ValueError, "a finite number in float32, not 1e+39"),
            ("text", "9", TypeError, "a number, not str"),
            ("flag", True, TypeError, "a number, not bool"),
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
    *(
        (
            f"lambda_softmax {value}",
            {"lambda_softmax": value, "direction": direction},
            ValueError,
            "lambda_softmax is a number, or of direction 'both' a pair (t2i, i2t), not ",
        )
        for value, direction in (((9.0, 4.0), "t2i"), ((9.0,), "both"), ((9.0, 4.0, 1.0), "both"))
    ),
    (
        "pair of text",
        {"lambda_softmax": (9.0, "4"), "direction": "both"},
        TypeError,
        "lambda_softmax must be a number, not str",
    ),
    ("threshold", {"threshold": 1.5}, ValueError, "threshold must be in [0, 1] or None, not 1.5"),
    ("threshold alone", {"threshold": 0.5}, ValueError, "threshold is for raw_feature_norm='minmax' alone"),
    ("threshold text", {"threshold": "1"}, TypeError, "threshold must be a number, not str"),
    ("relevance", {"relevance": "dot"}, ValueError, "relevance must be one of cosine, projection, not 'dot'"),
    ("focal", {"focal": 1}, TypeError, "focal must be True or False, not 1"),
)


def named(*tables: tuple[Case, ...]) -> dict[str, Sequence[Any]]:
    return {name: case for table in tables for name, *case in table}


test_bad_selections_and_options_are_named = told(
    lambda function, options: function(REGIONS, WORDS, **options), named(SELECTION_ERRORS), *FUNCTIONS
)
# Ahead of any backend.
test_bad_numbers_are_named = told(lambda options: scan_scores(REGIONS, WORDS, **options), named(SCAN_ERRORS))


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


MAXSIM_ERRORS: tuple[Case, ...] = (
    ("clip", {"clip_slope": -0.1}, ValueError, "clip_slope must be at least 0, not -0.1"),
    ("lambda", {"lambda_lse": 0}, ValueError, "lambda_lse must be above 0 in float32, not 0.0"),
    ("temperature", {"temperature": "1"}, TypeError, "temperature must be a number, not str"),
    ("top", {"pooling": "topk", "top": 2.0}, TypeError, "top must be an integer, not float"),
    ("no top", {"pooling": "topk"}, ValueError, "top must be at least 1 with pooling='topk'"),
    ("top alone", {"top": 3}, ValueError, "and is for it alone, not 3"),
    ("contexts", {"context_pooling": "sum"}, ValueError, "context_pooling must be one of max, lse, not 'sum'"),
    ("shape", {"word_weights": torch.ones(4, 2)}, ValueError, "word_weights must have shape "),
    ("integers", {"word_weights": torch.ones(4, 2).long()}, TypeError, "word_weights must be floating-point numbers"),
    ("side", {"region_weights": torch.ones(3, 2)}, ValueError,
     "region_weights weigh maxima that this direction does not take: word_weights do"),
)  # fmt: skip
test_bad_options_of_sum_max_are_named = told(
    lambda options: maxsim_scores(REGIONS, WORDS, **options), named(MAXSIM_ERRORS)
)


def test_places_are_of_one_direction_and_of_maxima() -> None:
    for option, message in (("direction", "direction must be one of t2i, i2t, not 'both'"), ("context_pooling", "max")):
        value = "both" if option == "direction" else "lse"
        with pytest.raises(ValueError, match=message):
            maxsim_argmax(REGIONS, WORDS, **{option: value})
