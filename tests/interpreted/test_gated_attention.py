"""`gated_attention_scores` by backend "triton" against SMAN's equations: scores, gradients, parts, opcheck."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, gated_attention_scores
from crossret_kernels.gpu.tuning import GatedTuning
from tests.every_two import every_two
from tests.interpreted.programs import ORDERS, programs_share_nothing
from tests.kernels.gated_attention.batches import GatedBatch, gated_batches, gated_parameters
from tests.kernels.strategies import examples
from tests.kernels.tolerance import EPS, gradient_bounds, score_weights


@pytest.fixture(autouse=True, scope="module")
def sizes() -> Iterator[None]:
    """Small tiles, so that a few items take several of everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatedTuning, "ROWS", 16)
        patch.setattr(GatedTuning, "COLUMNS", 16)
        patch.setattr(GatedTuning, "tile", lambda *_: (16, 32, 16))
        yield


def run(batch: GatedBatch, backend: str, layout: str = "padded") -> tuple[Tensor, ...]:
    """Scores, and the gradients of their weighted sum."""
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in batch.tensors)
    arguments, keywords = batch.having(leaves).call(layout)
    scores = gated_attention_scores(*arguments, **keywords, backend=backend)
    return scores.detach(), *torch.autograd.grad((scores * score_weights(scores.shape).to(scores)).sum(), leaves)


def drawn(n_images: int, n_captions: int, longest: tuple[int, int], dims: tuple[int, ...]) -> GatedBatch:
    """Of D_v, D, G and hidden units of either side."""
    generator = torch.Generator().manual_seed(0)
    shapes = (n_images, longest[0], dims[0]), (n_captions, longest[1], dims[1])
    shapes += ((n_images, 2, dims[1]), (n_captions, 2, dims[1]))
    tensors = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    tensors += [x.double() for x in gated_parameters(*dims, generator=generator).flat()]
    lengths = [torch.arange(n) % most + 1 for n, most in zip((n_images, n_captions), longest, strict=True)]
    return GatedBatch(tuple(tensors), lengths[0], lengths[1], 0.9, None)


def check(batch: GatedBatch, dtype: torch.dtype, layout: str) -> None:
    """At most twice what eager float32 loses, three times of gradients, and a few units in the last place."""
    batch = batch.to(dtype)
    truth, eager = (run(batch.to(kind), "reference") for kind in (torch.float64, torch.float32))
    for place, (ours, other, true) in enumerate(zip(run(batch, "triton", layout), eager, truth, strict=True)):
        loss = float((other.double() - true).abs().max())
        size = max(1.0, float(true.abs().max()))
        bounds = gradient_bounds(true, (3 if place else 2) * loss + 64 * EPS * size, dtype if place else torch.float32)
        assert bool(((ours.double() - true).abs() <= bounds).all())


@examples(5)
@given(
    batch=gated_batches(),
    dtype=st.sampled_from((torch.float32, torch.float16)),
    layout=st.sampled_from(("padded", "packed", "list")),
)
def test_scores_and_gradients_are_those_of_the_equations(batch: GatedBatch, dtype: torch.dtype, layout: str) -> None:
    check(replace(batch, pairs=None), dtype, layout)


@pytest.mark.parametrize(
    ("order", "many_parts", "shape"),
    every_two(ORDERS, [False, True], [((5, 20), (6, 8, 7, 5, 33)), ((35, 3), (9, 40, 33, 40, 4))]),
    indirect=["order"],
)
def test_programs_share_nothing(
    many_parts: bool, shape: tuple[tuple[int, int], tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several tiles and blocks of everything; a number of pairs alone would not show who adds what to whom."""
    if many_parts:
        monkeypatch.setattr(GatedTuning, "WORKSPACE_BYTES", 20_000)
    assert GatedTuning.ROWS == 16
    longest, dims = shape
    with programs_share_nothing():
        check(drawn(3, 18, longest, dims), torch.float32, "padded")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN in the interpreter
def test_nan_stays_in_its_items_scores() -> None:
    batch = drawn(3, 4, (5, 6), (6, 8, 7, 5, 4)).to(torch.float32)
    clean = run(batch, "triton")[0]
    for place in range(4):
        tensors = [x.clone() for x in batch.tensors]
        tensors[place][1, 0, 0] = torch.nan
        found = run(batch.having(tuple(tensors)), "triton")[0]
        own = torch.zeros_like(found, dtype=torch.bool)
        own[(1, slice(None)) if place % 2 == 0 else (slice(None), 1)] = True
        assert found[own].isnan().all()
        assert torch.equal(found[~own], clean[~own])


def test_no_items_and_what_is_refused() -> None:
    batch = drawn(2, 3, (3, 4), (3, 4, 5, 6, 7)).to(torch.float32)
    none = batch.having((batch.tensors[0][:0], batch.tensors[1], batch.tensors[2][:0], *batch.tensors[3:]))
    arguments, keywords = none.call()
    assert gated_attention_scores(arguments[0], arguments[1], **keywords, backend="triton").shape == (0, 3)
    arguments, keywords = batch.call()
    keywords["pairs"] = torch.tensor([[0, 1]])
    with pytest.raises(UnsupportedByBackend, match="its kernels do not make this; 'torch' does"):
        gated_attention_scores(*arguments, **keywords, backend="triton")


def test_opcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    sides = [
        (*(torch.randn(*shape, generator=generator) for shape in ((n, rows, hidden), (n, rows, 6), (n, 7))),
         torch.arange(n * rows).view(n, rows) % 3 < 2)
        for n, rows, hidden in ((2, 5, 4), (3, 4, 9))
    ]  # fmt: skip
    parameters = [torch.randn(*shape, generator=generator) for shape in ((4, 7), (4,), (9, 7), (9,), (6,))]
    arguments = [*sides[0], *sides[1], *parameters]
    grads = torch.randn(2, 3, generator=generator)
    wanted = [place % 2 == 0 for place in range(11)]
    operation = torch.ops.crossret.gated_attention_triton_backward.default
    torch.library.opcheck(operation, (grads, *arguments, None, 0.9, False, *wanted))
    for x in arguments:
        x.requires_grad_(x.dtype == torch.float32)
    torch.library.opcheck(torch.ops.crossret.gated_attention_triton.default, (*arguments, None, 0.9, False))
