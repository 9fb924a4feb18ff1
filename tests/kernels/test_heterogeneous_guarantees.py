"""What `heterogeneous_scores` guarantees: chunks, layouts, items, transforms, mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    HeterogeneousLayer,
    heterogeneous_scores,
)
from crossret_kernels.heterogeneous_attention import chunked
from crossret_kernels.heterogeneous_attention import pairs as pairs_module
from tests.kernels.heterogeneous import BACKENDS, LENGTHS, PAIRS, make_layers, make_sides
from tests.kernels.strategies import DIRECTIONS
from tests.kernels.tolerance import score_weights

backends = pytest.mark.parametrize("backend", BACKENDS)
directions = pytest.mark.parametrize("direction", DIRECTIONS)


# --- chunks, layouts, items


def gradients_of(call: Callable[[list[Tensor]], Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    scores = call(leaves)
    gradients = torch.autograd.grad((scores * score_weights(scores.shape).to(scores)).sum(), leaves)
    return [scores.detach(), *gradients]


@pytest.mark.parametrize(
    ("count", "pairs", "matching"),
    [
        pytest.param(2, None, "local", id="two layers, all pairs"),
        pytest.param(2, torch.cartesian_prod(torch.arange(3), torch.arange(4)).flip(0), "local", id="pairs"),
        pytest.param(1, None, "global", id="one layer, global"),
    ],
)
def test_chunks_and_groups_do_not_show(
    count: int, pairs: Tensor | None, matching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(3)
    sides = [torch.randn(n, length, 8, generator=generator) for n, length in ((3, 7), (4, 10))]
    lengths = [torch.randint(1, n + 1, (c,), generator=generator) for n, c in ((7, 3), (10, 4))]
    layers = make_layers(count, 8)
    parameters = [parameter for layer in layers for parameter in layer]

    def call(inputs: list[Tensor]) -> Tensor:
        width = len(HeterogeneousLayer._fields)
        own = [HeterogeneousLayer(*inputs[2 + width * k : 2 + width * (k + 1)]) for k in range(count)]
        return heterogeneous_scores(*inputs[:2], *lengths, layers=own, pairs=pairs, matching=matching, backend="torch")

    whole = gradients_of(call, [*sides, *parameters])
    assert whole[0].shape == ((3, 4) if pairs is None else (12,))
    for chunk, shared in ((21000, 12000), (1, 1)):  # of two to four items or pairs, and of one
        monkeypatch.setattr(pairs_module, "CHUNK_BYTES", chunk)
        monkeypatch.setattr(chunked, "SHARED_BYTES", shared)
        for ours, theirs in zip(gradients_of(call, [*sides, *parameters]), whole, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_zero_rows_have_finite_gradients(pairs: Tensor | None) -> None:
    """Zero features, and a layer that makes zero vectors of all."""
    sides = [side.clone() for side in make_sides()]
    sides[0][0] = 0
    sides[1][2] = 0
    layer = make_layers(1, 8)[0]
    for own in (layer, layer._replace(norm_weight=torch.zeros(8), norm_bias=torch.zeros(8))):
        results = gradients_of(
            lambda inputs, own=own: heterogeneous_scores(*inputs, *LENGTHS, layers=[own], pairs=pairs), sides
        )
        assert all(result.isfinite().all() for result in results)
    assert not results[0].any()


# --- transforms


# --- mistakes


LAYERS = make_layers(2, 8)
FIRST = LAYERS[0]
OPTIONS_AND_MESSAGES: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"layers": FIRST}, TypeError, "layers must be a sequence of HeterogeneousLayer, not HeterogeneousLayer"),
    ({"layers": [FIRST, tuple(FIRST)]}, TypeError, "layers[1] must be a HeterogeneousLayer, not tuple"),
    ({"layers": [FIRST._replace(key_bias=None)]}, TypeError, "layers[0].key_bias must be a (D,) tensor, not NoneType"),
    ({"layers": [FIRST._replace(query_weight=torch.ones(8, 4))]}, ValueError,
     "layers[0].query_weight must have shape (D, D) = (8, 8), got (8, 4)"),
    ({"layers": [FIRST._replace(output_bias=torch.ones(8).double())]}, TypeError,
     "layers[0].output_bias is torch.float64 but the features are torch.float32"),
    ({"heads": 3}, ValueError, "heads must divide D = 8, and 3 does not"),
    ({"heads": 0}, ValueError, "heads must be at least 1, not 0"),
    ({"heads": True}, TypeError, "heads must be an integer, not bool"),
    ({"lambda_attention": torch.inf}, ValueError, "lambda_attention must be a finite number"),
    ({"lambda_lse": 0.0}, ValueError, "lambda_lse must be above 0"),
    ({"matching": "both"}, ValueError, "matching must be one of local, global, not 'both'"),
    ({"direction": "i2i"}, ValueError, "direction must be one of t2i, i2t"),
    ({"pairs": torch.tensor([[0, 4]])}, ValueError, "pairs[0] names caption 4, but there are 4 captions"),
    ({"region_lengths": [5, 0, 1]}, ValueError, "region_lengths[1] is 0: every image needs at least one row"),
)  # fmt: skip


@pytest.mark.parametrize(("options", "error", "message"), OPTIONS_AND_MESSAGES)
def test_mistakes_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        heterogeneous_scores(*make_sides(), **{"layers": LAYERS, **options})
