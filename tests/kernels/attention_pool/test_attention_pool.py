"""`attention_pool` against its formula in NumPy: layouts, precision, gradients, mistakes, torch.compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from crossret_kernels import UnsupportedByBackend, attention_pool, attention_pool_weights
from crossret_kernels.attention_pool import torch as pool_in_torch
from tests.kernels.strategies import examples
from tests.kernels.told import told
from tests.kernels.tolerance import EPS

LAYOUTS = ("padded", "packed", "list")
HALVES = (torch.bfloat16, torch.float16)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def poolings(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
    """Padded values and logits, and the items' lengths."""
    lengths = draw(st.lists(st.sampled_from((1, 2, 7, 16)), min_size=1, max_size=6))
    width = max(lengths) + draw(st.integers(0, 2))
    dim = draw(st.sampled_from((1, 3, 16, 70, 133)))
    heads = draw(st.sampled_from((1, 2, 3, 4, 5, 8, 12, 13, 33)))
    scale = draw(st.sampled_from((0.0, 1.0, 300.0)))
    return randn(len(lengths), width, dim), scale * randn(len(lengths), width, heads, seed=1), lengths


def laid_out(values: Tensor, logits: Tensor, lengths: list[int], layout: str) -> tuple[Any, ...]:
    if layout == "padded":
        return values, logits, lengths
    sides = [[item[:length] for item, length in zip(side, lengths, strict=True)] for side in (values, logits)]
    if layout == "list":
        return tuple(sides)
    return (torch.cat(sides[0]), torch.tensor([0, *np.cumsum(lengths)])), torch.cat(sides[1])


def by_hand(values: Tensor, logits: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Item by item, head by head, in NumPy."""
    n, width, dim = values.shape
    heads = logits.size(2)
    pooled, weights = np.zeros((n, heads, dim)), np.zeros((n, heads, width))
    for item, length in enumerate(lengths):
        for head in range(heads):
            a = logits[item, :length, head].numpy()
            exponentials = np.exp(a - a.max())
            weights[item, head, :length] = exponentials / exponentials.sum()
            pooled[item, head] = (weights[item, head, :length, None] * values[item, :length].numpy()).sum(0)
    return torch.from_numpy(pooled), torch.from_numpy(weights)


IN_TORCH = ("torch", "reference")
backends = pytest.mark.parametrize("backend", IN_TORCH)
VALUES, LOGITS, LENGTHS = randn(4, 5, 6), 3 * randn(4, 5, 2, seed=1), [5, 1, 3, 4]


@pytest.fixture(params=[32 * 2**20, 500], ids=["one chunk", "many chunks"])
def workspace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_in_torch, "WORKSPACE_BYTES", request.param)


@examples(15)
@given(
    batch=poolings(), dtype=st.sampled_from((torch.float64, torch.float32, *HALVES)), layout=st.sampled_from(LAYOUTS)
)
def test_follows_the_formula(batch: tuple[Tensor, Tensor, list[int]], dtype: torch.dtype, layout: str) -> None:
    values, logits, lengths = batch
    width = values.size(1) if layout == "padded" else max(lengths)
    values, logits = values[:, :width].to(dtype), logits[:, :width].to(dtype)
    expected = by_hand(values.double(), logits.double(), lengths)
    arguments = laid_out(values, logits, lengths, layout)
    unit = 1e-14 if dtype == torch.float64 else 64 * EPS
    for backend in IN_TORCH:
        outputs = attention_pool_weights(*arguments, backend=backend)
        for ours, true in zip(outputs, expected, strict=True):
            assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            torch.testing.assert_close(ours.double(), true, rtol=unit, atol=unit)
        assert torch.equal(attention_pool(*arguments, backend=backend), outputs[0])


@pytest.mark.usefixtures("workspace")
@backends
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(layout: str, backend: str) -> None:
    """Of both results; padding gets no gradient."""
    values, logits = VALUES.clone().requires_grad_(), LOGITS.clone().requires_grad_()

    def outputs(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return attention_pool_weights(*laid_out(x, a, LENGTHS, layout), backend=backend)

    assert gradcheck(outputs, (values, logits), fast_mode=True)
    for gradient in torch.autograd.grad([x.square().sum() for x in outputs(values, logits)], (values, logits)):
        for item, length in zip(gradient, LENGTHS, strict=True):
            assert not item[length:].any()


@pytest.mark.usefixtures("workspace")
@backends
def test_nan_stays_in_its_item_and_padding_is_never_read(backend: str) -> None:
    def results(values: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
        """Both results, and the gradients of the sums of their squares."""
        leaves = values.clone().requires_grad_(), logits.clone().requires_grad_()
        outputs = attention_pool_weights(*leaves, LENGTHS, backend=backend)
        return *outputs, *torch.autograd.grad([x.square().sum() for x in outputs], leaves)

    clean = results(VALUES, LOGITS)
    for value in (torch.nan, torch.inf):
        padded = [side.clone() for side in (VALUES, LOGITS)]
        for side in padded:
            for item, length in zip(side, LENGTHS, strict=True):
                item[length:] = value
        torch.testing.assert_close(results(*padded), clean, rtol=0, atol=0)
        for place in range(2):
            sides = [side.clone() for side in padded]
            sides[place][2, 1, 0] = torch.nan
            outputs = results(*sides)
            assert outputs[0][2].isnan().any()
            for ours, theirs in zip(outputs, clean, strict=True):
                assert torch.equal(ours[[0, 1, 3]], theirs[[0, 1, 3]])


@backends
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_no_items(layout: str, backend: str) -> None:
    values, logits = (torch.zeros(0, dim).requires_grad_() for dim in (6, 2))
    arguments = ((values, torch.tensor([0])), logits) if layout == "packed" else (values[None][:0], logits[None][:0])
    pooled, weights = attention_pool_weights(*arguments, backend=backend)
    assert pooled.shape == (0, 2, 6)
    assert weights.shape == (0, 2, 1)
    for gradient in torch.autograd.grad(pooled.sum() + weights.sum(), (values, logits)):
        assert gradient.shape[0] == 0


PACKED = laid_out(VALUES, LOGITS, LENGTHS, "packed")
LISTED = laid_out(VALUES, LOGITS, LENGTHS, "list")

ERRORS: tuple[tuple[str, tuple[Any, ...], type[Exception], str], ...] = (
    ("empty item", (VALUES, LOGITS, [5, 0, 1, 1]), ValueError, "lengths[1] is 0: every item needs at least one row"),
    ("lengths of packed", (*PACKED, [1]), ValueError, "lengths goes with padded values only"),
    ("no logits", (VALUES, None), TypeError, "logits must be a (n, L, r) tensor, not NoneType"),
    ("logits of other rows", (VALUES, LOGITS[:, :4]), ValueError, "logits must have shape (n, L, r) = (4, 5, 2), got"),
    ("no heads", (VALUES, LOGITS[..., :0]), ValueError, "logits has r = 0"),
    ("float32 logits", (VALUES, LOGITS.float()), TypeError, "logits is torch.float32 but values are torch.float64"),
    ("packed logits", (PACKED[0], LOGITS), ValueError, "logits must have shape (rows, r) = (13, 2), got (4, 5, 2)"),
    ("listed rows", (LISTED[0], LISTED[1][::-1]), ValueError, "logits[0] must have shape (L, r) = (5, 2), got (4, 2)"),
    ("heads", (LISTED[0], [*LISTED[1][:3], LISTED[1][3][:, :1]]), ValueError, "logits[3] has r = 1 but logits[0]"),
)
test_mistakes_are_named = told(lambda given: attention_pool(*given), {name: case for name, *case in ERRORS})


def test_logits_may_be_wider_or_narrower_than_values() -> None:
    """Gradients come in their dtypes."""
    for values, logits in ((torch.bfloat16, torch.float32), (torch.float32, torch.float16)):
        leaves = VALUES.to(values).requires_grad_(), LOGITS.to(logits).requires_grad_()
        pooled = attention_pool(*leaves, LENGTHS)
        assert pooled.dtype == torch.float32
        torch.testing.assert_close(pooled, attention_pool(*leaves, LENGTHS, backend="torch"))
        assert [x.dtype for x in torch.autograd.grad(pooled.sum(), leaves)] == [values, logits]


def test_the_cpu_has_no_kernels_of_it() -> None:
    with pytest.raises(UnsupportedByBackend, match="in PyTorch operations, by 'torch' and 'reference'"):
        attention_pool(VALUES.float(), LOGITS.float(), backend="cpu")


def test_compiles_once_for_all_sizes() -> None:
    torch.compiler.reset()
    compiled = torch.compile(attention_pool_weights, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, width, dim, heads in ((5, 7, 9, 3), (6, 8, 11, 4), (9, 13, 17, 5)):
        leaves = randn(n, width, dim).float().requires_grad_(), randn(n, width, heads).float().requires_grad_()
        lengths = torch.arange(n) % width + 1
        results = []
        for function in (compiled, attention_pool_weights):
            with torch.compiler.set_stance("default" if n == 5 else "fail_on_recompile"):
                made = function(*leaves, lengths)
            results.append((*made, *torch.autograd.grad([x.square().sum() for x in made], leaves)))
        torch.testing.assert_close(*results)
