"""SMAN's pairwise step of a training batch, forward alone and with the hardest-negative loss and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks.cases import Case, Inputs
from benchmarks.checks import check_scores
from benchmarks.measure import Bench
from crossret_kernels import AttentionStep, GatedAttention, gated_attention_scores, triplet_loss

BATCH = Case(128, 128, dim=512, regions=(49, 49))
LEVELS = 2
# "einsum" makes the hidden states (n_images, n_captions, M, D) of all pairs: 1.6 GB of a whole batch.
IMPLEMENTATIONS = {"einsum": "reference", "torch": "torch"}
MOST_CAPTIONS = {"einsum": 16}


@dataclass(frozen=True)
class GatedInputs(Inputs):
    """Features with the context vectors of the levels before and the parameters."""

    region_contexts: Tensor
    word_contexts: Tensor
    parameters: GatedAttention

    @classmethod
    def of(cls, case: Case) -> GatedInputs:
        """Parameters whose logits are of order 1, everything D wide."""
        inputs, dim = case.inputs(), case.dim
        generator = torch.Generator().manual_seed(1)

        def make(*shape: int, scale: float = dim**-0.5) -> Tensor:
            return torch.randn(*shape, generator=generator) * scale

        steps = [
            AttentionStep(make(dim, dim, scale=1), make(dim), make(dim, dim), make(dim), make(dim)) for _ in range(2)
        ]
        gates = [part for _ in range(2) for part in (make(dim, dim), make(dim))]
        parameters = GatedAttention(*gates, *steps, make(dim, dim, scale=1), make(dim))
        contexts = [make(count, LEVELS, dim, scale=1) for count in (case.n_images, case.n_captions)]
        return cls(*(getattr(inputs, field.name) for field in fields(inputs)), *contexts, parameters)

    @property
    def flop(self) -> int:
        """Flop of W_q o of either side, the one product that cannot be made once an item."""
        return 2 * 2 * self.pairs * self.words.size(-1) ** 2

    def first(self, n_images: int, n_captions: int) -> GatedInputs:
        return self.pick(torch.arange(n_images), torch.arange(n_captions))

    def pick(self, images: Tensor, captions: Tensor) -> GatedInputs:
        contexts = self.region_contexts[images], self.word_contexts[captions]
        return self._with(super().pick(images, captions), *contexts, self.parameters)

    def to(self, dtype: torch.dtype) -> GatedInputs:
        contexts = self.region_contexts.to(dtype), self.word_contexts.to(dtype)
        return self._with(super().to(dtype), *contexts, self.parameters.to(dtype))

    def _with(self, inputs: Inputs, *others: object) -> GatedInputs:
        return GatedInputs(inputs.regions, inputs.region_lengths, inputs.words, inputs.word_lengths, *others)

    def leaves(self) -> tuple[Tensor, ...]:
        tensors = (self.regions, self.words, self.region_contexts, self.word_contexts, *self.parameters.flat())
        return tuple(tensor.requires_grad_() for tensor in tensors)


def gated(name: str, inputs: GatedInputs) -> Tensor:
    return gated_attention_scores(
        inputs.regions, inputs.words, inputs.region_lengths, inputs.word_lengths,
        region_contexts=inputs.region_contexts, word_contexts=inputs.word_contexts, parameters=inputs.parameters,
        backend=IMPLEMENTATIONS[name],
    )  # fmt: skip


def sample(name: str, inputs: GatedInputs) -> GatedInputs:
    """All captions, or the first that the named implementation takes on in a call."""
    n_captions = len(inputs.words)
    return inputs.first(len(inputs.regions), min(n_captions, MOST_CAPTIONS.get(name, n_captions)))


def training_step(name: str, inputs: GatedInputs) -> Callable[[], tuple[Tensor, ...]]:
    """Gradients in features, context vectors and parameters; the loss is of the pairs that belong together."""
    leaves, n = inputs.leaves(), len(inputs.words)

    def step() -> tuple[Tensor, ...]:
        scores = gated(name, inputs)
        losses = [triplet_loss(block) for block in scores.split(n) if len(block) == n]
        return torch.autograd.grad(torch.stack(losses).sum(), leaves)

    return step


dtypes = pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])


@dtypes
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_forward(bench: Bench, name: str, dtype: torch.dtype) -> None:
    case = bench.size(BATCH)
    inputs = sample(name, GatedInputs.of(case).to(dtype))
    check = partial(check_scores, inputs=inputs, oracle=partial(gated, "einsum"))
    bench.describe("gated attention forward", case, dtype, name)
    bench.measure(inputs, partial(gated, name, inputs), check)


@dtypes
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_training_step(bench: Bench, name: str, dtype: torch.dtype) -> None:
    case = bench.size(BATCH)
    inputs = GatedInputs.of(case).to(dtype)
    checked = inputs.first(min(16, case.n_images), min(16, case.n_captions))
    expected = training_step("einsum", checked.to(torch.float64))()
    gradients = training_step(name, checked)()
    for gradient, right in zip(gradients, expected, strict=True):
        error = (gradient - right).norm() / right.norm()
        assert error < (1e-4 if dtype == torch.float32 else 5e-2)
    inputs = sample(name, inputs)
    bench.describe("gated attention training step", case, dtype, name)
    bench.measure(inputs, training_step(name, inputs), training=True)
