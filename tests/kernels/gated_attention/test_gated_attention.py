"""`gated_attention_scores` against SMAN's equations: scores, attention, gradients, layouts, checks and transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, gated_attention_scores, gated_attention_weights
from crossret_kernels.gated_attention import torch as gated_in_torch
from crossret_kernels.gated_attention.reference import gated_attention_reference
from crossret_kernels.inputs.call import as_sides
from crossret_kernels.promises import GRADIENTS, RESULTS
from tests.kernels.gated_attention.batches import GatedBatch, gated_batches, gated_parameters, paper_score
from tests.kernels.strategies import examples
from tests.kernels.told import told
from tests.kernels.tolerance import EPS, gradient_bounds, score_weights

BACKENDS = ("torch", "reference")
every_backend = pytest.mark.parametrize("backend", BACKENDS)
listed = pytest.mark.parametrize("pairs", [None, torch.tensor([[2, 1], [0, 0], [2, 1], [1, 3]])], ids=["all", "pairs"])


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Few items and few pairs at a time, so that small batches take many blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gated_in_torch, "ITEM_BYTES", 4000)
        patch.setattr(gated_in_torch, "PAIR_BYTES", 4000)
        yield


def batch(pairs: Tensor | None = None, dtype: torch.dtype = torch.float64) -> GatedBatch:
    """Three images and four captions."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 5, 6), (4, 6, 8), (3, 2, 8), (4, 2, 8))
    tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
    tensors += gated_parameters(6, 8, 7, 5, 4, generator).flat()
    lengths = torch.tensor([5, 1, 4]), torch.tensor([6, 3, 1, 2])
    return GatedBatch(tuple(tensor.to(dtype) for tensor in tensors), *lengths, 0.9, pairs)


def run(
    batch: GatedBatch, layout: str = "padded", function: Callable[..., Any] = gated_attention_scores, **options: Any
) -> tuple[Tensor, ...]:
    """What the function returns, and the gradients of all under fixed weights."""
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in batch.tensors)
    arguments, keywords = batch.having(leaves).call(layout)
    outputs = function(*arguments, **(keywords | options))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = torch.stack([(x * score_weights(x.shape).to(x)).sum() for x in outputs]).sum()
    return *(x.detach() for x in outputs), *torch.autograd.grad(total, leaves)


def assert_close(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], tolerance: float = 1e-9) -> None:
    for one, other in zip(ours, theirs, strict=True):
        size = float(other.detach().abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(1.0, size))


# --- the equations


@examples(12)
@given(batch=gated_batches(), layout=st.sampled_from(("padded", "packed", "list")))
def test_scores_and_attention_follow_the_paper(batch: GatedBatch, layout: str) -> None:
    arguments, keywords = batch.call(layout)
    expected = [paper_score(batch, *pair) for pair in batch.listed().tolist()]
    true = torch.tensor([score for score, _, _ in expected], dtype=torch.float64)
    for backend in BACKENDS:
        scores = gated_attention_scores(*arguments, **keywords, backend=backend)
        torch.testing.assert_close(scores.flatten(), true, rtol=1e-9, atol=1e-9)
        keywords["pairs"] = batch.listed()
        alone, *weights = gated_attention_weights(*arguments, **keywords, backend=backend)
        torch.testing.assert_close(alone, true, rtol=1e-9, atol=1e-9)
        for side, made in enumerate(weights):
            lengths = (batch.region_lengths, batch.word_lengths)[side]
            width = batch.tensors[side].size(1) if layout == "padded" else int(lengths.max())
            assert made.shape == (len(true), width)
            for row, ours in zip(expected, made, strict=True):
                padded = torch.zeros(width, dtype=torch.float64)
                padded[: len(row[1 + side])] = torch.from_numpy(row[1 + side])
                torch.testing.assert_close(ours, padded, rtol=1e-9, atol=1e-12)
        keywords["pairs"] = batch.pairs


def eager(regions: Tensor, words: Tensor, *lengths: Any, pairs: Tensor | None, backend: str, **given: Any) -> Tensor:
    """The formulas, everything in the inputs' dtype."""
    images, captions = as_sides(regions, words, *lengths, None, None, None, same_dim=False)
    contexts = given["region_contexts"], given["word_contexts"]
    return gated_attention_reference(images, captions, *contexts, given["parameters"], given["alpha"], pairs)[0]


def nudged(batch: GatedBatch, kind: torch.dtype, seed: int) -> GatedBatch:
    """Every number up or down by half a unit in the last place of a type."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.finfo(kind).eps / 2
    tensors = [x * (1 + unit * (2 * torch.randint(2, x.shape, generator=generator) - 1)) for x in batch.tensors]
    return batch.having(tuple(tensors))


@examples(15)
@given(batch=gated_batches(), dtype=st.sampled_from((torch.float32, torch.float32, torch.bfloat16, torch.float16)))
def test_precision(batch: GatedBatch, dtype: torch.dtype) -> None:
    """Twice what eager float32 loses, three times of gradients, and some last digits.

    Gradients are summed in float32 and rounded once. Where eager loses little by luck, what counts is how far results
    move with all inputs by half a unit in the last place.
    """
    batch = batch.to(dtype)
    wide = batch.to(torch.float64)
    truth, ours = run(wide, backend="reference"), run(batch, backend="torch")
    assert ours[0].dtype == torch.float32
    others = [run(batch.to(torch.float32), function=eager, backend="")]
    others += [run(nudged(wide, torch.float32, seed), backend="reference") for seed in range(2)]
    for place, (one, true) in enumerate(zip(ours, truth, strict=True)):
        if place and batch.tensors[1].size(-1) == 1:  # cosines of single numbers are ±1: all they have is rounding
            assert bool(one.isfinite().all())
            continue
        size = max(1.0, float(true.abs().max()))
        loss = max(float((result[place].double() - true).abs().max()) for result in others)
        lost = (GRADIENTS if place else RESULTS) * loss + 64 * EPS * size
        bounds = gradient_bounds(true, lost, dtype if place else torch.float32)
        assert bool(((one.double() - true).abs() <= bounds + 64 * EPS).all())
        if size > 1:  # halved, left out, turned round: seen
            assert all(bool(((factor * true - true).abs() > bounds).any()) for factor in (0.5, 0.0, -1.0))


@examples(15)
@given(batch=gated_batches(), attention=st.booleans(), layout=st.sampled_from(("padded", "packed", "list")))
def test_blocks_and_their_gradients_are_the_formulas(batch: GatedBatch, attention: bool, layout: str) -> None:
    options: dict[str, Any] = {"pairs": batch.listed(), "function": gated_attention_weights} if attention else {}
    ours, theirs = (run(batch, layout, backend=backend, **options) for backend in BACKENDS)
    assert ours[0].dtype == torch.float64
    assert_close(ours, theirs, 1e-8)


@every_backend
def test_zero_vectors_have_a_cosine_of_zero_and_no_gradient(backend: str) -> None:
    whole = batch(dtype=torch.float32)
    tensors = [torch.zeros_like(tensor) if place < 4 else tensor for place, tensor in enumerate(whole.tensors)]
    zero = whole.having((*tensors[:-1], torch.zeros_like(tensors[-1])))
    scores, *gradients = run(zero, backend=backend)
    assert not scores.any()
    for gradient in gradients:
        assert not gradient.any()


@pytest.mark.parametrize("live", [0, 1, 2])
def test_scores_without_gradients_do_not_show(live: int) -> None:
    """Of few pairs that have one, or of none, gradients are made of these alone."""

    def few(*arguments: Any, **options: Any) -> Tensor:
        return gated_attention_scores(*arguments, **options)[:live, 2:3]

    ours, theirs = (run(batch(), function=few, backend=backend) for backend in BACKENDS)
    assert_close(ours, theirs)


@listed
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_only_the_wanted_gradients_are_made(pairs: Tensor | None, dtype: torch.dtype) -> None:
    """By "torch", and of all pairs in float32 by kernels."""
    own = batch(pairs, dtype)
    whole = run(own)[1:]
    for place in (0, 1, 3, 6, 10, 15, 19):
        tensors = [tensor.clone() for tensor in own.tensors]
        tensors[place].requires_grad_()
        arguments, keywords = own.having(tuple(tensors)).call()
        scores = gated_attention_scores(*arguments, **keywords)
        (scores * score_weights(scores.shape)).sum().backward()
        assert torch.equal(tensors[place].grad, whole[place])
        assert all(tensor.grad is None for index, tensor in enumerate(tensors) if index != place)


def test_no_kernels_make_it() -> None:
    arguments, keywords = batch(dtype=torch.float32).call()
    keywords["pairs"] = torch.tensor([[0, 1]])
    for function in (gated_attention_scores, gated_attention_weights):
        with pytest.raises(UnsupportedByBackend, match="gated attention is made in PyTorch operations, by 'torch'"):
            function(*arguments, **keywords, backend="cpu")


# --- mistakes


def altered(**changes: Any) -> Callable[[], dict[str, Any]]:
    return lambda: changes


def with_parameter(name: str, value: Any) -> Callable[[], dict[str, Any]]:
    parameters = batch().parameters
    step, _, field = name.rpartition(".")
    changed = {name: value} if not step else {step: getattr(parameters, step)._replace(**{field: value})}
    return lambda: {"parameters": parameters._replace(**changed)}


B = batch()
ERRORS: tuple[tuple[str, Callable[[], dict[str, Any]], type[Exception], str], ...] = (
    ("alpha", altered(alpha=1.5), ValueError, "alpha must lie in 0..1, not 1.5"),
    ("pair", altered(pairs=torch.tensor([[0, 4]])), ValueError, "pairs[0] names caption 4, but there are 4 captions"),
    ("length", altered(region_lengths=[5, 0, 1]), ValueError, "region_lengths[1] is 0: every image needs"),
    ("D_v", altered(regions=B.tensors[0][..., :5]), ValueError,
     "parameters.region_step.key_weight must have shape (H, D_v) = (5, 5), got (5, 6)"),
    ("contexts", altered(region_contexts=B.tensors[2][:2]), ValueError,
     "region_contexts must have shape (n_images, K, D) = (3, 2, 8), got (2, 2, 8)"),
    ("levels", altered(word_contexts=B.tensors[3][:, :1]), ValueError,
     "word_contexts must have shape (n_captions, K, D) = (4, 2, 8), got (4, 1, 8)"),
    ("float32 contexts", altered(word_contexts=B.tensors[3].float()), TypeError,
     "word_contexts is torch.float32 but words are torch.float64: float64 takes float64"),
    ("parameters", altered(parameters=tuple(B.parameters)), TypeError, "parameters must be a GatedAttention"),
    ("a step", altered(parameters=B.parameters._replace(word_step=tuple(B.parameters.word_step))), TypeError,
     "parameters.word_step must be an AttentionStep, not tuple"),
    ("head", with_parameter("word_step.head_weight", torch.zeros(1, 4).double()), ValueError,
     "parameters.word_step.head_weight must have shape (H,) = (4,), got (1, 4)"),
    ("embedding", with_parameter("embedding_weight", torch.zeros(8, 6)), TypeError,
     "parameters.embedding_weight is torch.float32 but regions are torch.float64"),
)  # fmt: skip


def score(changes: Callable[[], dict[str, Any]]) -> Tensor:
    arguments, keywords = batch().call()
    names = ("regions", "words", "region_lengths", "word_lengths")
    return gated_attention_scores(**dict(zip(names, arguments, strict=True)) | keywords | changes())


test_mistakes_are_named = told(score, {name: case for name, *case in ERRORS})
