"""Every layout of either side scores as the reference scores the same rows, on every backend, with the same gradients.

Padded, strided, masked, packed and listed features, items of no rows, all pairs, listed ones and candidates: what lies
where there is no row is NaN, is never read and has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import (
    gated_attention_scores,
    heterogeneous_scores,
    maxsim_scores,
    maxsim_topk,
    scan_attention,
    scan_scores,
    scan_topk,
)
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded import chunked
from tests.kernels.gated_attention.batches import gated_parameters
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.strategies import examples, maxsim_options, scan_options
from tests.kernels.told import told
from tests.kernels.tolerance import score_weights

DIM = 8
MOST = 6  # rows of an item
COUNTS = (5, 4)
LISTS = ("list", "items apart")
LAYOUTS = ("padded", "strided", "masked", "packed", "rows apart", *LISTS)
EMPTY = -0.25
DTYPES = {"cpu": torch.float32, "torch": torch.float64, "reference": torch.float64}
BY_KERNELS = ("scan", "maxsim", "layer", "layers", "layers, global")
CONTEXTS = [torch.randn(n, 2, DIM, generator=torch.Generator().manual_seed(n)).double() for n in COUNTS]
PARAMETERS = gated_parameters(DIM, DIM, 5, 6, 7, torch.Generator().manual_seed(3)).to(torch.float64)
LAYERS = make_layers(2, DIM, torch.float64)


def gated(*sides: Any, own: tuple[Tensor, Tensor] | None = None, **options: Any) -> Tensor:
    """`own`: of which images and captions the sides are."""
    contexts = CONTEXTS if own is None else [x[places] for x, places in zip(CONTEXTS, own, strict=True)]
    named = {"region_contexts": contexts[0], "word_contexts": contexts[1]}
    return gated_attention_scores(*sides, **named, parameters=PARAMETERS, **options)


def layered(depth: int, **fixed: Any) -> Callable[..., Tensor]:
    def scores(*sides: Any, own: tuple[Tensor, Tensor] | None = None, **options: Any) -> Tensor:
        layers = [layer.to(DTYPES[options["backend"]]) for layer in LAYERS[:depth]]
        return heterogeneous_scores(*sides, layers=layers, **fixed, **options)

    return scores


OPERATIONS: dict[str, tuple[Callable[..., Tensor], Any]] = {
    "scan": (lambda *sides, own=None, **options: scan_scores(*sides, **options), scan_options()),
    "maxsim": (lambda *sides, own=None, **options: maxsim_scores(*sides, **options), maxsim_options()),
    "gated": (gated, st.just({})),
    "layers": (layered(2), st.sampled_from([{}, {"direction": "i2t"}])),
    "layer": (layered(1), st.sampled_from([{}, {"direction": "i2t"}])),
    "layers, global": (layered(1, matching="global"), st.just({})),
    "no layers": (layered(0), st.sampled_from([{"matching": "global"}, {"direction": "i2t"}])),
}
TAKEN = ("with gradients", "tensors", "arrays")
SERVED = [(name, backend) for name in OPERATIONS for backend in DTYPES if backend != "cpu" or name in BY_KERNELS]


@dataclass(frozen=True)
class Side:
    """Items of these lengths, and how they are handed over."""

    lengths: list[int]
    layout: str
    seed: int

    def rows(self, dtype: torch.dtype) -> Tensor:
        """All of them, one after the other, as a leaf."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(sum(self.lengths), DIM, generator=generator).to(dtype).requires_grad_()

    def arguments(self, rows: Tensor, row: str) -> tuple[Any, dict[str, Any], Tensor | None, Tensor | None]:
        """Features, options beside them, and of padded ones these with a mask of where they have rows."""
        sizes = torch.tensor(self.lengths)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        if self.layout in ("packed", "rows apart"):
            apart = torch.nn.functional.pad(rows, (3, 2), value=torch.nan)[:, 3:-2]
            return (rows if self.layout == "packed" else apart, offsets), {}, None, None
        if self.layout in LISTS:
            items = list(rows.split(self.lengths))
            turned = [item.T.contiguous().T for item in items]
            return items if self.layout == "list" else turned, {}, None, None
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.rand(len(sizes), MOST + 2, generator=generator).argsort(1)
        mask = order < sizes[:, None] if self.layout == "masked" else torch.arange(MOST + 2) < sizes[:, None]
        padded = torch.full((*mask.shape, DIM), torch.nan, dtype=rows.dtype).index_put(
            mask.nonzero(as_tuple=True), rows
        )
        padded.retain_grad()
        given = torch.cat([padded, padded], 1).mT.contiguous().mT[:, : MOST + 2] if self.layout == "strided" else padded
        return given, {f"{row}_mask": mask} if self.layout == "masked" else {f"{row}_lengths": sizes}, padded, mask


@st.composite
def sides(draw: st.DrawFn) -> tuple[Side, Side]:
    """Of which many items have no rows, now and then all."""
    made = []
    for count in COUNTS:
        lengths = draw(st.lists(st.integers(0, MOST), min_size=count, max_size=count))
        made.append(Side(lengths, draw(st.sampled_from(LAYOUTS)), draw(st.integers(0, 2**32))))
    return made[0], made[1]


@contextmanager
def nothing_joined() -> Iterator[None]:
    """Joining the items of a list, by whatever means, fails."""
    cat = torch.cat

    def checked(tensors: Any, *arguments: Any, **options: Any) -> Tensor:
        assert all(tensor.dim() != 2 or tensor.size(1) != DIM for tensor in tensors), "features are joined"
        return cat(tensors, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "cat", checked)
        patch.setattr(Ragged, "joined", lambda _: pytest.fail("a list is joined"))
        yield


SELECTIONS: dict[str, dict[str, Tensor]] = {
    "all": {},
    "pairs": {"pairs": torch.tensor([[2, 1], [0, 0], [2, 3], [4, 1], [2, 1]])},
    "candidates": {"candidates": torch.tensor([[3, 1], [0, 0], [2, 3], [1, 2], [0, 3]])},  # of images
}


def as_arrays(value: Any) -> Any:
    """Tensors that NumPy knows as its arrays, which share their memory."""
    if isinstance(value, Tensor):
        return value.detach().numpy()
    return type(value)(map(as_arrays, value)) if isinstance(value, (list, tuple)) else value


def entries(scores: Tensor, selection: dict[str, Tensor]) -> Tensor:
    if "pairs" in selection:
        return scores[tuple(selection["pairs"].T)]
    return scores.gather(1, selection["candidates"]) if selection else scores


@pytest.mark.parametrize(("name", "backend"), SERVED)
@examples(40)
@given(both=sides(), selected=st.sampled_from(list(SELECTIONS)), taken=st.sampled_from(TAKEN), data=st.data())
def test_layouts(
    name: str, backend: str, both: tuple[Side, Side], selected: str, taken: str, data: st.DataObject
) -> None:
    function, drawn = OPERATIONS[name]
    gradients = taken == "with gradients"
    options, selection, dtype = data.draw(drawn), SELECTIONS[selected], DTYPES[backend]
    if options.get("pooling") == "max":
        options |= {"pooling": "sum"}  # ties are a matter of rounding
    if options.get("lambda_softmax") == 100.0:
        options |= {"lambda_softmax": 9.0}  # and so is what is left of rounding so much larger
    leaves = [side.rows(dtype) for side in both]
    given = [side.arguments(rows, row) for side, rows, row in zip(both, leaves, ("region", "word"), strict=True)]
    query = {"query": "image"} if "candidates" in selection else {}
    call = {**given[0][1], **given[1][1], **options, **selection, **query, "empty_score": EMPTY, "backend": backend}
    where_they_lie = not gradients and name in ("scan", "maxsim") and any(side.layout in LISTS for side in both)
    kept = nothing_joined() if where_they_lie else nullcontext()
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(gradients), kept:
        patch.setattr(chunked, "WORKSPACE_BYTES", 2**16)  # several blocks
        features = [side[0] for side in given]
        if taken == "arrays":
            features, call = list(map(as_arrays, features)), {key: as_arrays(value) for key, value in call.items()}
        scores = function(*features, **call)
    # The items that have rows alone, packed, in float64.
    own = [torch.tensor([place for place, length in enumerate(side.lengths) if length]).long() for side in both]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    whole = torch.full(COUNTS, EMPTY, dtype=torch.float64)
    if all(map(len, own)):
        offsets = [torch.tensor([0, *filter(None, side.lengths)]).cumsum(0) for side in both]
        packed = zip(exact, offsets, strict=True)
        filled = function(*packed, own=(own[0], own[1]), **options, backend="reference")
        whole = whole.index_put((own[0][:, None], own[1]), filled)
    expected = entries(whole, selection)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-7, "atol": 1e-8}
    torch.testing.assert_close(scores.double(), expected.detach(), **close)
    if not gradients:
        return
    weights = score_weights(scores.shape)
    (scores * weights.to(scores)).sum().backward()
    if expected.requires_grad:
        (expected * weights).sum().backward()
    for (_, _, padded, mask), leaf, true in zip(given, leaves, exact, strict=True):
        slopes = torch.zeros_like(true) if true.grad is None else true.grad
        scale = max(1.0, float(slopes.abs().max())) if slopes.numel() else 1.0
        found = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        torch.testing.assert_close(found.double(), slopes, rtol=close["rtol"] * 10, atol=close["atol"] * 10 * scale)
        if padded is not None and mask is not None and padded.grad is not None:
            assert padded.grad[~mask].count_nonzero() == 0


@pytest.mark.parametrize(("name", "backend"), SERVED)
@pytest.mark.parametrize("pairs", [None, torch.cartesian_prod(torch.arange(5), torch.arange(4))], ids=["all", "pairs"])
def test_what_is_no_number_stays_in_its_items(name: str, backend: str, pairs: Tensor | None) -> None:
    function, dtype = OPERATIONS[name][0], DTYPES[backend]
    features = [torch.randn(n, 3, DIM, generator=torch.Generator().manual_seed(n)).to(dtype) for n in COUNTS]
    clean = function(*features, pairs=pairs, backend=backend)
    hit = torch.zeros(COUNTS, dtype=torch.bool)
    hit[2], hit[:, 1] = True, True
    hit = hit if pairs is None else hit.flatten()
    for bad in (torch.nan, torch.inf):
        features[0][2, 0, 3] = features[1][1, 0, 5] = bad
        scores = function(*features, pairs=pairs, backend=backend)
        assert torch.equal(scores[~hit], clean[~hit])
        assert scores[hit].isnan().all() or (bad == torch.inf and name in ("maxsim", "gated"))


@pytest.mark.parametrize(("name", "backend"), SERVED)
@pytest.mark.parametrize("empty", ["images", "captions", "both", "pairs"])
def test_nothing_has_no_scores_and_no_gradients(name: str, backend: str, empty: str) -> None:
    """Padded, packed, and padded of no rows."""
    counts = (0 if empty in ("images", "both") else 5, 0 if empty in ("captions", "both") else 4)
    pairs = torch.zeros(0, 2, dtype=torch.int64) if empty == "pairs" else None
    own = (torch.arange(counts[0]), torch.arange(counts[1]))
    for layout in ("padded", "packed", "no rows"):
        leaves, sides = [], []
        for count in counts:
            rows = 0 if layout == "no rows" and not count else 3
            leaves.append(torch.zeros(count, rows, DIM, dtype=DTYPES[backend]).requires_grad_())
            packed = leaves[-1].flatten(0, 1), torch.arange(count + 1) * rows
            sides.append(packed if layout == "packed" else leaves[-1])
        scores = OPERATIONS[name][0](*sides, own=own, pairs=pairs, backend=backend)
        assert scores.shape == ((0,) if empty == "pairs" else counts) and scores.dtype == DTYPES[backend]
        assert not any(slope.any() for slope in torch.autograd.grad(scores.sum(), leaves, materialize_grads=True))


# --- items of no rows


functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])


@functions
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_empty_items_among_more_rows_than_a_block_holds(function: Callable[..., Tensor], direction: str) -> None:
    generator = torch.Generator().manual_seed(3)
    features = [torch.randn(60, 10, DIM, generator=generator) for _ in range(2)]
    lengths = torch.randint(1, 11, (60,), generator=generator)
    filled = torch.rand(60, generator=generator) > 0.1
    scores = function(*features, *[lengths * filled] * 2, direction=direction, empty_score=EMPTY, backend="cpu")
    own = [side[filled] for side in features]
    alone = function(*own, *[lengths[filled]] * 2, direction=direction, backend="cpu")
    both = filled[:, None] & filled
    assert (scores[~both] == EMPTY).all()
    torch.testing.assert_close(scores[both], alone.flatten())


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_attention_of_empty_pairs_is_zero(backend: str) -> None:
    features, lengths = torch.randn(4, 3, DIM).double(), torch.tensor([3, 0, 2, 1])
    pairs = torch.tensor([[0, 2], [1, 0], [3, 1], [2, 2]])
    options: dict[str, Any] = {"pairs": pairs, "empty_score": EMPTY, "backend": backend}
    scores, weights, relevances = scan_attention(features, features, lengths, lengths, **options)
    empty = (lengths[pairs] == 0).any(1)
    assert torch.equal(scores == EMPTY, empty)
    assert weights[empty].count_nonzero() == 0 and relevances[empty].count_nonzero() == 0
    torch.testing.assert_close(weights[~empty].sum((1, 2)), torch.tensor([2.0, 2.0]).double())


@pytest.mark.parametrize("best", [scan_topk, maxsim_topk])
@pytest.mark.parametrize("value", [-math.inf, math.inf])
def test_an_empty_item_of_a_corpus_scores_it(best: Callable[..., Any], value: float) -> None:
    corpus, queries = torch.randn(5, 3, DIM), torch.randn(3, 3, DIM)
    values, indices = best(corpus, queries, [3, 0, 2, 1, 0], [0, 3, 1], k=5, empty_score=value)
    assert indices[0].tolist() == [0, 1, 2, 3, 4]  # of an empty query all are equal
    place = slice(3, 5) if value < 0 else slice(0, 2)
    assert indices[1:, place].tolist() == [[1, 4], [1, 4]] and (values[1:, place] == value).all()


SCORELESS = {
    "nan": (math.nan, ValueError, "empty_score must be a finite number in float32, not nan"),
    "flag": (True, TypeError, "empty_score must be a number, not bool"),
    "text": ("0", TypeError, "empty_score must be a number, not str"),
}
ONES = torch.ones(1, 1, DIM)
test_what_is_no_score = told(
    lambda function, value: function(ONES, ONES, empty_score=value), SCORELESS, scan_scores, maxsim_scores
)
