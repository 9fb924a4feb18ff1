"""Scores and gradients of GPU backends on a GPU, by the rule of tests.kernels.tolerance and eager on that GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import Phase, assume, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import (
    HeterogeneousLayer,
    heterogeneous_scores,
    maxsim_argmax,
    maxsim_scores,
    scan_scores,
    triplet_loss,
)
from crossret_kernels.backends import select_backend, unsupported_reason
from crossret_kernels.fastest import asked, fastest_first
from tests.gpu.device import (
    DEVICE,
    PRECISIONS,
    TF32_UNIT,
    attention_precisions,
    gpu,
    lengths,
    needs_cuda_library,
    offsets,
    precision,
    randn,
    scorers,
    skip_if_too_long,
)
from tests.kernels.contrastive_loss.checks import both_losses, check_close
from tests.kernels.cross_attention.longest import check_longest_contexts
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.strategies import (
    DIRECTIONS,
    IN_HALF_RANGE,
    Features,
    examples,
    features,
    maxsim_options,
    scan_options,
)
from tests.kernels.tolerance import Expectation, score_weights, well_posed

pytestmark = gpu
precisions = pytest.mark.parametrize("name", PRECISIONS)
directions = pytest.mark.parametrize("direction", DIRECTIONS)
# Nearly every example compiles Triton kernels of its own, for 10 to 40 seconds. A shrunk one would cost many of those.
few = examples(8, phases=(Phase.explicit, Phase.reuse, Phase.generate))


def check(function: Callable[..., Tensor], batch: Features, name: str, backend: str, **options: Any) -> None:
    with precision(name) as dtype:
        expected = Expectation.of(
            function, batch, dtype, device=DEVICE, eager=dtype, unit=PRECISIONS[name][1], **options
        )
        expected.check(backend)


@attention_precisions
@directions
@few
@given(batch=features(IN_HALF_RANGE), data=st.data())
def test_scan(backend: str, name: str, direction: str, batch: Features, data: st.DataObject) -> None:
    options = data.draw(scan_options(backend, (direction,)))
    assume(name != "tf32" or not options["focal"])  # rounded operands move weights across their mean
    batch = batch.to(PRECISIONS[name][0]).to(torch.float64)
    assume(well_posed(batch, options))
    assume(name == "float32" or abs(options["lambda_softmax"]) <= 20)  # beyond, operands' rounding is the softmax's
    check(scan_scores, batch, name, backend, **options)


@precisions
@directions
@few
@given(batch=features(IN_HALF_RANGE), options=maxsim_options(soft=True))
def test_maxsim(name: str, direction: str, batch: Features, options: dict[str, Any]) -> None:
    options |= {"direction": direction}
    # Of nearly equal maxima another one may win, and get the gradient.
    assume(batch.kind not in ("duplicates", "opposites", "correlated"))
    check(maxsim_scores, batch, name, "triton", **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gpu_is_served_by_the_fastest(dtype: torch.dtype) -> None:
    regions, words = randn(3, 20, 64, dtype=dtype), randn(4, 9, 64, seed=1, dtype=dtype)
    of_attention = fastest_first(asked("t2i", dtype, 0, False), DEVICE)
    first = next(name for name in of_attention if unsupported_reason(name, DEVICE, dtype) is None)
    for function, backend in ((scan_scores, first), (maxsim_scores, "triton")):
        assert torch.equal(function(regions, words), function(regions, words, backend=backend))
    assert select_backend(None, DEVICE, torch.float64) == "torch"


def results(function: Callable[..., Tensor], *arguments: Any, **options: Any) -> list[Tensor]:
    """Scores and both gradients of their weighted sum, as float64."""
    sides = [side.detach().clone().requires_grad_() for side in arguments[:2]]
    scores = function(*sides, *arguments[2:], **options)
    weights = score_weights(scores.shape).to(scores)
    return [scores.detach().double(), *(g.double() for g in torch.autograd.grad((scores * weights).sum(), sides))]


@scorers
@precisions
@directions
@pytest.mark.parametrize("rows", [(36, 20), (197, 77)], ids=str)
def test_a_batch_of_many_tiles(
    function: Callable[..., Tensor], rows: tuple[int, int], direction: str, name: str, backend: str
) -> None:
    """By the same rule, with the truth made on the GPU too.

    Attention by a norm without a clip: of nine million similarities one lies so near the clip's kink that float32 may
    take the other slope, and its whole gradient is off. What float16 cannot hold tells of no bound.
    """
    skip_if_too_long(backend, rows, direction)
    if (backend, name) == ("cuda", "float32"):
        pytest.skip("it multiplies float32 features in TF32 alone")
    n = 90 * 36 // rows[0], 150 * 20 // rows[1]
    with precision(name) as dtype:
        sides = (randn(count, own, 1024, seed=own, dtype=dtype) for count, own in zip(n, rows, strict=True))
        regions, words = sides
        of_items = [lengths(count, own // 4, own) for count, own in zip(n, rows, strict=True)]
        options: dict[str, Any] = {"direction": direction, "normalize": True}
        if function is scan_scores:
            options["raw_feature_norm"] = "l2norm"
        ours = results(function, regions, words, *of_items, backend=backend, **options)
        eager = results(function, regions, words, *of_items, backend="reference", **options)
        truth = results(function, regions.double(), words.double(), *of_items, backend="torch", **options)
    for found, theirs, true, factor in zip(ours, eager, truth, (2, 3, 3), strict=True):
        lost = float((theirs - true).abs().nan_to_num(0.0, 0.0).max())
        bound = factor * lost + PRECISIONS[name][1] * float(true.abs().max())
        assert float((found - true).abs().max()) <= bound


@scorers
@pytest.mark.parametrize("host", [True, False], ids=["lengths on the host", "lengths on the device"])
def test_layouts_agree(function: Callable[..., Tensor], host: bool, backend: str) -> None:
    regions, words = randn(40, 36, 256), randn(70, 20, 256, seed=1)
    of_items = lengths(40, 1, 36), lengths(70, 1, 20)
    place = torch.device("cpu") if host else DEVICE
    expected = function(regions, words, *of_items, backend=backend)
    lists = [
        [item[:length] for item, length in zip(side, own.tolist(), strict=True)]
        for side, own in zip((regions, words), of_items, strict=True)
    ]
    packed = [(torch.cat(side), offsets(own).to(place)) for side, own in zip(lists, of_items, strict=True)]
    padded = function(regions, words, *(own.to(place) for own in of_items), backend=backend)
    for other in (padded, function(*packed, backend=backend), function(*lists, backend=backend)):
        torch.testing.assert_close(other, expected, rtol=1e-5, atol=1e-5)


@directions
def test_argmax(direction: str) -> None:
    """Small whole numbers are exact in every precision and often equal: the first of them is the argmax."""
    generator = torch.Generator().manual_seed(0)
    regions = torch.randint(-1, 2, (30, 300, 16), generator=generator).to(DEVICE, torch.bfloat16)
    words = torch.randint(-1, 2, (20, 40, 16), generator=generator).to(DEVICE, torch.bfloat16)
    similarities = torch.einsum("ird,cwd->icrw", regions.double(), words.double()).cpu().numpy()
    expected = torch.from_numpy(similarities.argmax(-2 if direction == "t2i" else -1))
    scores, argmax = maxsim_argmax(regions, words, direction=direction, backend="triton")
    assert torch.equal(argmax.cpu(), expected)
    assert torch.equal(scores, maxsim_scores(regions, words, direction=direction, backend="triton"))


@scorers
@pytest.mark.parametrize("rows", [(250, 9), (9, 250), (1, 1), (1030, 1030)])
def test_items_of_any_length(function: Callable[..., Tensor], rows: tuple[int, int], backend: str) -> None:
    """ "cuda" takes features that TF32 holds, and gradients of similarities in it, too."""
    skip_if_too_long(backend, rows)
    regions, words, unit = randn(5, rows[0], 100), randn(6, rows[1], 100, seed=1), 0.0
    if backend == "cuda":
        regions, words, unit = regions.half().float(), words.half().float(), TF32_UNIT
    pairs = torch.tensor([[0, 5], [4, 1], [0, 0], [0, 5]])
    for options in ({}, {"pairs": pairs}):
        expected = results(function, regions.double(), words.double(), normalize=True, **options)
        found = results(function, regions, words, normalize=True, backend=backend, **options)
        for place, (ours, true) in enumerate(zip(found, expected, strict=True)):
            atol = 1e-5 + (unit if place else 0) * float(true.abs().max())
            torch.testing.assert_close(ours, true, rtol=1e-4, atol=atol)


@needs_cuda_library
@pytest.mark.parametrize("norm", ["softmax", "clipped_l2norm"])
@pytest.mark.parametrize(
    ("dtype", "gradients"),
    [
        (torch.float32, False),  # whose gradients PyTorch's products would make in TF32
        *product((torch.bfloat16, torch.float16), (False, True)),
    ],
    ids=str,
)
def test_the_longest_attended_items(gradients: bool, dtype: torch.dtype, norm: str) -> None:
    with precision("tf32" if dtype is torch.float32 else "float32"):
        check_longest_contexts(DEVICE, gradients, dtype, norm)


@pytest.mark.parametrize("negatives", ["hardest", "sum", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n_rows", "n_columns", "offset"), [(500, 500, 0), (130, 1000, 300), (1, 1, 0)])
def test_triplet_loss(negatives: str, dtype: torch.dtype, n_rows: int, n_columns: int, offset: int) -> None:
    """On a grid of eighths, of which hinges are exact in every dtype and many tie."""
    scores = (randn(n_rows, n_columns) * 4).round() / 8
    results = []
    for kind, chosen in ((torch.float64, "torch"), (dtype, "triton")):
        leaf = scores.to(DEVICE, kind).requires_grad_()
        losses = triplet_loss(
            leaf, margin=0.25, negatives=negatives, positive_offset=offset, reduction="none", backend=chosen
        )
        results.append((losses.detach().double(), torch.autograd.grad(losses.sum(), leaf)[0].double()))
    unit = 2 * torch.finfo(dtype).eps
    for made, expected in zip(results[1], results[0], strict=True):
        largest = float(expected.abs().max())
        torch.testing.assert_close(made, expected, rtol=unit + 2e-4, atol=(unit + 1e-5) * largest)


@both_losses
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n_rows", "n_columns", "offset"), [(500, 500, 0), (130, 1000, 300), (1, 1, 0)])
def test_contrastive_losses(name: str, dtype: torch.dtype, n_rows: int, n_columns: int, offset: int) -> None:
    """Some pairs are left out, and images have several captions."""
    scores = (randn(n_rows, n_columns).double() * 16).round() / 16
    scores[::3, ::4] = -torch.inf
    numbers = (5.0,) if name == "infonce" else (5.0, -10.0)
    ids = torch.arange(n_columns) // 2
    for options in ({}, {"image_ids": ids, "reduction": "none"}):
        check_close(name, scores.to(DEVICE), numbers, dtype, "triton", positive_offset=offset, **options)


@precisions
def test_pairs_of_one_layer(name: str) -> None:
    """By several parts, and twice the same bits. What follows features of float16 is multiplied as float32.

    Beside that gradients are rounded to the features' dtype, by half a unit.
    """
    unit = {"bfloat16": 2.0**-6, "tf32": 2.0**-8}.get(name, 2.0**-14)
    layer = [x.to(DEVICE) for x in make_layers(1, 200)[0]]

    def step(sides: list[Tensor], backend: str) -> list[Tensor]:
        wide = torch.promote_types(sides[0].dtype, torch.float32)
        layers = [HeterogeneousLayer(*(x.to(wide) for x in layer))]
        of_captions = lengths(90, 1, 20, seed=2)
        scores = heterogeneous_scores(*sides, lengths(40, 1, 70), of_captions, layers=layers, backend=backend)
        gradients = torch.autograd.grad((scores * score_weights(scores.shape).to(scores)).sum(), sides)
        return [x.detach().double() for x in (scores, *gradients)]

    with precision(name) as dtype:
        sides = [randn(40, 70, 200, dtype=dtype), randn(90, 20, 200, seed=1, dtype=dtype)]
        true = step([side.double().requires_grad_() for side in sides], "reference")
        leaves = [side.requires_grad_() for side in sides]
        ours, again = step(leaves, "triton"), step(leaves, "triton")
    for expected, found, same in zip(true, ours, again, strict=True):
        assert torch.equal(found, same)
        atol = (unit + torch.finfo(dtype).eps / 2) * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
