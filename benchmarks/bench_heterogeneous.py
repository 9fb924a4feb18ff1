"""HAN's layers and matching of a training batch: "cpu" and "torch" beside items concatenated pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Inputs
from benchmarks.checks import check_scores
from benchmarks.measure import Bench
from crossret_kernels import HeterogeneousLayer, heterogeneous_scores, triplet_loss

BATCH = Case(64, 64, dim=512, regions=(32, 32))
HEADS = 4
LAMBDA_SOFTMAX = 9.0
CAPTIONS = 8  # that the plain form takes at a time: more would need gigabytes
SAMPLE = 16  # items of either side in its training step, whose memory no such chunk bounds
NAMES = ("concatenated", "cpu", "torch")


@dataclass(frozen=True)
class LayeredInputs(Inputs):
    """Inputs of so many layers, which the floor of their times takes into account."""

    layers: int

    @classmethod
    def of(cls, inputs: Inputs, layers: int) -> LayeredInputs:
        return cls(*(getattr(inputs, field.name) for field in fields(Inputs)), layers)

    @property
    def flop(self) -> int:
        """Flop of the products that docs/kernels.md §3 leaves to each pair.

        Logits and values of each head across the pair in the first layer, whose output projection is then in the
        values; projections, logits and values of all rows in the others; cosines and attended vectors of the matching.
        """
        dim = self.regions.size(-1)
        rows = self.region_lengths[:, None] + self.word_lengths
        cells = int((self.region_lengths[:, None] * self.word_lengths).sum())
        first = 2 * cells * (1 + HEADS)
        others = 4 * int(rows.sum()) * dim + 2 * int(rows.square().sum())
        return 2 * dim * (first + (self.layers - 1) * others + 2 * cells)


def make_layers(count: int, dim: int) -> list[HeterogeneousLayer]:
    generator = torch.Generator().manual_seed(1)

    def parameter(name: str) -> Tensor:
        if name == "norm_weight":
            return torch.ones(dim)
        return torch.randn(*(dim,) * (2 if name.endswith("weight") else 1), generator=generator) / dim**0.5

    return [HeterogeneousLayer(*map(parameter, HeterogeneousLayer._fields)) for _ in range(count)]


def concatenated(inputs: Inputs, layers: list[HeterogeneousLayer]) -> Tensor:
    """t2i scores (n_images, n_captions) of images of one length, as HAN's formulas read."""
    columns = []
    v = F.normalize(inputs.regions, dim=-1)
    for captions, lengths in zip(inputs.words.split(CAPTIONS), inputs.word_lengths.split(CAPTIONS), strict=True):
        e = F.normalize(captions, dim=-1)
        count = len(v), len(e)
        h = torch.cat([v[:, None].expand(*count, -1, -1), e[None].expand(*count, -1, -1)], 2).flatten(0, 1)
        words = (torch.arange(e.size(1)) < lengths[:, None]).expand(*count, -1).flatten(0, 1)
        mask = F.pad(words, (v.size(1), 0), value=True)
        for layer in layers:
            h = _layer(h, mask, layer.to(h.dtype))
        h = F.normalize(h, dim=-1)
        regions, queries = h[:, : v.size(1)], h[:, v.size(1) :]
        weights = torch.softmax(LAMBDA_SOFTMAX * queries @ regions.mT, -1)
        relevance = torch.cosine_similarity(queries, weights @ regions, dim=-1)
        columns.append(((relevance * words).sum(1) / words.sum(1)).view(count))
    return torch.cat(columns, 1)


def _layer(h: Tensor, mask: Tensor, layer: HeterogeneousLayer) -> Tensor:
    projections = zip(layer[0:6:2], layer[1:6:2], strict=True)
    queries, *others = (F.linear(h, weight, bias) for weight, bias in projections)
    q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (queries, *others))
    weights = torch.softmax((q @ k.mT).masked_fill(~mask[:, None, None], -torch.inf), -1)
    attended = F.linear((weights @ v).transpose(1, 2).flatten(-2), layer.output_weight, layer.output_bias)
    return F.layer_norm(attended + queries, h.shape[-1:], layer.norm_weight, layer.norm_bias)


def scoring(name: str, inputs: Inputs, layers: list[HeterogeneousLayer]) -> Callable[[], Tensor]:
    if name == "concatenated":
        return partial(concatenated, inputs, layers)
    return partial(
        heterogeneous_scores, inputs.regions, inputs.words, word_lengths=inputs.word_lengths, layers=layers,
        heads=HEADS, lambda_softmax=LAMBDA_SOFTMAX, backend=name,
    )  # fmt: skip


def weighted(scores: Tensor) -> Tensor:
    return (torch.linspace(-1, 1, scores.numel()).view(scores.shape) * scores).sum()


dtypes = pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])


def make_inputs(case: Case, count: int, dtype: torch.dtype) -> tuple[Inputs, list[HeterogeneousLayer]]:
    return case.inputs().to(dtype), [layer.to(dtype) for layer in make_layers(count, case.dim)]


@dtypes
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_forward(bench: Bench, name: str, count: int, dtype: torch.dtype) -> None:
    case = bench.size(BATCH)
    inputs, layers = make_inputs(case, count, dtype)
    if name == "concatenated":
        inputs = inputs.first(len(inputs.regions), SAMPLE)
    bench.describe(f"HAN forward, {count} layers", case, dtype, name)
    call = torch.no_grad()(scoring(name, inputs, layers))
    check = partial(check_scores, inputs=inputs, oracle=partial(concatenated, layers=layers))
    bench.measure(LayeredInputs.of(inputs, count), call, check)


@dtypes
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_training_step(bench: Bench, name: str, count: int, dtype: torch.dtype) -> None:
    case = bench.size(BATCH)
    inputs, layers = make_inputs(case, count, dtype)
    if name == "concatenated":
        inputs = inputs.first(SAMPLE, SAMPLE)

    def step(name: str, inputs: Inputs, loss: Callable[[Tensor], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
        leaves = [inputs.regions.requires_grad_(), inputs.words.requires_grad_()]
        own = [
            HeterogeneousLayer(*(parameter.to(leaves[0].dtype, copy=True).requires_grad_() for parameter in layer))
            for layer in layers
        ]
        leaves += [parameter for layer in own for parameter in layer]
        call = scoring(name, inputs, own)
        return lambda: torch.autograd.grad(loss(call()), leaves)

    def slopes(name: str, inputs: Inputs) -> Tensor:
        # Gradients of all pairs: rounding may make another negative the hardest.
        return torch.cat([x.flatten().double() for x in step(name, inputs, weighted)()])

    checked = inputs.first(4, 4)
    expected = slopes("concatenated", checked.to(torch.float64))
    error = (slopes(name, checked) - expected).norm() / expected.norm()
    assert error < (1e-4 if dtype == torch.float32 else 0.1)
    bench.describe(f"HAN training step, {count} layers", case, dtype, name)
    bench.measure(LayeredInputs.of(inputs, count), step(name, inputs, triplet_loss), training=True)
