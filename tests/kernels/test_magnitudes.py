"""`scan_scores` and `maxsim_scores` in PyTorch operations of very large and very small features and temperatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crossret_kernels import scan_attention, scan_scores
from crossret_kernels.cross_attention.attention import attention_logits
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.inputs.options import FLOAT32_MAX, FLOAT32_TINY
from crossret_kernels.padded import chunked
from crossret_kernels.padded.arithmetic import pool
from tests.kernels import oracle
from tests.kernels.strategies import DIRECTIONS, NORM_MODES, POOLINGS, Features, examples, nearly_cancelling
from tests.kernels.tolerance import DEFAULTS, Expectation, least_attended

BACKENDS = ("torch", "reference")
CPU_RANGE = 1e-9, 1e19  # of features whose own squares the native kernels can sum
pytestmark = pytest.mark.usefixtures("one_thread")  # tensors this small gain nothing from more
backends = pytest.mark.parametrize("backend", BACKENDS)
directions = pytest.mark.parametrize("direction", DIRECTIONS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
ALL_PAIRS = torch.cartesian_prod(torch.arange(3), torch.arange(4))


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(
    function: Callable[..., Tensor], regions: Tensor, words: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, and the gradients of their weighted sum."""
    v, e = (side.detach().clone().requires_grad_() for side in (regions, words))
    scores = function(v, e, **options)
    weights = randn(*scores.shape, seed=9).to(scores)
    return (scores.detach(), *torch.autograd.grad(scores, (v, e), weights))


def logits(regions: Tensor, words: Tensor, options: dict[str, Any]) -> Tensor:
    """λ·n of all pairs in float64 (n_images, n_captions, C, Q)."""
    checked = ScanOptions(**{**DEFAULTS, **options})
    v, e = regions.double(), words.double()
    if checked.normalize:
        v, e = v / v.norm(dim=-1, keepdim=True), e / e.norm(dim=-1, keepdim=True)
    s = torch.einsum("ird,cwd->icrw", v, e)
    s = s if checked.direction == "t2i" else s.mT
    masks = [torch.ones((*s.shape[:2], n), dtype=torch.bool) for n in s.shape[2:]]
    if checked.norm == "none":
        return checked.lambda_softmax * (F.leaky_relu(s, checked.clip_slope) if checked.clips else s)
    return checked.lambda_softmax * attention_logits(s, *masks, replace(checked, lambda_softmax=1.0))


def well_posed(regions: Tensor, words: Tensor, options: dict[str, Any]) -> bool:
    """Whether float32 can tell which contexts win and which relevances count, and has room for the gradients."""
    z = logits(regions, words, options)
    unsure = 1e-5 * z.abs().amax(-2, keepdim=True)
    gaps = z.amax(-2, keepdim=True) - z
    settled = (gaps == 0) | (gaps - unsure > 100) | (unsure < 1e-3)
    lengths = [torch.full((len(side),), side.size(1)) for side in (regions, words)]
    batch = Features(regions.double(), words.double(), *lengths, None)
    if not settled.all() or least_attended(batch, options) < 1e-2:
        return False
    _, _, cosines = scan_attention(batch.regions, batch.words, pairs=ALL_PAIRS, backend="reference", **options)
    # Of one query n is 1, 0 or −1 whatever its similarity: λ meets what rounding leaves of its gradient, zero.
    alone = cosines.size(1) == 1 and options["raw_feature_norm"].endswith(("l1norm", "l2norm"))
    sharp = {"max": FLOAT32_MAX, "lse": options["lambda_lse"]}.get(options["pooling"], 0.0)
    apart = cosines.sort(-1).values.diff(dim=-1)
    return not (alone and abs(options["lambda_softmax"]) > 1e3) and (
        sharp < 100 or bool(((apart > 1e-4) & (sharp * apart > 1e3)).all())
    )


def magnitude(draw: st.DrawFn, least: float, most: float) -> float:
    return 10.0 ** draw(st.floats(least, most))


@st.composite
def extremes(draw: st.DrawFn, least: float, most: float) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Features of such powers of ten whose similarities float32 holds, and λ up to its ends."""
    seed = draw(st.integers(0, 2**16))
    sizes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    exponent = draw(st.floats(least, most))
    other = draw(st.floats(max(least, min(most, -28 - exponent)), min(most, 36 - exponent)))
    regions = (randn(3, sizes[0], 6, seed=seed).double() * 10**exponent).float()
    words = (randn(4, sizes[1], 6, seed=seed + 1).double() * 10**other).float()
    options = {
        "direction": draw(st.sampled_from(DIRECTIONS)),
        "raw_feature_norm": draw(st.sampled_from(NORM_MODES)),
        "lambda_softmax": draw(st.sampled_from((1, -1))) * magnitude(draw, -30, 38.48),
        "pooling": draw(st.sampled_from(POOLINGS)),
        "lambda_lse": magnitude(draw, -37.5, 38.48),
        "normalize": draw(st.booleans()),
    }
    return regions, words, options


@pytest.mark.parametrize("served", [BACKENDS, ("cpu",)], ids=str)
@examples(80)
@given(data=st.data())
def test_magnitudes(served: tuple[str, ...], data: st.DataObject) -> None:
    """On the CPU where features' own squares are in range; those of similarities need not be."""
    regions, words, options = data.draw(extremes(-30, 30) if served == BACKENDS else extremes(-9, 17))
    assume(well_posed(regions, words, options))
    check_extremes(regions, words, options, served)


def check_extremes(regions: Tensor, words: Tensor, options: dict[str, Any], backends: tuple[str, ...]) -> None:
    given_options = {name: value for name, value in {**DEFAULTS, **options}.items() if name in DEFAULTS}
    paper = np.array([
        [oracle.scan_score(v.numpy(), e.numpy(), **given_options) for e in words.double()] for v in regions.double()
    ])  # fmt: skip
    truth = gradients(scan_scores, regions.double(), words.double(), backend="reference", **options)
    np.testing.assert_allclose(truth[0].numpy(), paper, rtol=1e-6, atol=1e-9)
    assert all(bool(true.isfinite().all()) for true in truth)
    in_range = all(float(true.abs().max()) < 1e36 for true in truth)
    for backend in backends:
        for pairs in (None, ALL_PAIRS):
            scores, *grads = gradients(scan_scores, regions, words, backend=backend, pairs=pairs, **options)
            if pairs is None:
                torch.testing.assert_close(scores.double(), truth[0], rtol=1e-4, atol=1e-5)
            else:
                torch.testing.assert_close(scores.double(), truth[0].flatten(), rtol=1e-4, atol=1e-5)
                continue  # weights of the sum are others
            for ours, true in zip(grads, truth[1:], strict=True):
                if in_range:
                    bound = 2e-3 * float(true.abs().max()) + 1e-35
                    assert ours.isfinite().all(), (backend, options)
                    assert float((ours.double() - true).abs().max()) <= bound, (backend, options)


# By name: sizes of regions and of words, options.
TABLE: dict[str, tuple[float, float, dict[str, Any]]] = {
    "squares overflow": (1e12, 1e12, {}),
    "squares overflow, l2norm": (1e30, 1e5, {"raw_feature_norm": "l2norm", "pooling": "lse"}),
    "sums overflow": (4e18, 4e18, {"raw_feature_norm": "l1norm"}),
    "squares vanish": (1e-12, 1e-12, {"lambda_softmax": 1e34}),
    "long queries": (1e-5, 1e30, {}),
    "long contexts": (1e30, 1e-5, {}),
    "short queries, long contexts": (1e25, 1e-30, {"raw_feature_norm": "no_norm"}),
    "very long and very short": (1.9e30, 5.9e-23, {"raw_feature_norm": "l2norm"}),
    "logits overflow": (1e15, 1e15, {"raw_feature_norm": "no_norm"}),
    "logits overflow below": (1e15, 1e15, {"raw_feature_norm": "clipped", "lambda_softmax": -1e30}),
    "squares and logits overflow": (1e15, 1e15, {"lambda_softmax": FLOAT32_MAX}),
    "largest lambda": (1.0, 1.0, {"lambda_softmax": FLOAT32_MAX, "raw_feature_norm": "no_norm"}),
    "largest lambda of small norms": (0.1, 0.1, {"lambda_softmax": FLOAT32_MAX, "raw_feature_norm": "l2norm"}),
    "least lambda of small norms": (0.1, 0.1, {"lambda_softmax": -FLOAT32_MAX, "raw_feature_norm": "l2norm"}),
    "least lambda": (1.0, 1.0, {"lambda_softmax": -FLOAT32_MAX, "raw_feature_norm": "softmax"}),
    "no lambda": (1e15, 1e15, {"lambda_softmax": 0.0, "raw_feature_norm": "no_norm"}),
    "largest lambda_lse": (1.0, 1.0, {"pooling": "lse", "lambda_lse": FLOAT32_MAX}),
    "least lambda_lse": (1.0, 1.0, {"pooling": "lse", "lambda_lse": FLOAT32_TINY}),
    "normalised": (1e30, 1e-30, {"normalize": True}),
}


@pytest.mark.parametrize(("of_regions", "of_words", "options"), TABLE.values(), ids=TABLE)
@directions
def test_extremes(direction: str, of_regions: float, of_words: float, options: dict[str, Any]) -> None:
    regions, words = randn(3, 3, 6, seed=4) * of_regions, randn(4, 2, 6, seed=5) * of_words
    in_range = CPU_RANGE[0] < min(of_regions, of_words) and max(of_regions, of_words) < CPU_RANGE[1]
    check_extremes(regions, words, {**DEFAULTS, **options, "direction": direction}, BACKENDS + ("cpu",) * in_range)


@backends
@directions
@dtypes
@pytest.mark.parametrize("norm", ["l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm"])
def test_powers_of_two_change_no_bit(norm: str, dtype: torch.dtype, direction: str, backend: str) -> None:
    """Where EPS is lost beside the norms: of scores and of first derivatives, and second ones are finite."""
    steps = (40, 20) if dtype == torch.float32 else (600, 200)
    regions, words = randn(3, 3, 6, dtype=dtype) * 2.0**30, randn(4, 5, 6, seed=1, dtype=dtype) * 2.0**10
    options = {"raw_feature_norm": norm, "direction": direction, "backend": backend}
    near = gradients(scan_scores, regions, words, **options)
    far = gradients(scan_scores, regions * 2.0 ** steps[0], words * 2.0 ** steps[1], **options)
    assert torch.equal(near[0], far[0])
    for one, other, step in zip(near[1:], far[1:], steps, strict=True):
        torch.testing.assert_close(one, other * 2.0**step, rtol=1e-5, atol=1e-5 * float(one.abs().max()))
        assert one.abs().max() > 0


@pytest.mark.parametrize("lambda_lse", [FLOAT32_TINY, 1e-25, 6.0, 1e28, 3e32, FLOAT32_MAX])
@pytest.mark.parametrize("upstream", [1e-7, 100.0])
def test_the_gradient_of_log_sum_exp(lambda_lse: float, upstream: float) -> None:
    """It is a softmax, whatever λ and what comes down to it."""
    values = torch.tensor([[0.5, -0.5, 0.25, 9.0], [0.25, 0.25, -1.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True, False]]).expand(2, 4)
    pooled = pool(values, mask, "lse", lambda_lse)
    (gradient,) = torch.autograd.grad(pooled.sum() * upstream, values)
    exact = values.detach().double().masked_fill(~mask, -torch.inf)
    largest = exact.amax(-1, keepdim=True)
    torch.testing.assert_close(
        pooled.detach().double(),
        largest[:, 0] + torch.logsumexp(lambda_lse * (exact - largest), -1) / lambda_lse,
        rtol=1e-6,
        atol=0,
    )
    expected = torch.softmax(lambda_lse * (exact - largest), -1) * upstream
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=0)


def test_compiled_calls_have_no_branches_on_values() -> None:
    regions, words = randn(3, 4, 6) * 1e12, randn(4, 5, 6, seed=1) * 1e12

    def outputs(v: Tensor, **options: Any) -> tuple[Tensor, ...]:
        return scan_attention(v, words, pairs=ALL_PAIRS[:8], pooling="lse", **options)

    for options in ({"lambda_softmax": 3e38}, {"raw_feature_norm": "no_norm", "lambda_softmax": -3e38}):
        torch.compiler.reset()
        compiled = torch.compile(outputs, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(regions, **options), outputs(regions, **options))


# --- devices without float64


class NoFloat64(TorchDispatchMode):
    """Raises where an operation makes a float64 tensor."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                assert tensor.dtype != torch.float64, f"{func} makes float64"
        return made


@pytest.fixture
def no_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a device of Apple's, on the CPU, with so little workspace that attended vectors are made in parts."""
    monkeypatch.setattr(chunked, "has_float64", lambda _device: False)
    monkeypatch.setattr(chunked, "WORKSPACE_BYTES", 2**14)
    return


@pytest.mark.usefixtures("no_float64")
@directions
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("norm", NORM_MODES)
def test_no_float64_is_made_without_it(norm: str, normalize: bool, direction: str) -> None:
    options = {"raw_feature_norm": norm, "normalize": normalize, "direction": direction, "pooling": "lse"}
    regions, words = randn(3, 5, 16).requires_grad_(), randn(4, 6, 16, seed=1).requires_grad_()
    with NoFloat64():
        scores = scan_scores(regions, words, [5, 2, 3], [6, 1, 4, 2], backend="torch", **options)
        ours = torch.autograd.grad(scores.square().sum(), (regions, words))
    expected = scan_scores(regions, words, [5, 2, 3], [6, 1, 4, 2], backend="reference", **options)
    torch.testing.assert_close(scores, expected)
    theirs = torch.autograd.grad(expected.square().sum(), (regions, words))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("no_float64")
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("norm", ["no_norm", "clipped_l2norm"])
def test_contexts_that_cancel_lose_no_more_than_eager_without_float64(norm: str, direction: str) -> None:
    """Both contexts that nearly cancel and items whose contexts have no mean."""
    rows = [randn(n, size, 24, seed=n, dtype=torch.float64) for n, size in ((4, 6), (5, 7))]
    centred = Features(*(side - side.mean(1, keepdim=True) for side in rows), *map(_full, rows), None)
    for batch in (nearly_cancelling(), centred):
        options = {"raw_feature_norm": norm, "lambda_softmax": 1.0, "direction": direction}
        Expectation.of(scan_scores, batch, torch.float32, **options).check("torch")


def _full(side: Tensor) -> Tensor:
    return torch.full((len(side),), side.size(1))


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
def test_a_context_out_of_range_leaves_its_neighbours_theirs(backend: str) -> None:
    word = torch.nn.functional.normalize(torch.randn(64, generator=torch.Generator().manual_seed(3)), dim=0)
    other = torch.randn(64, generator=torch.Generator().manual_seed(4))
    other = torch.nn.functional.normalize(other - (other @ word) * word, dim=0)
    regions = torch.stack([-1e20 * word, 0.1 * word + other, -0.1 * word + 2 * other])[None]
    options: dict[str, Any] = {"raw_feature_norm": "l2norm", "lambda_softmax": 60.0}
    exact = scan_scores(regions.double(), word[None, None].double(), backend="reference", **options)
    scores = scan_scores(regions, word[None, None], backend=backend, **options)
    torch.testing.assert_close(scores.double(), exact, rtol=0, atol=1e-4)
