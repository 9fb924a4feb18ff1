"""What `heterogeneous_scores` guarantees: chunks, layouts, items, transforms, mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    HeterogeneousLayer,
    UnsupportedByBackend,
    heterogeneous_scores,
)
from crossret_kernels.heterogeneous_attention import pairs as pairs_module
from crossret_kernels.heterogeneous_attention import torch as heterogeneous_in_torch
from crossret_kernels.padded import items
from tests.kernels.heterogeneous_attention.calls import LENGTHS, PAIRS, make_layers, make_sides
from tests.kernels.threads import by_any_threads
from tests.kernels.told import told
from tests.kernels.tolerance import cpu_isa, score_weights

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
    for chunk, shared in ((21000, 24000), (1, 1)):  # of two to four items or pairs, and of one
        monkeypatch.setattr(pairs_module, "CHUNK_BYTES", chunk)
        monkeypatch.setattr(heterogeneous_in_torch, "SHARED_BYTES", shared)
        for ours, theirs in zip(gradients_of(call, [*sides, *parameters]), whole, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("live", [0, 1, 2])
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_scores_without_gradients_do_not_show(backend: str, live: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few pairs that have one, or of none, gradients are made of these alone; of NaN too."""
    layers, scores_of = make_layers(2, 8), []

    def call(inputs: list[Tensor]) -> Tensor:
        own = [HeterogeneousLayer(*inputs[first : first + 10]) for first in (2, 12)]
        scores_of.append(heterogeneous_scores(*inputs[:2], *LENGTHS, layers=own, backend=backend))
        return scores_of[-1][1 : 1 + live, 2:3]

    inputs = [*make_sides(), *(parameter for layer in layers for parameter in layer)]
    few = gradients_of(call, inputs)
    monkeypatch.setattr(items, "FEW", len(scores_of[0]) * 100)
    torch.testing.assert_close(few, gradients_of(call, inputs), rtol=1e-4, atol=1e-4)
    monkeypatch.undo()
    leaf = inputs[0].requires_grad_()
    scores = call([leaf, *inputs[1:]])
    gradient = torch.autograd.grad(scores, leaf, torch.full_like(scores, torch.nan))[0]
    assert [bool(item.isnan().any()) for item in gradient] == [False, live > 0, live > 1]


@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_products_of_bfloat16(pairs: Tensor | None) -> None:
    """Of bfloat16 features, and under autocast: near the scores in float32, and others."""
    layers, sides = make_layers(2, 8), make_sides(dtype=torch.bfloat16)

    def scores(*given: Tensor, backend: str = "cpu") -> Tensor:
        return heterogeneous_scores(*given, *LENGTHS, layers=layers, pairs=pairs, backend=backend)

    exact = scores(*sides, backend="torch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = scores(*(side.float() for side in sides))
    for rounded in (scores(*sides), cast):
        assert not torch.equal(rounded, exact)
        torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
@pytest.mark.parametrize("backend", [None, "torch"])
def test_zero_rows_have_finite_gradients(pairs: Tensor | None, backend: str | None) -> None:
    """Zero features, and a layer that makes zero vectors of all."""
    sides = [side.clone() for side in make_sides()]
    sides[0][0] = 0
    sides[1][2] = 0
    layer = make_layers(1, 8)[0]
    for own in (layer, layer._replace(norm_weight=torch.zeros(8), norm_bias=torch.zeros(8))):
        results = gradients_of(
            lambda inputs, own=own: heterogeneous_scores(*inputs, *LENGTHS, layers=[own], pairs=pairs, backend=backend),
            sides,
        )
        assert all(result.isfinite().all() for result in results)
    assert not results[0].any()


# --- kernels


def results_of(backend: str, kept: float = 1.0, **options: Any) -> list[Tensor]:
    """Scores of several blocks and chunks, and the gradients of features and layer by a part of them."""
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(n, length, 40, generator=generator) for n, length in ((20, 7), (50, 9))]
    lengths = [torch.randint(1, n + 1, (c,), generator=generator) for n, c in ((7, 20), (9, 50))]
    part = torch.rand(20, 50, generator=generator) < kept

    def call(inputs: list[Tensor]) -> Tensor:
        layer = HeterogeneousLayer(*inputs[2:])
        return part * heterogeneous_scores(*inputs[:2], *lengths, layers=[layer], backend=backend, **options)

    return gradients_of(call, [*sides, *make_layers(1, 40)[0]])


def assert_close(found: list[Tensor], expected: list[Tensor], unit: float) -> None:
    largest = max(float(x.abs().max()) for x in expected[3:])  # the key's bias has a gradient of rounding alone
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        scale = max(largest if place > 2 else 0.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours, theirs, rtol=unit, atol=unit * scale)


@pytest.mark.parametrize(
    "options",
    [{}, {"matching": "global"}, {"direction": "i2t", "pooling": "lse", "heads": 1}, {"kept": 0.1}, {"kept": 0.0}],
)
def test_kernels_make_what_torch_makes_of_many_blocks(options: dict[str, Any]) -> None:
    assert_close(results_of("cpu", **options), results_of("torch", **options), 1e-4)


@pytest.mark.parametrize(
    ("local", "bfloat16", "isa"),
    [(True, False, None), (True, True, None), (True, True, "amx_emulated"), (False, False, None)],
)
def test_number_of_threads_and_neighbours_do_not_show(local: bool, bfloat16: bool, isa: str | None) -> None:
    given = [local if x is True else x for x in operands(40, 70)]
    given[-1] = bfloat16

    def results() -> list[Tensor]:
        scores = torch.ops.crossret.heterogeneous_attention(*given)
        return [scores, *torch.ops.crossret.heterogeneous_attention_backward(scores, *given, *[True] * 12)]

    with cpu_isa(isa):
        scores = by_any_threads(results)[0]
        alone = [x[5 * (place > 5) + 30 : 5 * (place > 5) + 31] if place < 12 else x for place, x in enumerate(given)]
        assert torch.equal(torch.ops.crossret.heterogeneous_attention(*alone), scores[30:31, 35:36])


@pytest.mark.parametrize(
    ("count", "listed", "regions", "dim"), [(1, False, 36, 256), (1, True, 7, 12), (2, False, 7, 12), (2, True, 7, 12)]
)
def test_gradients_are_the_same_at_every_run(count: int, listed: bool, regions: int, dim: int) -> None:
    """By one to three threads, of many pairs of the same items; what PyTorch makes of other sizes may differ."""
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(n, rows, dim, generator=generator) for n, rows in ((20, regions), (24, 9))]
    pairs = torch.cartesian_prod(torch.arange(20), torch.arange(24)) if listed else None

    def call(inputs: list[Tensor]) -> Tensor:
        layers = [HeterogeneousLayer(*inputs[2 + 10 * k : 12 + 10 * k]) for k in range(count)]
        return heterogeneous_scores(*inputs[:2], layers=layers, pairs=pairs, backend="cpu")

    inputs = [*sides, *(parameter for layer in make_layers(count, dim) for parameter in layer)]
    by_any_threads(lambda: gradients_of(call, inputs), (1, 2, 2, 3, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_under_autocast(dtype: torch.dtype) -> None:
    exact = results_of("torch")
    with torch.autocast("cpu", dtype=dtype):
        results = results_of("cpu")
    assert results[0].dtype == torch.float32
    assert_close(results, exact, 0.05)
    assert not torch.equal(results[0], exact[0])


def test_what_kernels_refuse() -> None:
    sides = make_sides()

    def scores(regions: Tensor, backend: str | None = "cpu", count: int = 1, **options: Any) -> Tensor:
        layers = [layer.to(regions.dtype) for layer in make_layers(count, 8)]
        words = sides[1].to(regions.dtype)
        return heterogeneous_scores(regions, words, layers=layers, backend=backend, **options)

    leaf = sides[0].clone().requires_grad_()
    for refused, reason in (
        (lambda backend: scores(leaf.double(), backend), "not torch.float64"),
        (lambda backend: torch.func.grad(lambda x: scores(x, backend).sum())(leaf), "torch.func's transforms take is"),
    ):
        with pytest.raises(UnsupportedByBackend, match=reason):
            refused("cpu")
        assert torch.equal(refused(None), refused("torch"))
    # Second derivatives are torch's, whoever made the scores, and of listed pairs where torch makes them.
    for count in (1, 2):
        twice = []
        for backend in ("cpu", "torch"):
            (slope,) = torch.autograd.grad(scores(leaf, backend, count).square().sum(), leaf, create_graph=True)
            twice.append(torch.autograd.grad(slope.square().sum(), leaf)[0])
        torch.testing.assert_close(twice[0], twice[1], rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="second derivatives are served by backend='torch'"):
        (slope,) = torch.autograd.grad(scores(leaf, pairs=PAIRS).sum(), leaf, create_graph=True)
        torch.autograd.grad(slope.square().sum(), leaf)


def operands(n_images: int = 2, n_captions: int = 3) -> list[Any]:
    """What the operation takes."""
    generator = torch.Generator().manual_seed(2)
    made: list[Any] = []
    for n, rows in ((n_images, 4), (n_captions, 5)):
        shapes = (n, rows, 2, 3), (n, rows, 2, 3), (n, rows, 2, 6), (n, rows, 2), (n, rows, 3, 6)
        made += [torch.randn(shape, generator=generator) for shape in shapes] + [torch.arange(n) % 3 + 2]
    return [*made, torch.ones(6), torch.zeros(6), 1.0, True, 0, 9.0, 1, 6.0, False]


@pytest.mark.parametrize("local", [True, False])
def test_opcheck(local: bool) -> None:
    given = [local if x is True else x for x in operands()]
    given[-1] = not local
    leaves = [x.requires_grad_() for x in given if isinstance(x, Tensor) and x.is_floating_point()]
    torch.library.opcheck(torch.ops.crossret.heterogeneous_attention.default, tuple(given))
    plain = [x.detach() if isinstance(x, Tensor) else x for x in given]
    wanted = [index % 2 == 0 for index in range(len(leaves))]
    torch.library.opcheck(
        torch.ops.crossret.heterogeneous_attention_backward.default, (torch.ones(2, 3), *plain, *wanted)
    )


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (0, torch.zeros(2, 4, 6), "region_queries must be float32 on the CPU, .items, rows"),
        (2, torch.zeros(2, 4, 2, 5), "region_values must be float32 on the CPU, of the shape"),
        (5, torch.tensor([2, 5]), "region_lengths: item 1 has length 5 of 4 rows"),
        (5, torch.tensor([2, 0]), "region_lengths: item 1 has length 0 of 4 rows"),
        (5, torch.tensor([2]), "region_lengths must have one number for each of 2 items"),
        (6, torch.zeros(3, 5, 3, 2), "word_queries must have as many heads"),
        (13, torch.zeros(6).double(), "norm_bias must be float32"),
        (16, 2, "unknown direction 2"),
    ],
)
def test_direct_calls_with_bad_operands_raise(place: int, bad: Any, message: str) -> None:
    given = operands()
    given[place] = bad
    with pytest.raises(RuntimeError, match=message):
        torch.ops.crossret.heterogeneous_attention(*given)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.crossret.heterogeneous_attention_backward(torch.zeros(2, 3), *given, *[True] * 12)


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
test_mistakes_are_named = told(
    lambda options: heterogeneous_scores(*make_sides(), **{"layers": LAYERS, **options}),
    {case[-1]: case for case in OPTIONS_AND_MESSAGES},
)
