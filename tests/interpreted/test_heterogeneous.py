"""`heterogeneous_scores` by backend "triton" against HAN's formulas: scores, gradients, parts, NaN, opcheck."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, heterogeneous_scores
from crossret_kernels.gpu.tuning import HeterogeneousTuning
from tests.every_two import every_two
from tests.interpreted.programs import ORDERS, programs_share_nothing
from tests.kernels.heterogeneous_attention.calls import Call, calls, make_layers, make_sides
from tests.kernels.heterogeneous_attention.test_heterogeneous import check, well_posed
from tests.kernels.strategies import IN_HALF_RANGE, Features, examples

POOLINGS = ("lse", "avg", "sum", "max")


@pytest.fixture(autouse=True, scope="module")
def sizes() -> Iterator[None]:
    """Small tiles, so that a few items take several of everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeterogeneousTuning, "ROWS", 16)
        patch.setattr(HeterogeneousTuning, "CELLS", 16)
        yield


def served(call: Call) -> Call:
    """The call as kernels make it: all pairs, one layer, another pooling than "softmax"."""
    pooling = call.options["pooling"]
    options = call.options | {"pooling": pooling if pooling in POOLINGS else "avg"}
    return replace(call, batch=replace(call.batch, pairs=None), layers=call.layers[:1], options=options)


def drawn(rows: tuple[int, int], **options: Any) -> Call:
    """Three images, with a caption more than those that are normalised at once."""
    generator = torch.Generator().manual_seed(0)
    sides = [torch.randn(n, most, 12, generator=generator).double() for n, most in ((3, rows[0]), (4, rows[1]))]
    lengths = [1 + torch.arange(n) * 7 % most for n, most in ((3, rows[0]), (4, rows[1]))]
    usual = {
        "heads": 3, "lambda_attention": 0.7, "matching": "local", "direction": "t2i", "lambda_softmax": 4.0,
        "pooling": "avg", "lambda_lse": 6.0, "normalize": True,
    }  # fmt: skip
    return Call(Features(*sides, *lengths, None, "none"), make_layers(1, 12, torch.float64), usual | options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@examples(3)
@given(call=calls(degeneracies=IN_HALF_RANGE))
@example(call=drawn((1, 1), pooling="softmax"))
def test_scores_and_gradients_are_those_of_the_formulas(dtype: torch.dtype, call: Call) -> None:
    assume(well_posed(call))
    check(served(call), dtype, "triton")


@pytest.mark.parametrize(
    ("order", "many_parts", "options"),
    every_two(
        ORDERS, [False, True], [*({"pooling": x} for x in POOLINGS), {"direction": "i2t"}, {"matching": "global"}]
    ),
    indirect=["order"],
)
def test_programs_share_nothing(many_parts: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By several tiles of rows, of keys and of both sides of the matching."""
    if many_parts:
        monkeypatch.setattr(HeterogeneousTuning, "WORKSPACE_BYTES", 20_000)
    with programs_share_nothing():
        check(drawn((17, 3), **options), torch.float32, "triton")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN in the interpreter
@pytest.mark.parametrize("pooling", POOLINGS)
def test_nan_stays_in_its_items_scores(pooling: str) -> None:
    layers, (regions, words) = make_layers(1, 8), make_sides()
    clean = heterogeneous_scores(regions, words, layers=layers, pooling=pooling, backend="triton")
    for place in range(2):
        sides = [regions.clone(), words.clone()]
        sides[place][1, 2, 0] = torch.nan
        found = heterogeneous_scores(*sides, layers=layers, pooling=pooling, backend="triton")
        own = torch.zeros_like(found, dtype=torch.bool)
        own[(1, slice(None)) if place == 0 else (slice(None), 1)] = True
        assert found[own].isnan().all()
        assert torch.equal(found[~own], clean[~own])


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedByBackend, match="those of 'cpu' do"):
        heterogeneous_scores(*make_sides(), layers=make_layers(2, 8), backend="triton")
    with pytest.raises(UnsupportedByBackend, match="those of 'cpu' do"):
        heterogeneous_scores(*make_sides(), layers=make_layers(1, 8), pooling="softmax", backend="triton")


def test_opcheck() -> None:
    generator = torch.Generator().manual_seed(0)

    def side(n: int, rows: int) -> list[Tensor]:
        shapes = ((n, rows, 2, 3), (n, rows, 2, 3), (n, rows, 2, 6), (n, rows, 2), (n, rows, 3, 6))
        return [*(torch.randn(*shape, generator=generator) for shape in shapes), torch.arange(n) + 1]

    arguments = [*side(2, 4), *side(3, 3), *(torch.randn(6, generator=generator) for _ in range(2))]
    options = (1.0, True, 0, 9.0, 1, 6.0, False)
    wanted = [place % 2 == 0 for place in range(12)]
    operations, grad = torch.ops.crossret, torch.randn(2, 3, generator=generator)
    backward = operations.heterogeneous_attention_triton_backward.default
    torch.library.opcheck(backward, (grad, *arguments, *options, *wanted))
    for x in arguments:
        x.requires_grad_(x.dtype == torch.float32)
    torch.library.opcheck(operations.heterogeneous_attention_triton.default, (*arguments, *options))
