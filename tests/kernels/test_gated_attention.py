"""`gated_attention_scores` against SMAN's equations: scores, attention, gradients, layouts, checks and transforms."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from crossret_kernels import GatedAttention, UnsupportedByBackend, gated_attention_scores, gated_attention_weights
from crossret_kernels.gated_attention import chunked
from tests.kernels.gated import GatedBatch, gated_batches, gated_parameters, paper_score
from tests.kernels.strategies import examples
from tests.kernels.tolerance import EPS, gradient_bounds, score_weights

BACKENDS = ("torch", "reference")
backends = pytest.mark.parametrize("backend", BACKENDS)
listed = pytest.mark.parametrize("pairs", [None, torch.tensor([[2, 1], [0, 0], [2, 1], [1, 3]])], ids=["all", "pairs"])


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Few items and few pairs at a time, so that small batches take many blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "ITEM_BYTES", 4000)
        patch.setattr(chunked, "PAIR_BYTES", 4000)
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


@examples(15)
@given(batch=gated_batches(), dtype=st.sampled_from((torch.float32, torch.float32, torch.bfloat16, torch.float16)))
def test_precision(batch: GatedBatch, dtype: torch.dtype) -> None:
    """Twice what eager float32 loses, three times of gradients, and a floor of a few units in the last place.

    Gradients are summed in float32 and rounded once.
    """
    batch = batch.to(dtype)
    truth = run(batch.to(torch.float64), backend="reference")
    eager = run(batch.to(torch.float32), backend="reference")
    ours = run(batch, backend="torch")
    assert ours[0].dtype == torch.float32
    for place, (one, other, true) in enumerate(zip(ours, eager, truth, strict=True)):
        loss = float((other.double() - true).abs().max())
        size = max(1.0, float(true.abs().max()))
        bounds = gradient_bounds(true, (3 if place else 2) * loss + 64 * EPS * size, dtype if place else torch.float32)
        assert bool(((one.double() - true).abs() <= bounds).all())
        if float(true.abs().max()) > 1e-3 * size:  # a gradient halved, left out or turned round would be seen
            assert all(bool(((factor * true - true).abs() > bounds).any()) for factor in (0.5, 0.0, -1.0))


@examples(15)
@given(batch=gated_batches(), attention=st.booleans(), layout=st.sampled_from(("padded", "packed", "list")))
def test_blocks_and_their_gradients_are_the_formulas(batch: GatedBatch, attention: bool, layout: str) -> None:
    options: dict[str, Any] = {"pairs": batch.listed(), "function": gated_attention_weights} if attention else {}
    ours, theirs = (run(batch, layout, backend=backend, **options) for backend in BACKENDS)
    assert ours[0].dtype == torch.float64
    assert_close(ours, theirs, 1e-8)


@backends
@listed
def test_gradcheck(backend: str, pairs: Tensor | None) -> None:
    whole = batch(pairs)
    inputs = tuple(tensor.requires_grad_() for tensor in whole.tensors)

    def outputs(*tensors: Tensor) -> Any:
        arguments, keywords = whole.having(tensors).call()
        function = gated_attention_scores if pairs is None else gated_attention_weights
        return function(*arguments, **keywords, backend=backend)

    assert gradcheck(outputs, inputs, fast_mode=True)


def test_second_derivatives() -> None:
    """Of "torch", whose backward pass is its own."""
    tensors = tuple(tensor[:2] if place < 4 else tensor for place, tensor in enumerate(batch().tensors))
    few = replace(batch(), tensors=tensors, region_lengths=torch.tensor([5, 1]), word_lengths=torch.tensor([6, 3]))
    inputs = tuple(tensor.requires_grad_() for tensor in few.tensors)

    def scores(*tensors: Tensor) -> Tensor:
        arguments, keywords = few.having(tensors).call()
        return gated_attention_scores(*arguments, **keywords, backend="torch")

    assert gradgradcheck(scores, inputs, fast_mode=True)


@backends
def test_zero_vectors_have_a_cosine_of_zero_and_no_gradient(backend: str) -> None:
    tensors = [torch.zeros_like(tensor) if place < 4 else tensor for place, tensor in enumerate(batch().tensors)]
    zero = batch().having((*tensors[:-1], torch.zeros_like(tensors[-1])))
    scores, *gradients = run(zero, backend=backend)
    assert not scores.any()
    for gradient in gradients:
        assert not gradient.any()


@listed
def test_only_the_wanted_gradients_are_made(pairs: Tensor | None) -> None:
    whole = run(batch(pairs))[1:]
    for place in (0, 1, 3, 6, 19):
        tensors = [tensor.clone() for tensor in batch().tensors]
        tensors[place].requires_grad_()
        arguments, keywords = batch(pairs).having(tuple(tensors)).call()
        scores = gated_attention_scores(*arguments, **keywords)
        (scores * score_weights(scores.shape)).sum().backward()
        assert torch.equal(tensors[place].grad, whole[place])
        assert all(tensor.grad is None for index, tensor in enumerate(tensors) if index != place)


def test_features_are_let_go_of_with_the_graph() -> None:
    """Though scores, and what they remember of their call, stay."""
    regions = batch().tensors[0].numpy().copy()
    remembered = weakref.ref(regions)
    tensors = [torch.from_numpy(regions), *batch().tensors[1:]]
    tensors[2].requires_grad_()
    arguments, keywords = batch().having(tuple(tensors)).call()
    scores = gated_attention_scores(*arguments, **keywords)
    scores.sum().backward()
    del regions, tensors, arguments
    assert remembered() is None


# --- items


@backends
@listed
def test_nan_stays_in_its_item_and_padding_is_never_read(backend: str, pairs: Tensor | None) -> None:
    clean = run(batch(pairs), backend=backend)
    padded = [tensor.clone() for tensor in batch().tensors]
    for side, lengths in zip(padded[:2], (batch().region_lengths, batch().word_lengths), strict=True):
        for item, length in zip(side, lengths.tolist(), strict=True):
            item[length:] = torch.nan
    for ours, theirs in zip(run(batch(pairs).having(tuple(padded)), backend=backend), clean, strict=True):
        assert torch.equal(ours, theirs)
    for place, index in ((0, (2, 3)), (1, (1, 0)), (2, (2, 0)), (3, (1, 1))):
        tensors = [tensor.clone() for tensor in padded]
        tensors[place][index] = torch.nan
        column = place % 2
        sick = batch().listed()[:, column] == index[0] if pairs is None else pairs[:, column] == index[0]
        arguments, keywords = batch(pairs).having(tuple(tensors)).call()
        scores = gated_attention_scores(*arguments, **keywords, backend=backend).flatten()
        assert scores[sick].isnan().all()
        assert torch.equal(scores[~sick], clean[0].flatten()[~sick])


@backends
@pytest.mark.parametrize("selection", ["no images", "no captions", "no pairs"])
def test_nothing_has_no_scores(backend: str, selection: str) -> None:
    tensors = list(batch().tensors)
    pairs = torch.zeros(0, 2, dtype=torch.int64) if selection == "no pairs" else None
    nothing = {"no images": (0, 2), "no captions": (1, 3), "no pairs": ()}[selection]
    for place in nothing:
        tensors[place] = tensors[place][:0]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    scores = gated_attention_scores(
        *leaves[:2],
        region_contexts=leaves[2],
        word_contexts=leaves[3],
        parameters=GatedAttention.of(tuple(leaves[4:])),
        pairs=pairs,
        backend=backend,
    )
    assert scores.shape == {"no images": (0, 4), "no captions": (3, 0), "no pairs": (0,)}[selection]
    for gradient in torch.autograd.grad(scores.sum(), leaves):
        assert not gradient.any()


# --- autocast, torch.func, torch.compile


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32(dtype: torch.dtype) -> None:
    """Features of two dtypes, as layers under autocast hand them on; gradients too, inside it or not."""
    tensors = list(batch(dtype=torch.float32).tensors)
    tensors[0], tensors[3] = tensors[0].to(dtype), tensors[3].to(dtype)
    mixed = batch().having(tuple(tensors))
    with torch.autocast("cpu", dtype=dtype):
        ours = run(mixed)
    theirs = run(mixed.to(torch.float32))
    assert ours[0].dtype == torch.float32
    assert torch.equal(ours[0], theirs[0])
    for gradient, tensor, expected in zip(ours[1:], tensors, theirs[1:], strict=True):
        assert gradient.dtype == tensor.dtype
        torch.testing.assert_close(gradient, expected.to(tensor.dtype))


@listed
@backends
def test_torch_func(pairs: Tensor | None, backend: str) -> None:
    whole = batch(pairs)

    def loss(*tensors: Tensor) -> Tensor:
        arguments, keywords = whole.having(tensors).call()
        scores = gated_attention_scores(*arguments, **keywords, backend=backend)
        return (scores * score_weights(scores.shape)).sum()

    gradients = torch.func.grad(loss, argnums=tuple(range(len(whole.tensors))))(*whole.tensors)
    assert_close(gradients, run(whole, backend=backend)[1:])


@listed
def test_compiled(pairs: Tensor | None) -> None:
    torch.compiler.reset()
    call = torch.compile(gated_attention_scores, fullgraph=True, backend="eager")
    leaves = tuple(tensor.clone().requires_grad_() for tensor in batch().tensors)
    arguments, keywords = batch(pairs).having(leaves).call()
    scores = call(*arguments, **keywords)
    gradients = torch.autograd.grad((scores * score_weights(scores.shape)).sum(), leaves)
    assert_close((scores.detach(), *gradients), run(batch(pairs)))


def test_compiled_calls_refuse_what_has_no_width() -> None:
    torch.compiler.reset()
    arguments, keywords = batch().call("packed")
    with pytest.raises(Exception, match="gated attention takes padded features inside"):
        torch.compile(gated_attention_scores, fullgraph=True, backend="eager")(*arguments, **keywords)


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
    ("alpha by name", altered(alpha="0.9"), TypeError, "alpha must be a number, not str"),
    ("pair", altered(pairs=torch.tensor([[0, 4]])), ValueError, "pairs[0] names caption 4, but there are 4 captions"),
    ("flat pairs", altered(pairs=torch.tensor([0, 1])), ValueError, "pairs must have shape (P, 2), got (2,)"),
    ("backend", altered(backend="gpu"), ValueError, "backend must be one of cpu, triton"),
    ("regions", altered(regions=B.tensors[0][0]), ValueError, "regions must have shape (n, L, D), got (5, 6)"),
    ("length", altered(region_lengths=[5, 0, 1]), ValueError, "region_lengths[1] is 0: every image needs"),
    ("dtypes", altered(words=B.tensors[1].float()), TypeError, "regions are torch.float64 but words are torch.float32"),
    ("D_v", altered(regions=B.tensors[0][..., :5]), ValueError,
     "parameters.region_step.key_weight must have shape (H, D_v) = (5, 5), got (5, 6)"),
    ("D", altered(words=B.tensors[1][..., :5]), ValueError,
     "parameters.region_gate_weight must have shape (G, D) = (7, 5), got (7, 8)"),
    ("contexts", altered(region_contexts=B.tensors[2][:2]), ValueError,
     "region_contexts must have shape (n_images, K, D) = (3, 2, 8), got (2, 2, 8)"),
    ("levels", altered(word_contexts=B.tensors[3][:, :1]), ValueError,
     "word_contexts must have shape (n_captions, K, D) = (4, 2, 8), got (4, 1, 8)"),
    ("no levels", altered(region_contexts=B.tensors[2][:, :0], word_contexts=B.tensors[3][:, :0]), ValueError,
     "region_contexts and word_contexts have K = 0"),
    ("listed contexts", altered(word_contexts=list(B.tensors[3])), TypeError,
     "word_contexts must be a (n_captions, K, D) tensor, not list"),
    ("float32 contexts", altered(word_contexts=B.tensors[3].float()), TypeError,
     "word_contexts is torch.float32 but words are torch.float64: float64 takes float64"),
    ("meta contexts", altered(region_contexts=B.tensors[2].to("meta")), ValueError, "region_contexts is on meta but"),
    ("sparse contexts", altered(region_contexts=B.tensors[2].to_sparse()), TypeError, "region_contexts must be a"),
    ("integers", altered(region_contexts=B.tensors[2].long()), TypeError, "region_contexts must be float32, float64"),
    ("parameters", altered(parameters=tuple(B.parameters)), TypeError, "parameters must be a GatedAttention"),
    ("a step", altered(parameters=B.parameters._replace(word_step=tuple(B.parameters.word_step))), TypeError,
     "parameters.word_step must be an AttentionStep, not tuple"),
    ("no bias", with_parameter("region_step.key_bias", None), TypeError,
     "parameters.region_step.key_bias must be a (H,) tensor, not NoneType"),
    ("gate", with_parameter("word_step.query_weight", torch.zeros(4, 6).double()), ValueError,
     "parameters.word_step.query_weight must have shape (H, G) = (4, 7), got (4, 6)"),
    ("head", with_parameter("word_step.head_weight", torch.zeros(1, 4).double()), ValueError,
     "parameters.word_step.head_weight must have shape (H,) = (4,), got (1, 4)"),
    ("embedding", with_parameter("embedding_weight", torch.zeros(8, 6)), TypeError,
     "parameters.embedding_weight is torch.float32 but regions are torch.float64"),
)  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), [pytest.param(*case[1:], id=case[0]) for case in ERRORS])
def test_mistakes_are_named(changes: Callable[[], dict[str, Any]], error: type[Exception], message: str) -> None:
    names = ("regions", "words", "region_lengths", "word_lengths")
    arguments, keywords = batch().call()
    call = dict(zip(names, arguments, strict=True)) | keywords | changes()
    with pytest.raises(error, match=re.escape(message)):
        gated_attention_scores(**call)


@pytest.mark.parametrize("backend", ["cpu", "triton", "cuda"])
def test_other_backends_are_refused(backend: str) -> None:
    arguments, keywords = batch(dtype=torch.float32).call()
    with pytest.raises(UnsupportedByBackend, match=f"backend '{backend}' cannot serve this call"):
        gated_attention_scores(*arguments, **keywords, backend=backend)
