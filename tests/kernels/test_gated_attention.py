"""`gated_attention_scores` against SMAN's equations: scores, attention, gradients, layouts, checks and transforms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, gated_attention_scores, gated_attention_weights
from crossret_kernels.dense.op import Products
from crossret_kernels.gated_attention import chunked
from crossret_kernels.gated_attention.reference import gated_attention_reference
from crossret_kernels.gated_attention.step import Side, earlier_levels
from crossret_kernels.inputs.sides import as_sides
from crossret_kernels.padded.pairing import Rectangle
from crossret_kernels.promises import GRADIENTS, RESULTS, unit_of
from tests.kernels.gated import GatedBatch, gated_batches, gated_operands, gated_parameters, paper_score
from tests.kernels.strategies import examples
from tests.kernels.tolerance import EPS, ISAS, cpu_isa, gradient_bounds, score_weights

BACKENDS = ("torch", "reference")
every_backend = pytest.mark.parametrize("backend", ["cpu", *BACKENDS])
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


def assert_precise(batch: GatedBatch, dtype: torch.dtype, backend: str) -> None:
    """Twice what eager PyTorch loses at the same precision, three times of gradients, and some last digits.

    "cpu" multiplies in bfloat16 where features are. Gradients are summed in float32 and rounded once. Where eager loses
    little by luck, what counts is how far results move with all that is given by half a unit in the last place.
    """
    batch = batch.to(dtype)
    kind = unit_of("gated_attention_scores", backend, dtype)
    truth = run(batch.to(torch.float64), backend="reference")
    theirs = run(batch.to(kind), function=eager, backend="")
    ours = run(batch, backend=backend)
    assert ours[0].dtype == torch.float32
    others = [theirs, *(run(nudged(batch.to(torch.float64), kind, seed), backend="reference") for seed in range(2))]
    losses = [
        max(float((result[place].double() - true).abs().max()) for result in others) for place, true in enumerate(truth)
    ]
    for place, (one, true, loss) in enumerate(zip(ours, truth, losses, strict=True)):
        if place and batch.tensors[1].size(-1) == 1:  # cosines of single numbers are ±1: all they have is rounding
            assert bool(one.isfinite().all())
            continue
        size = float(true.abs().max())
        digits = 64 * EPS * max(1.0, size) if kind == torch.float32 else torch.finfo(kind).eps * size
        lost = (GRADIENTS if place else RESULTS) * loss + digits
        bounds = gradient_bounds(true, lost, dtype if place else torch.float32)
        assert bool(((one.double() - true).abs() <= bounds + 64 * EPS).all())
        if kind == torch.float32 and max(1.0, size) * 1e-3 < size:  # halved, left out, turned round: seen
            assert all(bool(((factor * true - true).abs() > bounds).any()) for factor in (0.5, 0.0, -1.0))


DTYPES = st.sampled_from((torch.float32, torch.float32, torch.bfloat16, torch.float16))


@examples(15)
@given(batch=gated_batches(), dtype=DTYPES)
def test_precision(batch: GatedBatch, dtype: torch.dtype) -> None:
    assert_precise(batch, dtype, "torch")


@pytest.mark.parametrize("isa", torch.ops.crossret.cpu_isas().split())  # AMX emulated, too
@examples(25)
@given(batch=gated_batches(), dtype=DTYPES)
def test_precision_of_kernels(isa: str, batch: GatedBatch, dtype: torch.dtype) -> None:
    with cpu_isa(isa):
        assert_precise(batch, dtype, "cpu")


@pytest.fixture
def large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ITEM_BYTES", "PAIR_BYTES"):
        monkeypatch.setattr(chunked, name, 16 * 2**20)


def large(dtype: torch.dtype) -> GatedBatch:
    """Of several chunks of the kernels, blocks of columns in each, and panels of all widths."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((50, 5, 6), (135, 3, 1500), (50, 1, 1500), (135, 1, 1500))
    tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
    tensors += gated_parameters(6, 1500, 70, 66, 75, generator).flat()
    lengths = torch.arange(50) % 5 + 1, torch.arange(135) % 3 + 1
    return GatedBatch(tuple(tensor.to(dtype) for tensor in tensors), *lengths, 0.9, None)


@cache
def by_torch(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return run(large(dtype).to(torch.float32), backend="torch")


@pytest.mark.usefixtures("large_blocks")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_chunks_of_pairs(isa: str, dtype: torch.dtype) -> None:
    with cpu_isa(isa):
        ours = run(large(dtype), backend="cpu")
    for one, other in zip(ours, by_torch(dtype), strict=True):
        error = (one - other).norm() / other.norm()
        assert error < (2e-5 if dtype == torch.float32 else 2e-2)


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


# --- the fused operation


MANY = (50, 135, 1500, 70, 66, 75)  # several chunks


def operate(tensors: list[Tensor], bfloat16: bool = False, pairs: Tensor | None = None) -> list[Tensor]:
    """The operation's scores and gradients."""
    operation, options = torch.ops.crossret, (pairs, 0.9, bfloat16)
    scores = operation.gated_attention(*tensors, *options)
    grad = score_weights(scores.shape).float()
    return [scores, *operation.gated_attention_backward(grad, *tensors, *options, *[True] * 11)]


@pytest.mark.parametrize("bfloat16", [False, True])
def test_number_of_threads_and_neighbours_do_not_show(bfloat16: bool) -> None:
    tensors, results = gated_operands(*MANY), []
    order = torch.randperm(50 * 135, generator=torch.Generator().manual_seed(0))
    pairs = torch.cartesian_prod(torch.arange(50), torch.arange(135))[order[:3000]]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(operate(tensors, bfloat16) + operate(tensors, bfloat16, pairs))
    finally:
        torch.set_num_threads(before)
    for first, *others in zip(*results, strict=True):
        assert all(torch.equal(first, other) for other in others)
    scores, of_listed = results[0][0], results[0][12]
    assert torch.equal(of_listed, scores[tuple(pairs.T)])
    alone = [x[40:41] if place < 4 else x[5:6] if place < 8 else x for place, x in enumerate(tensors)]
    assert torch.equal(torch.ops.crossret.gated_attention(*alone, None, 0.9, bfloat16), scores[40:41, 5:6])


def test_number_of_threads_does_not_show_in_earlier_levels() -> None:
    generator, empty, results = torch.Generator().manual_seed(0), torch.empty(0), []
    contexts = [torch.randn(n, 2, 48, generator=generator).requires_grad_() for n in (5, 6)]
    grad = torch.randn(5, 6, generator=generator)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            images, captions = (Side(empty, empty, empty, x, empty) for x in contexts)
            scores = earlier_levels(images, captions, Rectangle(), Products(native=True))
            results.append((scores, *torch.autograd.grad(scores, contexts, grad)))
    finally:
        torch.set_num_threads(before)
    for first, *others in zip(*results, strict=True):
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_masks_leave_out_are_not_read_and_items_keep_their_nan(isa: str) -> None:
    tensors = gated_operands(3, 4, 8, 7, 5, 4)
    whole = [x.nan_to_num() if place in (0, 1, 4, 5) else x for place, x in enumerate(tensors)]
    with cpu_isa(isa):
        made, expected = operate(tensors), operate(whole)
        for ours, theirs in zip(made, expected, strict=True):
            assert torch.equal(ours, theirs)
        for place, mask in ((1, 3), (2, 3), (4, 7), (5, 7)):
            assert not made[place][~tensors[mask]].any()
        for place in (0, 1, 2, 4, 5, 6):
            bad = [x.clone() for x in whole]
            bad[place][(1, 2) if bad[place].dim() == 3 else (1,)] = torch.nan
            scores = operate(bad)[0]
            hit = torch.zeros_like(scores, dtype=torch.bool)
            hit[(1,) if place < 4 else (slice(None), 1)] = True
            assert scores[hit].isnan().all()
            assert torch.equal(scores[~hit], expected[0][~hit])


def test_not_a_number_stays_in_the_gradients_of_its_own_listed_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    n, parameters = 16, gated_parameters(12, 8, 7, 5, 4, generator)
    shapes = ((n, 5, 12), (n, 6, 8), (n, 2, 8), (n, 2, 8))
    leaves = [torch.randn(shape, generator=generator) for shape in shapes]
    leaves[3][3, 0, 0] = torch.nan
    regions, words, *contexts = [x.requires_grad_() for x in leaves]
    keywords = dict(zip(("region_contexts", "word_contexts"), contexts, strict=True))
    pairs = torch.arange(n)[:, None].expand(n, 2)
    scores = gated_attention_scores(regions, words, **keywords, parameters=parameters, pairs=pairs, backend="cpu")
    own = torch.arange(n) == 3
    assert torch.equal(scores.isnan(), own)
    for grad in torch.autograd.grad(scores.sum(), leaves):
        assert not grad[~own].isnan().any()


def test_opcheck() -> None:
    tensors = gated_operands(3, 4, 8, 7, 5, 4)
    for place in (0, 2, 5, 9, 12):
        tensors[place].nan_to_num_().requires_grad_()
    tensors = [x.detach().nan_to_num().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in tensors]
    operation, wanted = torch.ops.crossret, [place % 2 == 0 for place in range(11)]
    for pairs, shape in ((None, (3, 4)), (torch.tensor([[2, 1], [0, 3]]), (2,))):
        options = pairs, 0.9, False
        torch.library.opcheck(operation.gated_attention.default, (*tensors, *options))
        given = torch.randn(shape), *(x.detach() for x in tensors), *options, *wanted
        torch.library.opcheck(operation.gated_attention_backward.default, given)


@pytest.mark.parametrize(
    ("place", "other", "message"),
    [
        (0, torch.randn(3, 5, 6), "query_weight is of another size"),
        (1, torch.randn(3, 4, 8), "values is of another size"),
        (3, torch.ones(3, 5), "mask must be bool on the CPU, of 2 dimensions"),
        (5, torch.randn(4, 6, 9), "differ in their last size"),
        (6, torch.randn(4, 7).double(), "memory must be float32 on the CPU"),
        (12, torch.randn(9), "embedding_bias is of another size"),
        (13, torch.zeros(2, 2), "pairs must be a"),
        (13, torch.tensor([[0, 1], [0, 4]]), r"pairs\[1\] names caption 4"),
    ],
)
def test_operands_that_do_not_fit_raise(place: int, other: Tensor, message: str) -> None:
    tensors = gated_operands(3, 4, 8, 7, 5, 4)
    *given, pairs = [*tensors[:place], other, *tensors[place + 1 :], None][:14]
    with pytest.raises(RuntimeError, match=message):
        operate(given, pairs=pairs)


@pytest.mark.parametrize("counts", [(0, 4), (3, 0)])
def test_no_items_have_no_scores_and_gradients_of_zero(counts: tuple[int, int]) -> None:
    scores, *gradients = operate(gated_operands(*counts, 8, 7, 5, 4))
    assert scores.shape == counts
    assert not any(gradient.any() for gradient in gradients)


def test_what_kernels_refuse() -> None:
    arguments, keywords = batch(dtype=torch.float32).call()
    listed = keywords | {"pairs": torch.tensor([[0, 1]])}
    calls: list[tuple[str, Callable[..., Any]]] = [
        ("weights of attention are made by", partial(gated_attention_weights, *arguments, **listed)),
        ("go through 'torch'", partial(torch.compile(gated_attention_scores, backend="eager"), *arguments, **keywords)),
        (r"not torch\.float64", partial(run, batch())),
    ]
    for message, call in calls:
        call()
        with pytest.raises(UnsupportedByBackend, match=message):
            call(backend="cpu")
    few = batch(dtype=torch.float32)  # which would leave the kernel's vectors empty
    assert all(map(torch.equal, run(few), run(few, backend="torch")))
    assert not torch.equal(run(few)[0], run(few, backend="cpu")[0])


# --- autocast, torch.func, torch.compile


@pytest.mark.usefixtures("large_blocks")
def test_autocast_multiplies_in_its_dtype() -> None:
    """By kernels; scores stay float32, and the gradients those of the features' dtype."""
    given = large(torch.float32)
    expected = run(given, backend="cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = run(given, backend="cpu")
    for one, other in zip(ours, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.3 * other.norm()
    assert (ours[0] - expected[0]).abs().max() < 2e-2
    if "avx512bf16" in ISAS:
        assert not torch.equal(ours[0], expected[0])


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


@pytest.mark.parametrize(("changes", "error", "message"), [pytest.param(*case[1:], id=case[0]) for case in ERRORS])
def test_mistakes_are_named(changes: Callable[[], dict[str, Any]], error: type[Exception], message: str) -> None:
    names = ("regions", "words", "region_lengths", "word_lengths")
    arguments, keywords = batch().call()
    call = dict(zip(names, arguments, strict=True)) | keywords | changes()
    with pytest.raises(error, match=re.escape(message)):
        gated_attention_scores(**call)
