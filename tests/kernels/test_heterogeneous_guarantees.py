"""What `heterogeneous_scores` guarantees: chunks, layouts, items, transforms, mistakes."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from crossret_kernels import (
    HeterogeneousLayer,
    UnsupportedByBackend,
    heterogeneous_attention_weights,
    heterogeneous_scores,
)
from crossret_kernels.heterogeneous_attention import chunked
from crossret_kernels.heterogeneous_attention import pairs as pairs_module
from tests.kernels.heterogeneous import BACKENDS, LENGTHS, PAIRS, make_layers, make_sides
from tests.kernels.strategies import DIRECTIONS, Features
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


@backends
@pytest.mark.parametrize("count", [1, 2])
def test_pairs_are_those_of_the_matrix(count: int, backend: str) -> None:
    sides, layers = make_sides(), make_layers(count, 8)
    whole = heterogeneous_scores(*sides, *LENGTHS, layers=layers, backend=backend)
    listed = heterogeneous_scores(*sides, *LENGTHS, layers=layers, pairs=PAIRS, backend=backend)
    torch.testing.assert_close(listed, whole[PAIRS[:, 0], PAIRS[:, 1]], rtol=0, atol=1e-6)


@backends
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
@pytest.mark.parametrize("layout", ["packed", "list"])
def test_layouts_agree(layout: str, pairs: Tensor | None, backend: str) -> None:
    regions, words = make_sides()
    batch = Features(regions, words, torch.tensor(LENGTHS[0]), torch.tensor(LENGTHS[1]), None)
    layers = make_layers(2, 8)

    def run(name: str) -> list[Tensor]:
        def call(inputs: list[Tensor]) -> Tensor:
            own = replace(batch, regions=inputs[0], words=inputs[1])
            return heterogeneous_scores(*own.arguments(name), layers=layers, pairs=pairs, backend=backend)

        return gradients_of(call, [regions, words])

    for ours, theirs in zip(run(layout), run("padded"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@backends
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e30])
def test_padding_is_never_read(garbage: float, pairs: Tensor | None, backend: str) -> None:
    layers = make_layers(2, 8)

    def run(fill: float) -> list[Tensor]:
        sides = [side.clone() for side in make_sides()]
        for side, lengths in zip(sides, LENGTHS, strict=True):
            for item, length in zip(side, lengths, strict=True):
                item[length:] = fill
        return gradients_of(
            lambda inputs: heterogeneous_scores(*inputs, *LENGTHS, layers=layers, pairs=pairs, backend=backend), sides
        )

    for ours, theirs in zip(run(garbage), run(0.0), strict=True):
        assert torch.equal(ours, theirs)


@backends
@pytest.mark.parametrize(
    ("bad", "matching", "direction", "count"),
    [
        (torch.nan, "local", "t2i", 1),
        (torch.nan, "local", "i2t", 2),
        (torch.nan, "global", "t2i", 1),
        (torch.nan, "global", "t2i", 2),
        (torch.inf, "local", "t2i", 2),
    ],
)
def test_nan_stays_in_its_items_scores(bad: float, matching: str, direction: str, count: int, backend: str) -> None:
    sides, layers = make_sides(), make_layers(count, 8)
    options = {"layers": layers, "direction": direction, "matching": matching, "backend": backend}
    clean = heterogeneous_scores(*sides, *LENGTHS, **options)
    sides[0][0, 3, 2] = bad
    sides[1][1, 2, 5] = bad
    hit = torch.zeros(3, 4, dtype=torch.bool)
    hit[0, :] = True
    hit[:, 1] = True
    scores = heterogeneous_scores(*sides, *LENGTHS, **options)
    assert torch.equal(scores[~hit], clean[~hit])
    assert scores[hit].isnan().all()
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    listed = heterogeneous_scores(*sides, *LENGTHS, pairs=pairs, **options)
    assert torch.equal(listed.isnan(), hit.flatten())


@pytest.mark.parametrize(
    ("side", "kind", "backend"),
    [
        *itertools.product(("images", "captions"), ("padded", "packed"), BACKENDS),
        ("both", "padded", "torch"),
        ("images", "padded of no rows", "torch"),
        *(("pairs", "padded", backend) for backend in BACKENDS),
    ],
)
def test_nothing_has_no_scores_and_no_gradients(side: str, kind: str, backend: str) -> None:
    nothing: Any = (torch.zeros(0, 8), torch.tensor([0]))
    if kind != "packed":
        nothing = torch.zeros(0, 5 if kind == "padded" else 0, 8)
    regions, words = (side.requires_grad_() for side in make_sides())
    layer = HeterogeneousLayer(*(parameter.requires_grad_() for parameter in make_layers(1, 8)[0]))
    sides: list[Any] = [nothing if side in ("images", "both") else regions]
    sides.append(nothing if side in ("captions", "both") else words)
    pairs = torch.zeros(0, 2, dtype=torch.int64) if side == "pairs" else None
    scores = heterogeneous_scores(*sides, layers=[layer], pairs=pairs, backend=backend)
    shape = {"images": (0, 4), "captions": (3, 0), "both": (0, 0), "pairs": (0,)}[side]
    assert scores.shape == shape
    assert scores.dtype == torch.float32
    present = [*layer, *(side for side in sides if isinstance(side, Tensor) and side.requires_grad)]
    gradients = torch.autograd.grad(scores.sum(), present, materialize_grads=True)
    assert not any(gradient.any() for gradient in gradients)


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


def test_features_are_let_go_of_with_the_graph() -> None:
    """Though scores, and what they remember of their call, stay."""
    sides = make_sides()
    regions = sides[0].flatten(0, 1).numpy().copy()
    remembered = weakref.ref(regions)
    packed = torch.from_numpy(regions), torch.tensor([0, 5, 10, 15])
    scores = heterogeneous_scores(packed, sides[1].requires_grad_(), layers=make_layers(1, 8))
    scores.sum().backward()
    del regions, packed
    assert remembered() is None


# --- transforms


@pytest.mark.parametrize(("pairs", "direction"), [(None, "t2i"), (PAIRS, "i2t")], ids=["all", "pairs"])
def test_gradcheck(pairs: Tensor | None, direction: str) -> None:
    """First and second derivatives in features and parameters."""
    (regions, words), (layer,) = make_sides(4, torch.float64), make_layers(1, 4, torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (regions[:2, :2], words[:2, :3], layer.key_weight, layer.norm_bias)]
    pairs = pairs if pairs is None else pairs[:2] % 2

    def scores(regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        own = layer._replace(key_weight=weight, norm_bias=bias)
        return heterogeneous_scores(
            regions, words, [2, 1], [1, 3], layers=[own], heads=2, direction=direction, pairs=pairs, backend="torch"
        )

    assert gradcheck(scores, inputs, fast_mode=True)
    assert gradgradcheck(scores, inputs, fast_mode=True)


@directions
def test_gradcheck_of_attention(direction: str) -> None:
    sides, layers = make_sides(4, torch.float64), make_layers(1, 4, torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (*sides, *layers[0])]

    def outputs(regions: Tensor, words: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        return heterogeneous_attention_weights(
            regions, words, *LENGTHS, layers=[HeterogeneousLayer(*parameters)], heads=2, direction=direction,
            pairs=PAIRS, backend="torch",
        )  # fmt: skip

    assert gradcheck(outputs, inputs, fast_mode=True)


@backends
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_torch_func(pairs: Tensor | None, backend: str) -> None:
    sides, layers = make_sides(), make_layers(2, 8)

    def loss(*inputs: Tensor) -> Tensor:
        own = [HeterogeneousLayer(*inputs[2:]), layers[1]]
        scores = heterogeneous_scores(*inputs[:2], *LENGTHS, layers=own, pairs=pairs, backend=backend)
        return scores.square().sum()

    inputs = [tensor.clone().requires_grad_() for tensor in (*sides, *layers[0])]
    expected = torch.autograd.grad(loss(*inputs), inputs)
    gradients = torch.func.grad(loss, argnums=tuple(range(12)))(*sides, *layers[0])
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_autocast(pairs: Tensor | None, dtype: torch.dtype) -> None:
    """Features of two dtypes, as layers under autocast hand them on; products in its dtype, scores in float32."""
    sides = [side.requires_grad_() for side in make_sides()]
    layers = [HeterogeneousLayer(*(p.requires_grad_() for p in layer)) for layer in make_layers(2, 8)]
    inputs = [*sides, *layers[0], *layers[1]]
    with torch.autocast("cpu", dtype=dtype):
        scores = heterogeneous_scores(sides[0].to(dtype), sides[1], *LENGTHS, layers=layers, pairs=pairs)
    expected = heterogeneous_scores(*sides, *LENGTHS, layers=layers, pairs=pairs)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, expected, rtol=0, atol=0.1)
    for ours, theirs in zip(
        torch.autograd.grad(scores.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.1 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["scores of all", "relevances of pairs"])
def test_compiled(pairs: Tensor | None) -> None:
    sides, layers = make_sides(), make_layers(1, 8)
    lengths = [torch.tensor(side) for side in LENGTHS]

    def output(regions: Tensor) -> Tensor:
        options = {"layers": layers, "pairs": pairs, "backend": "torch"}
        if pairs is None:
            return heterogeneous_scores(regions, sides[1], *lengths, **options)
        return heterogeneous_attention_weights(regions, sides[1], *lengths, **options).relevances

    torch.compiler.reset()
    regions = sides[0].requires_grad_()
    results = torch.compile(output, fullgraph=True, backend="eager")(regions), output(regions)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(made.square().sum(), regions)[0] for made in results))


def test_compiled_calls_refuse_what_has_no_width() -> None:
    torch.compiler.reset()
    packed = (torch.zeros(5, 8), torch.tensor([0, 2, 5]))
    with pytest.raises(Exception, match="heterogeneous attention takes padded features inside"):
        torch.compile(heterogeneous_scores, fullgraph=True, backend="eager")(packed, packed, layers=make_layers(1, 8))


# --- mistakes


LAYERS = make_layers(2, 8)
OPTIONS_AND_MESSAGES: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"layers": None}, TypeError, "layers must be a sequence of HeterogeneousLayer, not NoneType"),
    ({"layers": LAYERS[0]}, TypeError, "layers must be a sequence of HeterogeneousLayer, not HeterogeneousLayer"),
    ({"layers": [LAYERS[0], tuple(LAYERS[1])]}, TypeError, "layers[1] must be a HeterogeneousLayer, not tuple"),
    (
        {"layers": [LAYERS[0], LAYERS[1]._replace(key_bias=None)]},
        TypeError,
        "layers[1].key_bias must be a (D,) tensor, not NoneType",
    ),
    (
        {"layers": [LAYERS[0]._replace(norm_bias=torch.ones(8).long())]},
        TypeError,
        "layers[0].norm_bias must be float32, float64, bfloat16 or float16, not torch.int64",
    ),
    (
        {"layers": [LAYERS[0]._replace(query_weight=torch.ones(8, 4))]},
        ValueError,
        "layers[0].query_weight must have shape (D, D) = (8, 8), got (8, 4)",
    ),
    (
        {"layers": [LAYERS[0]._replace(norm_weight=torch.ones(8, 8))]},
        ValueError,
        "layers[0].norm_weight must have shape (D,) = (8,), got (8, 8)",
    ),
    (
        {"layers": [LAYERS[0]._replace(output_bias=torch.ones(8, device="meta"))]},
        ValueError,
        "layers[0].output_bias is on meta but the features are on cpu",
    ),
    (
        {"layers": [LAYERS[0]._replace(output_bias=torch.ones(8).double())]},
        TypeError,
        "layers[0].output_bias is torch.float64 but the features are torch.float32",
    ),
    ({"heads": 3}, ValueError, "heads must divide D = 8, and 3 does not"),
    ({"heads": 0}, ValueError, "heads must be at least 1, not 0"),
    ({"heads": 2.0}, TypeError, "heads must be an integer, not float"),
    ({"heads": True}, TypeError, "heads must be an integer, not bool"),
    ({"lambda_attention": "1"}, TypeError, "lambda_attention must be a number, not str"),
    ({"lambda_attention": torch.inf}, ValueError, "lambda_attention must be a finite number"),
    ({"lambda_softmax": torch.nan}, ValueError, "lambda_softmax must be a finite number"),
    ({"lambda_lse": 0.0}, ValueError, "lambda_lse must be above 0"),
    ({"matching": "both"}, ValueError, "matching must be one of local, global, not 'both'"),
    ({"direction": "i2i"}, ValueError, "direction must be one of t2i, i2t"),
    ({"pooling": "mean"}, ValueError, "pooling must be one of lse, avg, sum, max"),
    ({"normalize": 1}, TypeError, "normalize must be True or False, not 1"),
    ({"pairs": torch.tensor([[0, 4]])}, ValueError, "pairs[0] names caption 4, but there are 4 captions"),
    ({"pairs": torch.tensor([0, 1])}, ValueError, "pairs must have shape (P, 2), got (2,)"),
    ({"region_lengths": [5, 0, 1]}, ValueError, "region_lengths[1] is 0: every image needs at least one row"),
    ({"backend": "numpy"}, ValueError, "backend must be one of cpu, triton, cuda, torch, reference, not 'numpy'"),
    ({"backend": "cpu"}, UnsupportedByBackend, "backend 'cpu' cannot serve this call: heterogeneous attention is made"),
    ({"backend": "cuda"}, UnsupportedByBackend, "backend 'cuda' cannot serve this call: heterogeneous attention"),
    ({"backend": "triton"}, UnsupportedByBackend, "backend 'triton' cannot serve this call: "),
)


@pytest.mark.parametrize(("options", "error", "message"), OPTIONS_AND_MESSAGES)
def test_mistakes_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        heterogeneous_scores(*make_sides(), **{"layers": LAYERS, **options})


def test_weights_of_all_pairs_are_not_kept() -> None:
    with pytest.raises(ValueError, match="heterogeneous_attention_weights takes pairs or candidates"):
        heterogeneous_attention_weights(*make_sides(), layers=LAYERS)


def test_sides_are_checked_together() -> None:
    regions, words = make_sides()
    with pytest.raises(ValueError, match="regions have D = 8 but words have D = 4"):
        heterogeneous_scores(regions, words[..., :4], layers=LAYERS)


def test_the_backend_may_be_named_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSRET_BACKEND", "reference")
    sides = make_sides(8, torch.float64)
    layers = make_layers(1, 8, torch.float64)
    named = heterogeneous_scores(*sides, layers=layers)
    assert torch.equal(named, heterogeneous_scores(*sides, layers=layers, backend="reference"))
