"""Calls of `heterogeneous_scores` as its tests make them: layers, sides, and what hypothesis draws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import HeterogeneousLayer, heterogeneous_scores
from tests.kernels.strategies import DIRECTIONS, POOLINGS, Features, features
from tests.kernels.tolerance import score_weights

BACKENDS = ("torch", "reference")
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
        regions=batch.regions[:2, :17],
        words=batch.words[:3, :9],
        region_lengths=batch.region_lengths[:2].clamp(max=17),
        word_lengths=batch.word_lengths[:3].clamp(max=9),
        pairs=None if batch.pairs is None else batch.pairs[:6] % torch.tensor(
            [min(2, len(batch.regions)), min(3, len(batch.words))]
        ),
    )  # fmt: skip


# A layer normalisation of fewer features moves with next to nothing.
DIMS = (8, 16, 17, 31, 64)


@st.composite
def calls(draw: st.DrawFn, dims: tuple[int, ...] = DIMS, **arguments: Any) -> Call:
    batch = cut(draw(features(dims=dims, **arguments)))
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
