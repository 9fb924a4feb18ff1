"""Lists of features: scored where they lie unless a gradient goes through them, and as the same items packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from crossret_kernels import (
    attention_pool,
    gated_attention_scores,
    heterogeneous_scores,
    maxsim_scores,
    scan_scores,
    scan_topk,
)
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded import chunked
from tests.kernels.strategies import Features, examples, features
from tests.kernels.test_masks import CONTEXTS, DIM, DTYPES, LAYERS, LENGTHS, PAIRS, PARAMETERS, both_sides

functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
backends = pytest.mark.parametrize("backend", DTYPES)


@contextmanager
def nothing_joined() -> Iterator[None]:
    """Joining the items of a list, by whatever means, fails."""
    cat = torch.cat

    def checked(tensors: Any, *arguments: Any, **options: Any) -> Tensor:
        assert all(tensor.dim() != 2 or tensor.size(1) != 8 for tensor in tensors), "features are joined"
        return cat(tensors, *arguments, **options)

    def refuse(_side: Ragged) -> Ragged:
        raise AssertionError("a list is joined")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "cat", checked)
        patch.setattr(Ragged, "joined", refuse)
        yield


def sides(dtype: torch.dtype) -> list[dict[str, Any]]:
    """Images and captions as (features, their mask) by layout."""
    forms = []
    for side, row in zip(both_sides(dtype), ("region", "word"), strict=True):
        rows, offsets = side.packed
        forms.append({
            "list": ((list(rows.split(offsets.diff().tolist()))), {}),
            "packed": ((rows, offsets), {}),
            "masked": (side.values, {f"{row}_mask": side.mask}),
        })  # fmt: skip
    return forms


@functions
@backends
@pytest.mark.parametrize("other", ["list", "packed", "masked"])
@pytest.mark.parametrize("listed", [0, 1])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_a_list_beside_any_layout(
    function: Callable[..., Tensor], backend: str, other: str, listed: int, pairs: Tensor | None
) -> None:
    forms = sides(DTYPES[backend])
    chosen = [form["list" if place == listed else other] for place, form in enumerate(forms)]
    options: dict[str, Any] = {"pairs": pairs, "backend": backend}
    with nothing_joined():
        scores = function(chosen[0][0], chosen[1][0], **chosen[0][1], **chosen[1][1], **options)
    expected = function(*(form["packed"][0] for form in forms), **options)
    torch.testing.assert_close(scores, expected)
    if backend == "cpu":
        assert torch.equal(scores, expected)


@functions
def test_items_of_strides_of_their_own(function: Callable[..., Tensor]) -> None:
    forms = sides(torch.float32)
    for listed in (0, 1):
        chosen = [list(form["list"][0]) for form in forms]
        first, second, third, *others = chosen[listed]
        spaced = torch.nn.functional.pad(second, (3, 2), value=torch.nan)[:, 3:-2]
        turned = third.T.contiguous().T
        chosen[listed] = [first, spaced, turned, *(item.repeat(1, 2)[:, :DIM] for item in others)]
        packed = function(*(form["packed"][0] for form in forms), backend="cpu")
        assert torch.equal(function(*chosen, backend="cpu"), packed)


@backends
@examples(30)
@given(batch=features())
def test_lists_of_any_sizes(backend: str, batch: Features) -> None:
    batch = batch.to(DTYPES[backend])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "WORKSPACE_BYTES", 2**16)  # several blocks
        scores = scan_scores(*batch.arguments("list"), pairs=batch.pairs, backend=backend)
        expected = scan_scores(*batch.arguments("packed"), pairs=batch.pairs, backend=backend)
    torch.testing.assert_close(scores, expected, rtol=0, atol=0, equal_nan=True)


@functions
@backends
def test_candidates_of_a_list(function: Callable[..., Tensor], backend: str) -> None:
    forms = sides(DTYPES[backend])
    candidates = torch.tensor([[2, 1], [0, 0], [2, 2], [1, 0]])
    with nothing_joined():
        scores = function(*(form["list"][0] for form in forms), candidates=candidates, backend=backend)
    expected = function(*(form["packed"][0] for form in forms), candidates=candidates, backend=backend)
    torch.testing.assert_close(scores, expected)


@functions
@backends
@pytest.mark.parametrize("through", [0, 1], ids=["the list", "the other side"])
def test_gradients_go_through_joined_lists(function: Callable[..., Tensor], backend: str, through: int) -> None:
    images, captions = both_sides(DTYPES[backend])
    results = []
    for layout in ("list", "packed"):
        rows, words = images.packed[0].clone(), captions.packed[0].clone()
        leaf = (rows, words)[through].requires_grad_()
        regions = list(rows.split(LENGTHS[0].tolist())) if layout == "list" else (rows, images.packed[1])
        scores = function(regions, (words, captions.packed[1]), backend=backend)
        results.append((scores, *torch.autograd.grad(scores.square().sum(), leaf)))
        with torch.no_grad():
            torch.testing.assert_close(function(regions, (words, captions.packed[1]), backend=backend), scores)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@functions
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_autocast_and_transformations(function: Callable[..., Tensor], backend: str) -> None:
    forms = sides(torch.float32)
    (regions, words), packed = (tuple(form[layout][0] for form in forms) for layout in ("list", "packed"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(function(regions, words, backend=backend), function(*packed, backend=backend))

    def total(rows: Tensor) -> Tensor:
        return function(list(rows.split(LENGTHS[0].tolist())), words, backend=backend).sum()

    def expected(rows: Tensor) -> Tensor:
        return function((rows, packed[0][1]), packed[1], backend=backend).sum()

    torch.testing.assert_close(*(torch.func.grad(score)(packed[0][0]) for score in (total, expected)))


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_other_scores_of_lists(backend: str, pairs: Tensor | None) -> None:
    forms = sides(torch.float32)
    contexts = {"region_contexts": CONTEXTS[0], "word_contexts": CONTEXTS[1], "parameters": PARAMETERS}
    layers: dict[str, Any] = {"layers": LAYERS}
    calls = [(gated_attention_scores, contexts), (heterogeneous_scores, layers)]
    calls += [(heterogeneous_scores, {"layers": LAYERS[:depth], "matching": "global"}) for depth in (0, 1)]
    for function, options in calls:
        listed, packed = (
            function(*(form[layout][0] for form in forms), pairs=pairs, backend=backend, **options)
            for layout in ("list", "packed")
        )
        torch.testing.assert_close(listed, packed)


@pytest.mark.parametrize("trained", ["values", "logits", "neither"])
def test_pooled_lists(trained: str) -> None:
    side, _ = both_sides()
    rows, offsets = side.packed
    leaves = {"values": rows.clone(), "logits": rows[:, :2].clone()}
    if trained in leaves:
        leaves[trained].requires_grad_()
    lengths = offsets.diff().tolist()
    pooled = attention_pool(list(leaves["values"].split(lengths)), list(leaves["logits"].split(lengths)))
    expected = attention_pool((leaves["values"], offsets), leaves["logits"])
    torch.testing.assert_close(pooled, expected)
    if trained in leaves:
        gradients = [torch.autograd.grad(x.square().sum(), leaves[trained])[0] for x in (pooled, expected)]
        torch.testing.assert_close(*gradients)


def test_a_parameters_gradient_goes_beside_lists() -> None:
    forms = sides(torch.float32)
    found = []
    for layout in ("list", "packed"):
        contexts = [context.clone().requires_grad_() for context in CONTEXTS]
        scores = gated_attention_scores(
            *(form[layout][0] for form in forms),
            region_contexts=contexts[0], word_contexts=contexts[1], parameters=PARAMETERS,
        )  # fmt: skip
        found.append(torch.autograd.grad(scores.square().sum(), contexts))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_topk_of_lists_joins_nothing() -> None:
    forms = sides(torch.float32)
    expected = scan_topk(*(form["packed"][0] for form in forms), k=2)
    with nothing_joined():
        found = scan_topk(*(form["list"][0] for form in forms), k=2)
    torch.testing.assert_close(found, expected)


def operands(several: bool, dtype: torch.dtype) -> tuple[Any, ...]:
    """Of an operation on lists: several items, or one tensor with lengths; captions with a mask."""
    images, captions = both_sides(dtype)
    rows, offsets = images.packed
    regions: tuple[Any, ...] = (list(rows.split(offsets.diff().tolist())), None, None, None)
    if not several:
        regions = ([images.values.nan_to_num(0)], None, LENGTHS[0], None)
    return (*regions, [captions.values.nan_to_num(0)], None, None, captions.mask)


@pytest.mark.parametrize("name", ["scan_scores_listed", "maxsim_scores_listed"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(name: str, several: bool, pairs: Tensor | None, dtype: torch.dtype) -> None:
    options = (None, False, *((0, True, 2, 0.1, 9.0, 0, 6.0) if name.startswith("scan") else (1, False, 2)))
    operation = getattr(torch.ops.crossret, name).default
    torch.library.opcheck(operation, (*operands(several, dtype), pairs, *options))


def test_the_dimension_of_the_test_is_what_it_looks_for() -> None:
    """`nothing_joined` tells features by their D."""
    assert DIM == 8
    with nothing_joined(), pytest.raises(AssertionError, match="joined"):
        scan_scores(torch.ones(2, 3, 8).requires_grad_(), [torch.ones(2, 8), torch.ones(1, 8)], backend="cpu")
