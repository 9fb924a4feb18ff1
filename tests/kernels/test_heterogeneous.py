"""`heterogeneous_scores` against HAN's formulas, its float64 oracle and itself: layouts, chunks, items, mistakes."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from crossret_kernels import HeterogeneousLayer, UnsupportedByBackend, heterogeneous_scores, scan_scores
from crossret_kernels.heterogeneous_attention import chunked
from crossret_kernels.heterogeneous_attention import pairs as pairs_module
from tests.kernels import oracle
from tests.kernels.strategies import DIRECTIONS, IN_HALF_RANGE, POOLINGS, Features, examples, features
from tests.kernels.tolerance import EPS, score_weights

BACKENDS = ("torch", "reference")
backends = pytest.mark.parametrize("backend", BACKENDS)
directions = pytest.mark.parametrize("direction", DIRECTIONS)
PAIRS = torch.tensor([[2, 1], [0, 0], [2, 3], [1, 1], [2, 1]])
LENGTHS = ([5, 1, 4], [6, 3, 1, 2])


def make_layers(count: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[HeterogeneousLayer]:
    generator = torch.Generator().manual_seed(seed)

    def parameter(name: str) -> Tensor:
        if name == "norm_weight":
            return 1 + 0.2 * torch.randn(dim, generator=generator, dtype=torch.float64)
        if name.endswith("bias"):
            return 0.2 * torch.randn(dim, generator=generator, dtype=torch.float64)
        return 0.7 * torch.randn(dim, dim, generator=generator, dtype=torch.float64) / dim**0.5

    return [
        HeterogeneousLayer(*(parameter(name).float().to(dtype) for name in HeterogeneousLayer._fields))
        for _ in range(count)
    ]


def make_sides(dim: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    return (
        torch.randn(3, 5, dim, generator=generator, dtype=torch.float64).to(dtype),
        torch.randn(4, 6, dim, generator=generator, dtype=torch.float64).to(dtype),
    )


@dataclass(frozen=True)
class Call:
    """Features, layers and options of a call."""

    batch: Features
    layers: list[HeterogeneousLayer]
    options: dict[str, Any]

    def arguments(self, layout: str = "padded") -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.batch.arguments(layout), {"layers": self.layers, "pairs": self.batch.pairs, **self.options}

    def to(self, dtype: torch.dtype, parameters: torch.dtype | None = None) -> Call:
        return replace(
            self, batch=self.batch.to(dtype), layers=[layer.to(parameters or dtype) for layer in self.layers]
        )

    def reordered(self, order: Tensor) -> Call:
        """The same call over dimensions in another order, which keeps the heads apart."""
        return replace(
            self,
            batch=replace(self.batch, regions=self.batch.regions[..., order], words=self.batch.words[..., order]),
            layers=[HeterogeneousLayer(*(reordered(parameter, order) for parameter in layer)) for layer in self.layers],
        )

    def evaluate(self, backend: str) -> list[Tensor]:
        """Scores, and the gradients of their weighted sum in features and parameters, as float64."""
        inputs = [self.batch.regions, self.batch.words, *(parameter for layer in self.layers for parameter in layer)]
        inputs = [tensor.clone().requires_grad_() for tensor in inputs]
        width = len(HeterogeneousLayer._fields)
        layers = [HeterogeneousLayer(*inputs[2 + width * k : 2 + width * (k + 1)]) for k in range(len(self.layers))]
        scores = heterogeneous_scores(
            *inputs[:2], *self.batch.lengths, layers=layers, pairs=self.batch.pairs, backend=backend, **self.options
        )
        gradients = torch.autograd.grad((scores * score_weights(scores.shape).to(scores)).sum(), inputs)
        assert all(ours.dtype == tensor.dtype for ours, tensor in zip(gradients, inputs, strict=True))
        return [tensor.detach().double() for tensor in (scores, *gradients)]


def reordered(parameter: Tensor, order: Tensor) -> Tensor:
    return parameter[order] if parameter.dim() == 1 else parameter[order][:, order]


def cut(batch: Features) -> Features:
    """A corner of a batch: the layers of every pair are many times the work of its cosines."""
    return replace(
        batch,
        regions=batch.regions[:3, :17, :64],
        words=batch.words[:3, :9, :64],
        region_lengths=batch.region_lengths[:3].clamp(max=17),
        word_lengths=batch.word_lengths[:3].clamp(max=9),
        pairs=None if batch.pairs is None else batch.pairs[:6] % torch.tensor(
            [min(3, len(batch.regions)), min(3, len(batch.words))]
        ),
    )  # fmt: skip


@st.composite
def calls(draw: st.DrawFn, **arguments: Any) -> Call:
    batch = cut(draw(features(**arguments)))
    dim = batch.regions.size(-1)
    heads = draw(st.sampled_from([heads for heads in (1, 2, 4, 5) if dim % heads == 0]))
    options = {
        "heads": heads,
        "lambda_attention": draw(st.sampled_from((1.0, 1.0, 0.0, 0.3, -0.5))),
        "matching": draw(st.sampled_from(("local", "local", "global"))),
        "direction": draw(st.sampled_from(DIRECTIONS)),
        "lambda_softmax": draw(st.sampled_from((9.0, 9.0, 0.0, 4.0, -3.0))),
        "pooling": draw(st.sampled_from(POOLINGS)),
        "lambda_lse": draw(st.sampled_from((0.1, 6.0, 20.0))),
        "normalize": draw(st.booleans()),
    }
    layers = make_layers(draw(st.integers(1, 3)), dim, torch.float64, draw(st.integers(0, 2**32)))
    return Call(batch, layers, options)


def well_posed(call: Call) -> bool:
    """Whether rounding moves the result but little.

    No layer normalisation of next to nothing, no ties, no logits in the hundreds, no attended vector that vanishes.
    """
    wild = not call.options["normalize"] and call.batch.kind in ("large", "below the cosine's floor")
    return call.batch.regions.size(-1) > 3 and not wild and call.options["pooling"] != "max"


def check(call: Call, dtype: torch.dtype) -> None:
    """Errors of "torch" are at most twice what eager loses in float32, three times in gradients."""
    call = call.to(dtype, torch.float32).to(torch.float64)
    truth = call.evaluate("reference")
    dim, heads = call.batch.regions.size(-1), call.options["heads"]
    losses = [0.0] * len(truth)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        inside = torch.randperm(dim // heads, generator=generator)
        order = (torch.arange(heads)[:, None] * (dim // heads) + inside).flatten()
        scores, *gradients = call.reordered(order).to(torch.float32).evaluate("reference")
        back = order.argsort()
        restored = [gradient[..., back] for gradient in gradients[:2]]
        restored += [reordered(gradient, back) for gradient in gradients[2:]]
        for place, (ours, true) in enumerate(zip((scores, *restored), truth, strict=True)):
            losses[place] = max(losses[place], float((ours - true).abs().max()))
    result = call.to(dtype, torch.float32).evaluate("torch")
    largest = max(1.0, *(float(gradient.abs().max()) for gradient in truth[3:]))
    for place, (ours, true) in enumerate(zip(result, truth, strict=True)):
        # A few units in the last place of what is summed up, which eager may avoid by luck.
        scale = max(float(true.abs().max()), largest if place > 2 else 1.0, 1 / call.options["lambda_lse"])
        floor = 32 * EPS * scale + (torch.finfo(dtype).eps * scale if 0 < place < 3 and dtype != torch.float32 else 0)
        error = float((ours - true).abs().max())
        bound = (3 if place else 2) * losses[place] + floor
        name = ("scores", "regions.grad", "words.grad", *HeterogeneousLayer._fields * len(call.layers))[place]
        assert error <= bound, f"{name} are off by {error:.3g}, more than {bound:.3g}"


@examples(15)
@given(call=calls())
def test_float32(call: Call) -> None:
    assume(well_posed(call))
    check(call, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@examples(8)
@given(call=calls(degeneracies=IN_HALF_RANGE))
def test_half_precision_features(dtype: torch.dtype, call: Call) -> None:
    assume(well_posed(call))
    check(call, dtype)


@examples(15)
@given(call=calls())
def test_torch_is_exact_in_float64(call: Call) -> None:
    assume(well_posed(call))
    for ours, true in zip(call.evaluate("torch"), call.evaluate("reference"), strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-6, atol=1e-8 * max(1.0, float(true.abs().max())))


# --- the paper, one pair and one row at a time


def attended_by_hand(
    regions: NDArray[np.float64], words: NDArray[np.float64], call: Call
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """HAN §3.2 in loops: the rows of one image and one caption after the layers."""
    h = [row for row in (*regions, *words)]
    if call.options["normalize"]:
        h = [row / np.linalg.norm(row) if np.linalg.norm(row) else row for row in h]
    for layer in call.layers:
        wq, bq, wk, bk, wv, bv, wo, bo, gain, shift = (parameter.double().numpy() for parameter in layer)
        q, k, v = ([w @ row + b for row in h] for w, b in ((wq, bq), (wk, bk), (wv, bv)))
        size = len(bq) // call.options["heads"]
        rows = []
        for query in q:
            heads = []
            for first in range(0, len(bq), size):
                part = slice(first, first + size)
                logits = np.array([call.options["lambda_attention"] * (query[part] @ key[part]) for key in k])
                weights = np.exp(logits - logits.max())
                heads.append(sum(w * value[part] for w, value in zip(weights / weights.sum(), v, strict=True)))
            row = wo @ np.concatenate(heads) + bo + query
            rows.append(gain * (row - row.mean()) / np.sqrt(row.var() + 1e-5) + shift)
        h = rows
    return np.array(h[: len(regions)]), np.array(h[len(regions) :])


@examples(20)
@given(call=calls(), layout=st.sampled_from(("padded", "packed", "list")))
def test_it_follows_the_paper(call: Call, layout: str) -> None:
    assume(call.batch.regions.size(-1) < 32 and well_posed(call))
    batch, options = call.batch, call.options
    pairs = batch.pairs
    if pairs is None:
        pairs = torch.cartesian_prod(torch.arange(len(batch.regions)), torch.arange(len(batch.words))).view(-1, 2)
    arguments, keywords = call.arguments(layout)
    scores = {backend: heterogeneous_scores(*arguments, backend=backend, **keywords).flatten() for backend in BACKENDS}
    keywords["pairs"] = pairs
    local = options["matching"] == "local"
    attention = {
        backend: heterogeneous_scores(*arguments, backend=backend, return_attention=True, **keywords)
        for backend in BACKENDS
        if local
    }
    for place, (image, caption) in enumerate(pairs.tolist()):
        v = batch.regions[image, : batch.region_lengths[image]].numpy()
        e = batch.words[caption, : batch.word_lengths[caption]].numpy()
        v, e = attended_by_hand(v, e, call)
        matching = {"raw_feature_norm": "no_norm", "clip_slope": 0.0, "normalize": True}
        matching |= {name: options[name] for name in ("direction", "lambda_softmax")}
        weights, relevances = oracle.scan_attention(v, e, **matching)
        cosine = float(v[0] @ e[0] / (np.linalg.norm(v[0]) * np.linalg.norm(e[0])))
        expected = oracle.pooled(relevances, options["pooling"], options["lambda_lse"]) if local else cosine
        for backend in BACKENDS:
            assert float(scores[backend][place]) == pytest.approx(expected, rel=1e-7, abs=1e-8)
            if local:
                own, ours, theirs = (output[place] for output in attention[backend])
                assert float(own) == pytest.approx(expected, rel=1e-7, abs=1e-8)
                for padded, true in ((ours, weights), (theirs, relevances)):
                    full = np.zeros(padded.shape)
                    full[tuple(slice(n) for n in true.shape)] = true
                    np.testing.assert_allclose(padded.numpy(), full, rtol=1e-6, atol=1e-7)


# --- no layers


@directions
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
def test_without_layers_it_is_scan(pairs: Tensor | None, backend: str | None, direction: str) -> None:
    regions, words = make_sides(7)  # which no number of heads needs to divide
    options = {"direction": direction, "lambda_softmax": 5.0, "pooling": "lse", "pairs": pairs, "backend": backend}
    ours = heterogeneous_scores(regions, words, *LENGTHS, layers=[], normalize=False, lambda_lse=3.0, **options)
    theirs = scan_scores(
        regions, words, *LENGTHS, raw_feature_norm="no_norm", normalize=True, lambda_lse=3.0, **options
    )
    assert torch.equal(ours, theirs)


def test_without_layers_it_has_scans_attention() -> None:
    regions, words = make_sides()
    ours = heterogeneous_scores(regions, words, *LENGTHS, layers=(), pairs=PAIRS, return_attention=True)
    theirs = scan_scores(
        regions, words, *LENGTHS, raw_feature_norm="no_norm", normalize=True, pairs=PAIRS, return_attention=True
    )
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("layout", ["padded", "packed", "list"])
@pytest.mark.parametrize("backend", [None, "torch", "reference"])
def test_without_layers_the_global_matching_is_a_cosine(backend: str | None, layout: str) -> None:
    regions, words = make_sides()
    batch = Features(regions, words, torch.tensor(LENGTHS[0]), torch.tensor(LENGTHS[1]), None)
    scores = heterogeneous_scores(*batch.arguments(layout), layers=[], matching="global", backend=backend)
    expected = torch.cosine_similarity(regions[:, None, 0], words[None, :, 0], dim=-1)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)


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
        pytest.param(2, torch.cartesian_prod(torch.arange(4), torch.arange(5)).flip(0), "local", id="pairs"),
        pytest.param(1, None, "global", id="one layer, global"),
    ],
)
def test_chunks_and_groups_do_not_show(
    count: int, pairs: Tensor | None, matching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(3)
    sides = [torch.randn(n, length, 8, generator=generator) for n, length in ((4, 7), (5, 10))]
    lengths = [torch.randint(1, n + 1, (c,), generator=generator) for n, c in ((7, 4), (10, 5))]
    layers = make_layers(count, 8)
    parameters = [parameter for layer in layers for parameter in layer]

    def call(inputs: list[Tensor]) -> Tensor:
        width = len(HeterogeneousLayer._fields)
        own = [HeterogeneousLayer(*inputs[2 + width * k : 2 + width * (k + 1)]) for k in range(count)]
        return heterogeneous_scores(*inputs[:2], *lengths, layers=own, pairs=pairs, matching=matching, backend="torch")

    whole = gradients_of(call, [*sides, *parameters])
    assert whole[0].shape == ((4, 5) if pairs is None else (20,))
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


@directions
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["all", "pairs"])
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
        return heterogeneous_scores(
            regions, words, *LENGTHS, layers=[HeterogeneousLayer(*parameters)], heads=2, direction=direction,
            pairs=PAIRS, return_attention=True, backend="torch",
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
        options = {"layers": layers, "pairs": pairs, "return_attention": pairs is not None, "backend": "torch"}
        made = heterogeneous_scores(regions, sides[1], *lengths, **options)
        return made if pairs is None else made[2]

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
    ({"return_attention": 1}, TypeError, "return_attention must be True or False, not 1"),
    ({"return_attention": True}, ValueError, "return_attention takes pairs: the weights of all pairs are not kept"),
    (
        {"return_attention": True, "pairs": PAIRS, "matching": "global"},
        ValueError,
        "return_attention takes the local matching",
    ),
    ({"pairs": torch.tensor([[0, 4]])}, ValueError, "pairs[0] names caption 4, but there are 4 captions"),
    ({"pairs": torch.tensor([0, 1])}, ValueError, "pairs must have shape (P, 2), got (2,)"),
    ({"region_lengths": [5, 0, 1]}, ValueError, "region_lengths[1] is 0: every image needs at least one row"),
    ({"backend": "numpy"}, ValueError, "backend must be one of cpu, triton, cuda, torch, reference, not 'numpy'"),
    ({"backend": "cpu"}, UnsupportedByBackend, "backend 'cpu' cannot serve this call: heterogeneous attention is made"),
    ({"backend": "cuda"}, UnsupportedByBackend, "backend 'cuda' cannot serve this call: these kernels are not built"),
    ({"backend": "triton"}, UnsupportedByBackend, "backend 'triton' cannot serve this call: "),
)


@pytest.mark.parametrize(("options", "error", "message"), OPTIONS_AND_MESSAGES)
def test_mistakes_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        heterogeneous_scores(*make_sides(), **{"layers": LAYERS, **options})


def test_sides_are_checked_together() -> None:
    regions, words = make_sides()
    with pytest.raises(ValueError, match="regions have D = 8 but words have D = 4"):
        heterogeneous_scores(regions, words[..., :4], layers=LAYERS)


def test_the_backend_may_be_named_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSRET_BACKEND", "cpu")
    with pytest.raises(UnsupportedByBackend, match="cannot serve this call: heterogeneous attention"):
        heterogeneous_scores(*make_sides(), layers=LAYERS)
    monkeypatch.setenv("CROSSRET_BACKEND", "reference")
    sides = make_sides(8, torch.float64)
    layers = make_layers(1, 8, torch.float64)
    named = heterogeneous_scores(*sides, layers=layers)
    assert torch.equal(named, heterogeneous_scores(*sides, layers=layers, backend="reference"))
