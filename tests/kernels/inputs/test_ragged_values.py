"""`Ragged`: features of any layout, checked once, score as the same features passed one by one."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    Ragged,
    attention_pool_weights,
    maxsim_argmax,
    maxsim_scores,
    pairwise_scores,
    scan_attend,
    scan_factors,
    scan_scores,
    scan_topk,
)
from crossret_kernels.inputs import tensors as checks
from crossret_kernels.late_interaction import explain, maxsim, retrieve
from crossret_kernels.padded.forms import pack_items, pad_items
from tests.kernels.told import told

N, LONGEST, DIM = 4, 5, 8
LENGTHS = torch.tensor([5, 2, 4, 1])
ROWS = torch.randn(int(LENGTHS.sum()), DIM, generator=torch.Generator().manual_seed(1))
OFFSETS = torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)])
MASK = torch.arange(LONGEST) < LENGTHS[:, None]
PADDED = torch.full((N, LONGEST, DIM), torch.nan).masked_scatter(MASK[:, :, None], ROWS)
ITEMS = list(ROWS.split(LENGTHS.tolist()))
LAYOUTS: dict[str, tuple[Any, dict[str, Tensor]]] = {
    "lengths": (PADDED, {"lengths": LENGTHS}),
    "mask": (PADDED, {"mask": MASK}),
    "packed": (ROWS, {"offsets": OFFSETS}),
    "list": (ITEMS, {}),
    "list of one": (ITEMS[:1], {}),
    "whole": (PADDED[:1], {}),
    "arrays": (PADDED.numpy(), {"lengths": LENGTHS.numpy()}),
}
PAIRS = torch.tensor([[0, 0], [0, 0]])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "scan_scores": lambda side: scan_scores(side, side, direction="i2t"),
    "scan_topk": lambda side: scan_topk(side, side, k=2),
    "scan_attend": lambda side: scan_attend(side, side, pairs=PAIRS),
    "scan_factors": scan_factors,
    "maxsim_scores": lambda side: maxsim_scores(side, side),
    "maxsim_argmax": lambda side: maxsim_argmax(side, side, direction="i2t"),
    "pairwise_scores": lambda side: pairwise_scores(side, side, lambda v, _, e, __: v.sum((1, 2)) + e.sum((1, 2))),
    "maxsim": lambda side: maxsim(side, side),
    "retrieve": lambda side: retrieve(side, side, k=2),
    "explain": lambda side: explain(side, side, pairs=PAIRS),
}


def tensors(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(x for x in result if isinstance(x, Tensor))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_scores_as_its_features_do(function: str, layout: str) -> None:
    values, kept = LAYOUTS[layout]
    side = Ragged(values, **kept)
    packed = (ROWS[: int(side.lengths.sum())], OFFSETS[: len(side) + 1])
    results = zip(tensors(FUNCTIONS[function](side)), tensors(FUNCTIONS[function](packed)), strict=True)
    for ours, theirs in results:
        torch.testing.assert_close(ours[..., : theirs.size(-1)], theirs)
        assert not ours[..., theirs.size(-1) :].clamp(min=0).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_its_rows_and_lengths(layout: str) -> None:
    values, kept = LAYOUTS[layout]
    side = Ragged(values, **kept)
    n = len(side)
    assert side.lengths.tolist() == LENGTHS[:n].tolist()
    assert torch.equal(pack_items(side), ROWS[: int(LENGTHS[:n].sum())])
    padded, mask = pad_items(side)
    assert torch.equal(padded[mask], pack_items(side))
    assert not side.has_empty
    for other in (copy.deepcopy(side), pickle.loads(pickle.dumps(side))):
        assert torch.equal(pack_items(other), pack_items(side))


def test_it_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Ragged(PADDED, lengths=LENGTHS), Ragged(ROWS, offsets=OFFSETS)
    monkeypatch.setattr(checks, "_check_lengths", lambda *_: pytest.fail("lengths are checked again"))
    monkeypatch.setattr(checks, "_check_features", lambda *_: pytest.fail("features are checked again"))
    scan_scores(*sides)


def test_gradients_go_to_the_values() -> None:
    for values, kept in ((PADDED, {"lengths": LENGTHS}), (ROWS, {"offsets": OFFSETS}), (ITEMS, {})):
        leaves = [x.clone().requires_grad_() for x in (values if isinstance(values, list) else [values])]
        side = Ragged(leaves if isinstance(values, list) else leaves[0], **kept)
        scan_scores(side, side).sum().backward()
        gradients = torch.cat([leaf.grad[~leaf.isnan()].flatten() for leaf in leaves if leaf.grad is not None])
        rows = ROWS.clone().requires_grad_()
        scan_scores((rows, OFFSETS), (rows, OFFSETS)).sum().backward()
        assert rows.grad is not None
        torch.testing.assert_close(gradients, rows.grad.flatten())


def test_logits_lie_as_its_values() -> None:
    for values, kept in (LAYOUTS["packed"], LAYOUTS["list"], LAYOUTS["lengths"]):
        logits = [x[:, :2] for x in values] if isinstance(values, list) else values[..., :2]
        pooled = attention_pool_weights(Ragged(values, **kept), logits).pooled
        expected = attention_pool_weights(ITEMS, [item[:, :2] for item in ITEMS]).pooled
        torch.testing.assert_close(pooled, expected)


@pytest.mark.parametrize("kept", [{"lengths": LENGTHS}, {"mask": MASK}], ids=["lengths", "mask"])
def test_it_goes_through_torch_compile(kept: dict[str, Tensor]) -> None:
    torch.compiler.reset()
    values = PADDED.nan_to_num()
    side = Ragged(values, **kept)
    compiled = torch.compile(lambda images, captions: scan_scores(images, captions), fullgraph=True, backend="eager")
    assert torch.equal(compiled(side, side), scan_scores(side, side))
    made_inside = torch.compile(
        lambda x, y: scan_scores(Ragged(x, **{next(iter(kept)): y}), side), fullgraph=True, backend="eager"
    )
    assert torch.equal(made_inside(values, next(iter(kept.values()))), scan_scores(side, side))


def test_empty_items_need_their_score() -> None:
    side = Ragged(PADDED, lengths=[5, 0, 4, 1])
    assert side.has_empty
    with pytest.raises(ValueError, match=re.escape("words[1] is empty: every caption needs at least one row")):
        scan_scores(PADDED[:1], side)
    assert scan_scores(side, side, empty_score=-3.0)[1].tolist() == [-3.0] * 4


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "too long": (lambda: Ragged(PADDED, lengths=[5, 6, 1, 1]), ValueError, "lengths[1] is 6: it must lie in 0..5"),
    "mask's shape": (lambda: Ragged(PADDED, mask=MASK[:, :3]), ValueError, "mask must have shape (n, L) = (4, 5)"),
    "offsets' end": (lambda: Ragged(ROWS, offsets=[0, 3]), ValueError, "offsets ends at 3 but values has 12 rows"),
    "offsets fall": (lambda: Ragged(ROWS, offsets=[0, 9, 5, 12]), ValueError, "diff of offsets[1] is -4"),
    "offsets of padded": (lambda: Ragged(PADDED, offsets=OFFSETS), ValueError, "values must have shape (rows, D)"),
    "integers": (lambda: Ragged(PADDED.long()), TypeError, "values must be float32, float64, bfloat16 or float16"),
    "no tensor": (lambda: Ragged("rows"), TypeError, "values[0] must be a (L, D) tensor, not str"),
    "two": (lambda: Ragged(PADDED, lengths=LENGTHS, mask=MASK), ValueError, "lengths, mask and offsets exclude each"),
    "meta": (lambda: Ragged(PADDED.to("meta")), ValueError, "values is on the meta device"),
    "lengths of a list": (lambda: Ragged(ITEMS, lengths=LENGTHS), ValueError, "lengths goes with padded values only"),
    "beside it": (lambda: scan_scores(Ragged(PADDED), PADDED, LENGTHS), ValueError, "region_lengths goes with padded"),
    "beside, in topk": (lambda: scan_topk(Ragged(PADDED), PADDED, LENGTHS, k=1), ValueError, "a Ragged knows its"),
    "other D": (lambda: scan_scores(Ragged(PADDED), PADDED[..., :3]), ValueError, "regions have D = 8 but words have"),
}
test_mistakes_are_told = told(lambda call: call(), CASES)


def test_arrays_are_shared() -> None:
    values = np.zeros((2, 3, 4), np.float32)
    side = Ragged(values)
    values[1, 2, 3] = 7
    assert float(side.values[1, 2, 3]) == 7
