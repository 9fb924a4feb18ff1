"""`empty_score`: what pairs with an item of no rows score, in every layout, without a gradient to anything."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_argmax, maxsim_scores, maxsim_topk, scan_attention, scan_scores, scan_topk
from tests.kernels.test_masks import DIM, DTYPES, OTHERS

LENGTHS = ([3, 0, 5, 1, 0], [0, 4, 2])
PAIRS = torch.tensor([[0, 1], [1, 1], [2, 0], [4, 0], [2, 2], [2, 2]])
FILLED = ([0, 2, 3], [1, 2])  # items that have rows
EMPTY = -0.25

backends = pytest.mark.parametrize("backend", DTYPES)
functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
layouts = pytest.mark.parametrize("layout", ["padded", "masked", "packed", "list"])


def leaves(dtype: torch.dtype) -> list[Tensor]:
    """Padded features, NaN where there are no rows."""
    generator = torch.Generator().manual_seed(2)
    sides = []
    for lengths in LENGTHS:
        side = torch.randn(len(lengths), max(lengths), DIM, generator=generator).to(dtype)
        for item, length in zip(side, lengths, strict=True):
            item[length:] = torch.nan
        sides.append(side)
    return sides


def laid_out(sides: list[Tensor], layout: str, chosen: tuple[list[int], list[int]] | None = None) -> dict[str, Any]:
    """Arguments of a call with all items, or with chosen ones."""
    arguments: dict[str, Any] = {}
    for row, side, lengths, own in zip(("region", "word"), sides, LENGTHS, chosen or (None, None), strict=True):
        places = range(len(lengths)) if own is None else own
        sizes = torch.tensor([lengths[place] for place in places])
        items = [side[place, : lengths[place]] for place in places]
        if layout in ("list", "packed"):
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
            arguments[f"{row}s"] = items if layout == "list" else (torch.cat(items), offsets)
            continue
        arguments[f"{row}s"] = side[list(places)]
        if layout == "padded":
            arguments[f"{row}_lengths"] = sizes
        else:
            arguments[f"{row}_mask"] = torch.arange(side.size(1)) < sizes[:, None]
    return arguments


def expected_scores(scores: Tensor, pairs: Tensor | None, value: float = EMPTY) -> Tensor:
    """Of the items that have rows, among those of all."""
    whole = scores.new_full((5, 3), value)
    whole[torch.tensor(FILLED[0])[:, None], torch.tensor(FILLED[1])] = scores
    return whole if pairs is None else whole[pairs[:, 0], pairs[:, 1]]


@functions
@backends
@layouts
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_pairs_with_an_empty_item(
    function: Callable[..., Tensor], backend: str, layout: str, pairs: Tensor | None
) -> None:
    results = []
    for chosen in (None, FILLED):
        sides = [side.requires_grad_() for side in leaves(DTYPES[backend])]
        own: dict[str, Any] = {"pairs": pairs, "empty_score": EMPTY} if chosen is None else {}
        options = {"pooling": "avg", "backend": backend, **own}
        scores = function(**laid_out(sides, layout, chosen), **options)
        scores = scores if chosen is None else expected_scores(scores, pairs)
        gradients = torch.autograd.grad((scores * torch.arange(1.0, 1 + scores.numel()).view_as(scores)).sum(), sides)
        results.append((scores, *gradients))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    for gradient, lengths in zip(results[0][1:], LENGTHS, strict=True):
        for item, length in zip(gradient, lengths, strict=True):
            assert item[length:].count_nonzero() == 0


@functions
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_among_more_rows_than_a_block_holds(function: Callable[..., Tensor], direction: str) -> None:
    generator = torch.Generator().manual_seed(3)
    sides = [torch.randn(60, 10, DIM, generator=generator) for _ in range(2)]
    lengths = torch.randint(1, 11, (60,), generator=generator)
    filled = torch.rand(60, generator=generator) > 0.1
    scores = function(*sides, *[lengths * filled] * 2, direction=direction, empty_score=EMPTY, backend="cpu")
    own = [side[filled] for side in sides]
    alone = function(*own, *[lengths[filled]] * 2, direction=direction, backend="cpu")
    both = filled[:, None] & filled
    assert (scores[~both] == EMPTY).all()
    torch.testing.assert_close(scores[both], alone.flatten())


@functions
@backends
@pytest.mark.parametrize("layout", ["list", "masked"])
def test_without_a_gradient(function: Callable[..., Tensor], backend: str, layout: str) -> None:
    """As lists go where they lie."""
    sides = leaves(DTYPES[backend])
    scores = function(**laid_out(sides, layout), empty_score=EMPTY, backend=backend)
    packed = function(**laid_out(sides, "packed", FILLED), backend=backend)
    torch.testing.assert_close(scores, expected_scores(packed, None))


@backends
@layouts
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_argmax_of_empty_pairs_is_none(backend: str, layout: str, direction: str) -> None:
    arguments = laid_out(leaves(DTYPES[backend]), layout)
    options: dict[str, Any] = {"direction": direction, "backend": backend}
    scores, argmax = maxsim_argmax(**arguments, empty_score=EMPTY, **options)
    alone = maxsim_argmax(**laid_out(leaves(DTYPES[backend]), layout, FILLED), **options)
    torch.testing.assert_close(scores, expected_scores(alone[0], None))
    for query in range(argmax.size(-1)):
        assert torch.equal(argmax[..., query], expected_scores(alone[1][..., query], None, -1))


@pytest.mark.parametrize("backend", ["torch", "reference"])
@layouts
def test_attention_of_empty_pairs_is_zero(backend: str, layout: str) -> None:
    arguments = laid_out(leaves(torch.float64), layout)
    scores, weights, relevances = scan_attention(**arguments, empty_score=EMPTY, pairs=PAIRS, backend=backend)
    empty = torch.tensor([LENGTHS[0][i] == 0 or LENGTHS[1][c] == 0 for i, c in PAIRS.tolist()])
    assert (scores[empty] == EMPTY).all() and scores.isfinite().all()
    assert weights[empty].count_nonzero() == 0 and relevances[empty].count_nonzero() == 0
    torch.testing.assert_close(weights[~empty].sum((1, 2)), torch.tensor([4.0, 2, 2], dtype=torch.float64))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    ("backend", "layout", "pairs"),  # every two
    [
        (backend, layout, (None, PAIRS)[(i + j) % 2])
        for i, backend in enumerate(("torch", "reference"))
        for j, layout in enumerate(("padded", "masked", "packed", "list"))
    ],
)
def test_other_scores(name: str, backend: str, layout: str, pairs: Tensor | None) -> None:
    function, options = OTHERS[name]
    contexts = [torch.randn(n, 2, DIM, generator=torch.Generator().manual_seed(n)).double() for n in (5, 3)]
    results = []
    for chosen in (None, FILLED):
        sides = [side.requires_grad_() for side in leaves(torch.float64)]
        own = contexts if chosen is None else [x[places] for x, places in zip(contexts, FILLED, strict=True)]
        arguments = laid_out(sides, layout, chosen)
        call: dict[str, Any] = {"backend": backend, **options}
        call |= {"pairs": pairs, "empty_score": EMPTY} if chosen is None else {}
        if name == "gated":
            call["contexts"] = own
        scores = function((arguments.pop("regions"), arguments.pop("words")), torch.float64, **arguments, **call)
        scores = scores if chosen is None else expected_scores(scores, pairs)
        results.append((scores, *torch.autograd.grad(scores.square().sum(), sides)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@functions
@backends
@pytest.mark.parametrize("shape", ["no rows", "no lengths", "packed", "list"])
def test_nothing_but_empty_items(function: Callable[..., Tensor], backend: str, shape: str) -> None:
    dtype = DTYPES[backend]
    regions: Any = torch.empty(2, 0, DIM, dtype=dtype)
    lengths = None
    if shape == "no lengths":
        regions, lengths = torch.full((2, 4, DIM), torch.nan, dtype=dtype), [0, 0]
    elif shape == "packed":
        regions = (torch.empty(0, DIM, dtype=dtype), torch.zeros(3, dtype=torch.int64))
    elif shape == "list":
        regions = [torch.empty(0, DIM, dtype=dtype)] * 2
    words = torch.ones(3, 2, DIM, dtype=dtype)
    for pairs, expected in ((None, (2, 3)), (torch.tensor([[1, 2]]), (1,))):
        scores = function(regions, words, lengths, pairs=pairs, empty_score=7, backend=backend)
        assert scores.shape == expected and (scores == 7).all()


@functions
@backends
@pytest.mark.parametrize("value", [math.inf, -math.inf, 0, 3])
def test_any_number_can_be_the_score(function: Callable[..., Tensor], backend: str, value: float) -> None:
    arguments = laid_out(leaves(DTYPES[backend]), "padded")
    scores = function(**arguments, empty_score=value, backend=backend)
    assert (scores[1] == value).all() and (scores[:, 0] == value).all()


@pytest.mark.parametrize("best", [scan_topk, maxsim_topk])
@layouts
def test_an_empty_item_of_a_corpus_scores_it(best: Callable[..., Any], layout: str) -> None:
    values, indices = best(**laid_out(leaves(torch.float32), layout), k=5, empty_score=-math.inf)
    assert indices[0].tolist() == [0, 1, 2, 3, 4]  # of an empty query all are equal
    assert indices[1:, 3:].tolist() == [[1, 4], [1, 4]]
    assert (values[1:, 3:] == -math.inf).all() and values[1:, :3].isfinite().all()


@functions
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (math.nan, ValueError, "empty_score must be a finite number in float32, not nan"),
        (1e39, ValueError, "empty_score must be a finite number in float32, not 1e+39"),
        (True, TypeError, "empty_score must be a number, not bool"),
        ("0", TypeError, "empty_score must be a number, not str"),
    ],
)
def test_what_is_no_score(function: Callable[..., Tensor], value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        function(torch.ones(1, 1, DIM), torch.ones(1, 1, DIM), empty_score=value)


@functions
@layouts
def test_without_a_score_empty_items_are_named(function: Callable[..., Tensor], layout: str) -> None:
    messages = {
        "padded": r"region_lengths\[1\] is 0: every image needs",
        "masked": r"region_mask\[1\] has no True",
        "packed": r"diff of regions\[1\] \(cu_seqlens\)\[1\] is 0",
        "list": r"regions\[1\] is empty",
    }
    with pytest.raises(ValueError, match=messages[layout]):
        function(**laid_out(leaves(torch.float32), layout))


@functions
def test_lengths_stay_in_range(function: Callable[..., Tensor]) -> None:
    for lengths, message in (
        ([-1], r"region_lengths\[0\] is -1: it must lie in 0..2"),
        ([3], "is 3: it must lie in 0..2"),
    ):
        with pytest.raises(ValueError, match=message):
            function(torch.ones(1, 2, DIM), torch.ones(1, 1, DIM), lengths, empty_score=0)
