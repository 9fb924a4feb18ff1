"""Scores of all pairs on a GPU, forward and in training steps: their floor, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import SETTINGS, WHOLE_TEST_SET, Case, Inputs
from benchmarks.checks import TOLERANCES, sample_items
from benchmarks.gpu.implementations import (
    COMPILED,
    LOOP,
    PEERS,
    SAMPLED,
    Score,
    captured,
    maxsim,
    scan,
)
from benchmarks.gpu.inputs import DTYPES, rotated
from benchmarks.gpu.results import FUSED
from benchmarks.gpu.work import Calls, Floor
from benchmarks.loops import maxsim_loop, scan_loop
from crossret_kernels import triplet_loss

SAMPLED_CAPTIONS = 256  # captions of a sample, in larger cases
STEP_PRODUCTS = 4  # scores, scores again with their gradients, one product for either side's features
CHECKED_STEP = 16  # images and captions of the training step that is checked
OTHERS_STEP = 0.5  # how far off others' gradients may be: of similarities that they round another one may be the best
SLOWER = {LOOP: 200.0, COMPILED: 5.0}


@dataclass(frozen=True)
class ScoreCase:
    """A case at a precision ("tf32": float32 features, TF32 products) by several implementations.

    Attributes:
        setting: of `benchmarks.cases.SETTINGS`; None for t2i Sum-Max.
        training: with the hardest-negative loss and both sides' gradients.
        targets: of implementations' ratios to the floor.
        read: whether the floor is to read the images once, as of few captions, which cost less to multiply.
    """

    setting: str | None
    case: Case
    precision: str
    implementations: tuple[str, ...]
    training: bool = False
    targets: Mapping[str, float] = field(default_factory=dict)
    read: bool = False

    @property
    def operation(self) -> str:
        return f"{self.setting or 'Sum-Max'} {'training step' if self.training else 'forward'}"

    @property
    def shape(self) -> str:
        return str(self.case)

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.setting is None else SETTINGS[self.setting]

    @property
    def score(self) -> Callable[[str], Score]:
        return maxsim if self.setting is None else partial(scan, options=self.options)

    @property
    def oracle(self) -> Score:
        return maxsim_loop if self.setting is None else partial(scan_loop, **self.options)

    def slower(self, name: str) -> dict[str, float] | None:
        if name in PEERS:
            return {"triton": 1.0}
        return {"triton": SLOWER[name]} if name in SLOWER and self.case == WHOLE_TEST_SET else None

    def tolerance(self, name: str) -> float:
        """How far off an implementation may be."""
        if self.training and name not in FUSED:
            return OTHERS_STEP
        return 1e-2 if self.precision == "tf32" else TOLERANCES[DTYPES[self.precision]]

    def work(self, device: torch.device) -> ScoreWork:
        return ScoreWork(self, device)


class ScoreWork:
    """A case's inputs on a device."""

    def __init__(self, case: ScoreCase, device: torch.device) -> None:
        self.case = case
        first = case.case.inputs(device).to(DTYPES[case.precision])
        self.sets = rotated(first, first.regions.nbytes + first.words.nbytes, _clone)
        self.flop = first.flop
        if case.training:
            for inputs in self.sets:
                inputs.regions.requires_grad_()
                inputs.words.requires_grad_()
        if case.read:
            self.floor = Floor("one read", rate="read", amount=first.bytes)
        else:
            name = f"{STEP_PRODUCTS} products" if case.training else "product"
            self.floor = Floor(name, (), STEP_PRODUCTS if case.training else 1, case.precision, first.flop)

    def calls(self, name: str) -> Calls:
        case = self.case
        sampled = name in SAMPLED and case.case.n_captions > SAMPLED_CAPTIONS
        own = [inputs.first(case.case.n_images, SAMPLED_CAPTIONS) for inputs in self.sets] if sampled else self.sets
        score = case.score(name)
        error = error_of(case, score, own[0], case.tolerance(name))
        run: Callable[[Inputs], Any] = partial(step, score) if case.training else score
        share = own[0].flop / self.flop
        floor = replace(self.floor, times=self.floor.times * share)
        calls, replays = ([partial(run, inputs) for inputs in sets] for sets in (own, [captured(x) for x in own]))
        return Calls(calls, error, own[0].pairs, own[0].flop, floor, replays)


def _clone(inputs: Inputs) -> Inputs:
    return Inputs(inputs.regions.clone(), inputs.region_lengths, inputs.words.clone(), inputs.word_lengths)


def step(score: Score, inputs: Inputs) -> tuple[Tensor, ...]:
    """Gradients in both sides' features of the hardest-negative loss."""
    return torch.autograd.grad(triplet_loss(score(inputs).float()), (inputs.regions, inputs.words))


def checked_step(score: Score, inputs: Inputs) -> Tensor:
    """Both gradients of a sum of scores by fixed weights: which pair is the hardest negative may hang on rounding."""
    scores = score(inputs).float()
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(scores)
    grads = torch.autograd.grad((scores * weights).sum(), (inputs.regions, inputs.words))
    return torch.cat([grad.flatten() for grad in grads])


def error_of(case: ScoreCase, score: Score, inputs: Inputs, tolerance: float) -> float:
    """The largest difference to float64 of a sample of scores; of a training step ‖difference‖ / ‖gradients‖.

    Raises:
        AssertionError: it is more than the precision explains.
    """
    if case.training:
        few = inputs.first(CHECKED_STEP, CHECKED_STEP)
        sides = [Inputs(few.regions.detach().to(dtype).requires_grad_(), few.region_lengths,
                        few.words.detach().to(dtype).requires_grad_(), few.word_lengths)
                 for dtype in (few.regions.dtype, torch.float64)]  # fmt: skip
        found, expected = checked_step(score, sides[0]), checked_step(case.oracle, sides[1])
        error = float((found.double() - expected).norm() / expected.norm())
    else:
        images, captions = sample_items(len(inputs.regions)), sample_items(len(inputs.words))
        expected = case.oracle(inputs.pick(images, captions).to(torch.float64))
        found = score(inputs)[images.to(inputs.regions.device)[:, None], captions.to(inputs.regions.device)]
        error = float((found.double() - expected).abs().max() / max(1.0, float(expected.abs().max())))
    assert error <= tolerance, f"{case.operation}, {case.shape}, {case.precision}: off by {error:.3g}"
    return error
