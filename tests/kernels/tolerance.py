"""The tolerance rule: twice what eager PyTorch loses at the same precision, three times in gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crossret_kernels import scan_scores
from crossret_kernels.cross_attention.attention import FOCAL_SLACK, attention_logits, attention_weights, relevances
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.inputs.call import as_ragged
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import SideNames
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.torch import pooled_maxima
from crossret_kernels.padded.arithmetic import pool, safe_normalize
from crossret_kernels.padded.chunked import Block
from crossret_kernels.padded.forms import pack_items, pad
from crossret_kernels.promises import GRADIENTS, RESULTS
from tests.kernels.strategies import Features

Result = tuple[Tensor, Tensor, Tensor]
EPS = torch.finfo(torch.float32).eps
CLEAR = 8  # times the floor of its bound, beyond which a gradient is more than rounding
LEAST_WEIGHT = 1e-16  # whose square float32 holds in full precision
CPU = torch.device("cpu")
# Those that this processor runs; the emulated one, which is slow, has tests of its own in test_amx.py.
ISAS = [isa for isa in torch.ops.crossret.cpu_isas().split() if isa != "amx_emulated"]
DEFAULTS = asdict(ScanOptions())


@contextmanager
def cpu_isa(name: str | None) -> Iterator[None]:
    """Runs the native kernels of one instruction set."""
    chosen = os.environ.get("CROSSRET_CPU_ISA", "")
    torch.ops.crossret.select_cpu_isa(name or chosen)
    try:
        yield
    finally:
        torch.ops.crossret.select_cpu_isa(chosen)


def evaluate(
    function: Callable[..., Tensor],
    batch: Features,
    dtype: torch.dtype,
    *,
    device: torch.device = CPU,
    **options: Any,
) -> Result:
    """Scores, and the gradients of their weighted sum, made on the device, as float64 on the CPU."""
    regions, words = (side.to(device, dtype).clone().requires_grad_() for side in (batch.regions, batch.words))
    pairs = None if batch.pairs is None else batch.pairs.to(device)
    scores = function(regions, words, *batch.lengths, pairs=pairs, **options)
    (scores * score_weights(scores.shape).to(scores)).sum().backward()
    assert regions.grad is not None
    assert words.grad is not None
    assert regions.grad.dtype == words.grad.dtype == dtype
    return scores.detach().double().cpu(), regions.grad.double().cpu(), words.grad.double().cpu()


def score_weights(shape: torch.Size) -> Tensor:
    """Fixed gradients of the scores, some of them zero as under a hardest-negative loss."""
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return weights.where(torch.rand(shape, generator=torch.Generator().manual_seed(8)) > 0.3, 0)


def eager_losses(
    function: Callable[..., Tensor],
    batch: Features,
    truth: Result,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    **options: Any,
) -> list[float]:
    """What eager loses at this dtype: the worst of a few orders of summation over D, as one order can be lucky."""
    worst = [0.0, 0.0, 0.0]
    for seed in range(5):
        order = torch.randperm(batch.regions.size(-1), generator=torch.Generator().manual_seed(seed))
        shuffled = Features(batch.regions[..., order], batch.words[..., order], *batch.lengths, batch.pairs)
        scores, *grads = evaluate(function, shuffled, dtype, device=device, backend="reference", **options)
        restored = [grad[..., order.argsort()] for grad in grads]
        for index, (ours, true) in enumerate(zip((scores, *restored), truth, strict=True)):
            worst[index] = max(worst[index], float((ours - true).abs().max()))
    return worst


def gradient_bounds(true: Tensor, lost: Tensor | float, dtype: torch.dtype) -> Tensor:
    """How far from the truth, element by element, float32 sums may be that have lost so much and are rounded once.

    Half an ulp of the greatest that the sum can be: none where features are float32, as what they have lost holds it.
    """
    bounds = torch.zeros_like(true) + lost
    if dtype != torch.float32:
        kind = torch.finfo(dtype)
        _, exponents = torch.frexp((true.abs() + bounds).clamp(min=kind.smallest_normal))
        bounds = bounds + torch.ldexp(torch.full_like(bounds, kind.eps / 4), exponents)  # eps is an ulp of 1 = 2¹ / 2
    return bounds


def similarity_terms(
    function: Callable[..., Tensor], batch: Features, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Σ |∂L/∂S| |x| of every number of regions' and words' gradients, by which similarities S reach them.

    Of each direction apart, whose gradients of S may cancel in their mean.
    """
    full = ScanOptions(**{**DEFAULTS, **options}) if function is scan_scores else MaxSimOptions(**options)
    ways = [replace(full, direction=way) for way in ("t2i", "i2t")] if full.direction == "both" else [full]
    every = torch.cartesian_prod(*map(torch.arange, (len(batch.regions), len(batch.words))))
    images, captions = (every if batch.pairs is None else batch.pairs).unbind(1)
    units = [safe_normalize(x) if full.normalize else x for x in (batch.regions, batch.words)]
    masks = [torch.arange(x.size(1)) < n[:, None] for x, n in zip(units, batch.lengths, strict=True)]
    units = [x.masked_fill(~mask[..., None], 0) for x, mask in zip(units, masks, strict=True)]
    v, e = units[0][images], units[1][captions]
    s = (v @ e.mT).requires_grad_()
    block = Block(s, v, e, masks[0][images], masks[1][captions], "p", "p")
    ds = torch.zeros_like(s)
    for way in ways:
        attention = block.as_attention(way.direction)
        masks_of = attention.context_mask, attention.query_mask
        if isinstance(way, ScanOptions):
            p = attention_weights(attention.similarities, *masks_of, way)
            products, norms = (p * attention.similarities).sum(-2), attention.attended_norms(p)
            found = relevances(products, norms, attention.queries, way.relevance)
            scores = pool(found, attention.query_mask, way.pooling, way.lambda_lse)
        else:
            scores = pooled_maxima(attention.similarities, *masks_of, way)
        shape = scores.shape if batch.pairs is not None else (len(batch.regions), len(batch.words))
        weights = score_weights(torch.Size(shape)).view_as(scores)
        ds += torch.autograd.grad(scores, s, weights / len(ways))[0].abs()
    terms = []
    for items, x, size, products in (
        (images, units[0], batch.regions, ds @ e.abs()),
        (captions, units[1], batch.words, ds.mT @ v.abs()),
    ):
        term = torch.zeros_like(x).index_add_(0, items, products)
        if full.normalize:  # what points along x is taken out, and x divided by its length
            term = (term + x.abs() * (x.abs() * term).sum(-1, keepdim=True)) / size.norm(dim=-1, keepdim=True)
        terms.append(term.nan_to_num(0.0, 0.0, 0.0))
    return terms[0], terms[1]


@dataclass(frozen=True)
class Expectation:
    """The truth of a batch in float64 and how far from it a result may be: made once, for any number of backends."""

    function: Callable[..., Tensor]
    batch: Features
    dtype: torch.dtype
    options: dict[str, Any]
    truth: Result
    bounds: Result
    floors: tuple[float, float]  # of gradients' bounds: what rounding may come to where eager is exact by luck
    device: torch.device = CPU

    @classmethod
    def of(
        cls,
        function: Callable[..., Tensor],
        batch: Features,
        dtype: torch.dtype,
        *,
        device: torch.device = CPU,
        eager: torch.dtype = torch.float32,
        unit: float = 16 * EPS,
        roundings: int = 0,
        share: float = 0.0,
        **options: Any,
    ) -> Expectation:
        """For the values that `dtype` holds; features of half precision are exact in eager float32 too.

        `unit` is the rounding that eager at the dtype `eager` may avoid by luck, relative to what is summed up.
        `roundings` is how many times but the last gradients of Sum-Max are rounded to `dtype`, as sums are that come in
        parts, and those of each direction: each time by ε / 2 of Σ |∂L/∂S| |x| or of the least normal number at most.
        `share` of that sum is lost beside, where a backend rounds ∂L/∂S before it is multiplied.
        """
        batch = batch.to(dtype).to(torch.float64)
        truth = evaluate(function, batch, torch.float64, backend="reference", **options)
        losses = eager_losses(function, batch, truth, dtype=eager, device=device, **options)
        floors = _rounding_floors(batch, truth, unit, options)
        floors = [*map(max, floors, _moved_by_rounding(function, batch, truth, unit, options))]
        scores = torch.full_like(truth[0], RESULTS * losses[0] + floors[0])
        kind = torch.finfo(dtype)
        least = roundings * kind.eps / 2 * kind.smallest_normal
        share += roundings * kind.eps / 2
        terms = similarity_terms(function, batch, options) if share else map(torch.zeros_like, truth[1:])
        of_regions, of_words = (
            gradient_bounds(true, GRADIENTS * loss + floor + (share * term).clamp(min=least), dtype)
            for true, loss, floor, term in zip(truth[1:], losses[1:], floors[1:], terms, strict=True)
        )
        bounds = scores, of_regions, of_words
        return cls(function, batch, dtype, options, truth, bounds, (floors[1] + least, floors[2] + least), device)

    def check(self, backend: str, isa: str | None = None) -> None:
        with cpu_isa(isa):
            result = evaluate(
                self.function, self.batch, self.dtype, device=self.device, backend=backend, **self.options
            )
        self.accept(result, isa or backend)

    def check_faults(self) -> None:
        """A gradient of either side that is halved, left out or turned round must not be accepted.

        Nor is there one whose greatest number the floor of its bound comes near: it is not told from rounding. What
        eager loses is no excuse, as it is a digit or two of a gradient that is there.
        """
        for side, floor in zip((1, 2), self.floors, strict=True):
            if float(self.truth[side].abs().max()) <= CLEAR * floor:
                continue
            for factor in (0.5, 0.0, -1.0):
                spoilt = [*self.truth]
                spoilt[side] = factor * spoilt[side]
                with pytest.raises(AssertionError, match="are off by"):
                    self.accept((spoilt[0], spoilt[1], spoilt[2]), f"gradients times {factor}")

    def accept(self, result: Result, whose: str) -> None:
        """Fails unless every element is within its bound."""
        names = ("scores", "regions.grad", "words.grad")
        for name, ours, true, bound in zip(names, result, self.truth, self.bounds, strict=True):
            assert torch.isfinite(ours).all(), f"{name} of {whose} are not finite"
            errors = (ours - true).abs()
            worst = int((errors - bound).argmax()) if errors.numel() else 0
            assert bool((errors <= bound).all()), (
                f"{name} of {whose} are off by {float(errors.flatten()[worst]):.3g}, "
                f"more than {float(bound.flatten()[worst]):.3g}"
            )


def check_float64(function: Callable[..., Tensor], batch: Features, options: dict[str, Any]) -> None:
    """Float64 features, which only PyTorch operations take, lose next to nothing; nor do their gradients."""
    actual = function(*batch.arguments(), pairs=batch.pairs, **options)
    assert actual.dtype == torch.float64
    assert torch.equal(actual, function(*batch.arguments(), pairs=batch.pairs, backend="torch", **options))
    expected = evaluate(function, batch, torch.float64, backend="reference", **options)
    for ours, true in zip(evaluate(function, batch, torch.float64, **options), expected, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-7, atol=1e-9 * max(1.0, float(true.abs().max())))


def least_attended(batch: Features, options: dict[str, Any]) -> float:
    """The least ‖Σ α c‖ / Σ α ‖c‖ of all queries: where contexts cancel, the cosine's sign is rounding everywhere.

    It is 0 where zeros have all the weight but for so little that float32 does not hold what has a direction, squared.
    """
    return min(_attended(batch, way)[0] for way in ScanOptions(**{**DEFAULTS, **options}).ways)


def shortest_attended(batch: Features, options: dict[str, Any]) -> float:
    """The least Σ α ‖c‖ of all queries that is not 0: small where zeros have nearly all the weight."""
    return min(_attended(batch, way)[1] for way in ScanOptions(**{**DEFAULTS, **options}).ways)


def _attended(batch: Features, options: ScanOptions) -> tuple[float, float]:
    contexts, *attention = _attention(batch, options)
    alpha, query_mask = attention_weights(*attention, options), attention[-1]
    attended = (alpha.mT @ contexts).norm(dim=-1)
    longest = (alpha * contexts.norm(dim=-1)[..., :, None]).sum(-2)
    there = query_mask.expand(attended.shape) & (longest > 0)
    ratios = (attended / longest).where(longest > LEAST_WEIGHT, 0)[there]
    return (float(ratios.min()), float(longest[there].min())) if ratios.numel() else (1.0, 1.0)


def _attention(batch: Features, options: ScanOptions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Contexts, similarities (n_images, n_captions, C, Q) and masks of contexts and queries."""
    sides = [pad(pack_items(ragged), ragged.lengths.tolist()) for ragged in _ragged_sides(batch)]
    (v, v_mask), (e, e_mask) = sides
    if options.normalize:
        v, e = safe_normalize(v), safe_normalize(e)
    v, v_mask, e, e_mask = v[:, None], v_mask[:, None], e[None], e_mask[None]
    t2i = options.direction == "t2i"
    contexts, context_mask, queries, query_mask = (v, v_mask, e, e_mask) if t2i else (e, e_mask, v, v_mask)
    return contexts, contexts @ queries.mT, context_mask, query_mask


def _chosen(batch: Features, options: ScanOptions) -> bool:
    """Whether rounding moves no weight across the mean of focal attention or the threshold of "minmax"."""
    if not options.focal and options.norm != "minmax":
        return True
    _, s, context_mask, query_mask = _attention(batch, options)
    contexts = context_mask[..., None].expand(s.shape)
    cells = contexts & query_mask[..., None, :]
    counts = contexts.sum(-2, keepdim=True)
    several = cells & (counts > 1)
    clear = options.norm != "minmax" or batch.kind not in ("duplicates", "opposites")
    if options.norm == "minmax":
        least, most = (
            f(s.masked_fill(~contexts, x), -2, True) for f, x in ((torch.amin, torch.inf), (torch.amax, -torch.inf))
        )
        clear = clear and bool(((most - least > 1e-2 * s.abs().amax(-2, keepdim=True)) | ~several).all())
        n = (s - least) / (most - least)
        gaps = n - (1 / counts if options.threshold is None else options.threshold)
        clear = clear and bool(((gaps.abs() > 1e-5) | (n == 0) | (n == 1) | ~several).all())
    if options.focal:
        p = attention_weights(s, context_mask, query_mask, replace(options, focal=False))
        logits = 1.0 if options.norm == "minmax" else attention_logits(s, context_mask, query_mask, options)
        unsure = 3e-6 * (1 + torch.as_tensor(logits).where(cells, 0).abs().max())
        clear = clear and bool((((p * counts - (1 - FOCAL_SLACK)).abs() > unsure) | ~several).all())
    return clear


def well_posed(batch: Features, options: dict[str, Any]) -> bool:
    """Whether rounding moves the result but little: no vanishing attended vector, no tie for the maximum, no logits in
    the thousands.
    """
    raw = options["raw_feature_norm"] in ("no_norm", "clipped") and not options["normalize"]
    tied = options["pooling"] == "max" and batch.kind in ("duplicates", "opposites", "zero region", "zero word")
    ways = ScanOptions(**{**DEFAULTS, **options}).ways
    if tied or (raw and any(way.inverse_temperature > 30 for way in ways)):
        return False
    return least_attended(batch, options) > 1e-4 and all(_chosen(batch, way) for way in ways)


class Rounded(TorchDispatchMode):
    """Results off by what is rounded on the way to them.

    Products of matrices: by a walk of as many steps as a sum has terms, one after the other. Quotients: by two units,
    as those of an approximate reciprocal and root are. Gradients of a softmax: by a unit of the mean that it takes out.
    """

    def __init__(self, unit: float, seed: int) -> None:
        super().__init__()
        self.unit, self.generator = unit, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        aten = torch.ops.aten
        if function in (aten.mm.default, aten.bmm.default):
            left, right = arguments
            return result + left.size(-1) ** 0.5 / 2 * (left.abs() @ right.abs()) * self._walk(result)
        if function == aten.div.Tensor:
            return result + 2 * result * self._walk(result)
        if function == aten._softmax_backward_data.default:
            gradient, weights, dim, _ = arguments
            means = (gradient.abs() * weights).sum(dim, keepdim=True)
            return result + weights * means * self._walk(means)
        return result

    def _walk(self, like: Tensor) -> Tensor:
        return self.unit * (2 * torch.rand(like.shape, generator=self.generator, dtype=like.dtype) - 1)


def _moved_by_rounding(
    function: Callable[..., Tensor], batch: Features, truth: Result, unit: float, options: dict[str, Any]
) -> list[float]:
    """Twice as far as results move with such roundings, many of which a softmax takes that λ multiplies."""
    most = [0.0, 0.0, 0.0]
    for seed in range(2):
        with Rounded(unit / 16, seed):
            moved = evaluate(function, batch, torch.float64, backend="reference", **options)
        for place, (own, true) in enumerate(zip(moved, truth, strict=True)):
            most[place] = max(most[place], 2 * float((own - true).abs().max()) if true.numel() else 0.0)
    return most


def _ragged_sides(batch: Features) -> list[Ragged]:
    return [
        as_ragged(side, lengths, None, SideNames("features", "lengths", "mask", "item"))
        for side, lengths in zip((batch.regions, batch.words), batch.lengths, strict=True)
    ]


def _rounding_floors(batch: Features, truth: Result, unit: float, options: dict[str, Any]) -> list[float]:
    """A few units in the last place of what is summed up: eager may be exact by luck, or where all terms cancel.

    Scores are cosines or similarities. Gradients are of order 1 / ‖attended vector‖, times λ where that is taken of
    normalised similarities; those of Sum-Max of the order of the features, or of 1 / ‖feature‖ once normalised.
    """
    norms = torch.cat([side.flatten(0, 1).norm(dim=-1) for side in (batch.regions, batch.words)])
    shortest, longest = float(norms[norms > 0].min()), float(norms.max())
    if "raw_feature_norm" in options:
        # Logits without a norm saturate the softmax: less of λ reaches the gradient.
        power = 0.5 if options["raw_feature_norm"] in ("no_norm", "clipped") else 1
        ways = ScanOptions(**{**DEFAULTS, **options}).ways
        weight = 1 + max(abs(way.inverse_temperature) for way in ways) ** power
        least = least_attended(batch, options)
        shortest = min(shortest, shortest_attended(batch, options))
        slope = weight / (shortest * least) * max(1.0, 1 / (64 * least))  # where contexts cancel ‖a‖ is off by as much
        if not options.get("normalize"):
            slope = min(slope, weight * longest / 1e-8)  # the cosine's least denominator
    else:
        slope = 1 / shortest if options["normalize"] else longest
        if options.get("context_pooling") == "lse":  # similarities are rounded at their size, and τ magnifies that
            slope *= max(1.0, (1.0 if options["normalize"] else longest**2) / (16 * options["temperature"]))
    scores = unit * max(1.0, 1 / options.get("lambda_lse", 1.0), float(truth[0].abs().max()))
    if "raw_feature_norm" in options:
        # Σ p (q·c) is rounded in proportion to Σ p ‖q‖‖c‖, a cosine in that to ‖q‖‖a‖; of D = 1 eager is a sign.
        scores = max(scores, unit / 16 / least)
    return [scores, *(2 * unit * max(float(grad.abs().max()), slope) for grad in truth[1:])]
