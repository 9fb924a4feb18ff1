"""What pages promise of bits and errors, of every operation at a usual size; other tests draw sizes and options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    GatedAttention,
    HeterogeneousLayer,
    attention_pool,
    gated_attention_scores,
    heterogeneous_scores,
    info,
    infonce_loss,
    maxsim_scores,
    scan_attend,
    scan_scores,
    sigmoid_loss,
    triplet_loss,
)
from crossret_kernels.backends import BACKENDS
from crossret_kernels.gated_attention.reference import gated_attention_reference
from crossret_kernels.inputs.call import as_sides
from crossret_kernels.promises import BITS, DIGITS, GRADIENTS, OPERATIONS, RESULTS, unit_of
from tests.kernels.gated_attention.batches import gated_parameters
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.threads import by_any_threads
from tests.kernels.tolerance import ISAS, cpu_isa, gradient_bounds

SERVED = [
    (operation, backend)
    for names, backends in info.OPERATIONS.items()
    for operation in OPERATIONS
    if operation in names
    for backend in ("torch", *(ISAS if "cpu" in backends else ()))
]

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
IMAGES, CAPTIONS, REGIONS, WORDS, DIM = 3, 4, 16, 7, 64


class Case(NamedTuple):
    """An operation at a usual size: what it is of, in float64, and how it is called; ``eager``, where it is another."""

    inputs: Callable[[], list[Tensor]]
    call: Callable[..., Any]
    eager: Callable[..., Any] | None = None


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _sides() -> list[Tensor]:
    return [_randn(IMAGES, REGIONS, DIM), _randn(CAPTIONS, WORDS, DIM, seed=1)]


def _scores() -> list[Tensor]:
    return [_randn(60, 60) * 0.1 + 0.2 * torch.eye(60)]


def _gated() -> list[Tensor]:
    parameters = gated_parameters(DIM, DIM, 16, 24, 24, torch.Generator().manual_seed(0))
    contexts = [_randn(n, 2, DIM, seed=n) for n in (IMAGES, CAPTIONS)]
    return [*_sides(), *contexts, *(parameter.double() for parameter in parameters.flat())]


def _gated_scores(regions: Tensor, words: Tensor, *others: Tensor, backend: str) -> Tensor:
    parameters = GatedAttention.of(others[2:])
    contexts = {"region_contexts": others[0], "word_contexts": others[1]}
    return gated_attention_scores(regions, words, **contexts, parameters=parameters, alpha=0.9, backend=backend)


def _gated_eager(regions: Tensor, words: Tensor, *others: Tensor) -> Tensor:
    """The formulas, everything in the inputs' dtype."""
    sides = as_sides(regions, words, None, None, None, None, None, same_dim=False)
    return gated_attention_reference(*sides, *others[:2], GatedAttention.of(others[2:]), 0.9, None)[0]


def _heterogeneous() -> list[Tensor]:
    return [*_sides(), *(parameter.double() for layer in make_layers(1, DIM) for parameter in layer)]


def _heterogeneous_scores(regions: Tensor, words: Tensor, *layer: Tensor, backend: str) -> Tensor:
    return heterogeneous_scores(regions, words, layers=[HeterogeneousLayer(*layer)], heads=4, backend=backend)


CASES = {
    "scan_scores": Case(_sides, scan_scores),
    "maxsim_scores": Case(_sides, partial(maxsim_scores, normalize=True)),
    "scan_attend": Case(_sides, partial(scan_attend, pairs=torch.tensor([[0, 1], [2, 3], [1, 0]]))),
    "gated_attention_scores": Case(_gated, _gated_scores, _gated_eager),
    "heterogeneous_scores": Case(_heterogeneous, _heterogeneous_scores),
    "attention_pool": Case(lambda: [_randn(6, 30, DIM), _randn(6, 30, 4, seed=1)], attention_pool),
    "triplet_loss": Case(_scores, partial(triplet_loss, negatives="softmax")),
    "infonce_loss": Case(_scores, partial(infonce_loss, scale=10.0)),
    "sigmoid_loss": Case(_scores, partial(sigmoid_loss, scale=10.0, bias=-10.0)),
}


def results_of(operation: str, dtype: torch.dtype, given: list[Tensor], backend: str) -> list[Tensor]:
    """The result, and the gradients of its weighted sum by all that it is of."""
    leaves = [leaf.to(dtype, copy=True).requires_grad_() for leaf in given]
    case = CASES[operation]
    if backend == "reference" and case.eager is not None:
        made = case.eager(*leaves)
    else:
        made = case.call(*leaves, backend=backend)
    made = made[0] if isinstance(made, tuple) else made
    weights = (1 + torch.arange(made.numel()) % 8 / 8).view_as(made)  # exact in every dtype
    return [made.detach(), *torch.autograd.grad((made * weights.to(made)).sum(), leaves)]


def given_to(operation: str, dtype: torch.dtype) -> list[Tensor]:
    """Inputs in float64 of values that the dtype holds."""
    return [leaf.to(dtype).double() for leaf in CASES[operation].inputs()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("operation", "backend"), SERVED)
def test_errors_are_within_what_is_promised(operation: str, dtype: torch.dtype, backend: str) -> None:
    isa, backend = (None, "torch") if backend == "torch" else (backend, "cpu")
    unit, given = unit_of(operation, backend, dtype), given_to(operation, dtype)
    truth = results_of(operation, torch.float64, given, "reference")
    eager = results_of(operation, unit, given, "reference")
    with cpu_isa(isa):
        ours = results_of(operation, dtype, given, backend)
    for place, (true, rounded, made) in enumerate(zip(truth, eager, ours, strict=True)):
        size = max(1.0, float(true.abs().max()))
        lost = (GRADIENTS if place else RESULTS) * float((rounded.double() - true).abs().max())
        bounds = gradient_bounds(true, lost + DIGITS * torch.finfo(unit).eps * size, made.dtype)
        assert bool(((made.double() - true).abs() <= bounds).all()), f"number {place} of what is made"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("operation", "backend"), SERVED)
def test_bits_are_those_that_are_promised(operation: str, dtype: torch.dtype, backend: str) -> None:
    isa, backend = (None, "torch") if backend == "torch" else (backend, "cpu")
    given, counts = given_to(operation, dtype), (1, 2, 2, 3) if BITS[backend].threads else (2, 2)
    with cpu_isa(isa):
        by_any_threads(lambda: results_of(operation, dtype, given, backend), counts)


def test_every_backend_and_operation_is_promised_something() -> None:
    assert {name for names in info.OPERATIONS for name in names} >= {*OPERATIONS} == {*CASES}
    assert {*BITS} == {*BACKENDS} - {"reference"}
