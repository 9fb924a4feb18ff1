"""`scan_scores` by backend "cuda" on the CPU, held to the checks of tests/kernels/scan_checks and to its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import pytest
import torch
from hypothesis import assume, given
from torch import Tensor

from crossret_kernels import scan_scores
from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.cuda import plan
from crossret_kernels.cross_attention.options import CrossAttentionOptions
from tests.kernels.scan_checks.agreement import Agreement
from tests.kernels.scan_checks.calls import Calls
from tests.kernels.scan_checks.gradients import Gradients
from tests.kernels.scan_checks.kernels import DIRECTIONS, Kernels, batch_of
from tests.kernels.scan_checks.not_finite import NotFinite
from tests.kernels.strategies import FEW_ITEMS, IN_HALF_RANGE, NORM_MODES, Features, examples, features, scan_options
from tests.kernels.tolerance import evaluate, score_weights, well_posed
from tests.simt.launches import SCHEDULES, Device

USUAL = {"CELLS": plan.CELLS, "ROW_BYTES": plan.ROW_BYTES, "GRAM_BYTES": plan.GRAM_BYTES}
PRECISIONS = {
    "ieee": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
}
# What scores and gradients lose at most of the largest, in usual batches. Gradients of similarities are bfloat16
# where features are.
DIGITS = {
    "ieee": (2e-6, 4e-6, 4e-6),
    "tf32": (1e-5, 2e-5, 2e-5),
    "bfloat16": (1e-5, 2.0**-7, 2.0**-7),
    "float16": (2e-6, 2.0**-10, 2.0**-10),
}
GRAM_UNIT = 2.0**-16  # of two bfloat16s, as which Gram matrices and weights are multiplied beside TF32 and bfloat16
precisions = pytest.mark.parametrize("precision", PRECISIONS)

# Every norm, with a pooling and a direction.
NORMS = [(norm, ("lse", "avg", "max", "sum")[i % 4], ("t2i", "i2t")[i // 4]) for i, norm in enumerate(NORM_MODES)]

pytestmark = pytest.mark.usefixtures("one_thread")


@contextmanager
def tfloat32(allowed: bool = True) -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def check(kernels: Kernels, batch: Features, precision: str, **options: Any) -> None:
    """Of TF32 with features that it holds, whose products are exact."""
    dtype, allowed = PRECISIONS[precision]
    if allowed:
        batch = batch.to(torch.bfloat16).to(torch.float64)
    unit = {"unit": GRAM_UNIT} if precision in ("tf32", "bfloat16") else {}
    with tfloat32(allowed):
        kernels.check(batch, dtype, **unit, **options)


@pytest.fixture(scope="module")
def kernels(simulated: Device) -> Iterator[Kernels]:
    """Calls come in several parts, or not; each that is checked has a schedule and multiprocessors by its name."""

    def vary(what: str) -> None:
        number = crc32(what.encode())
        simulated.choose(SCHEDULES[number % 4], (1, 2, 100)[number // 4 % 3])

    cuda = Kernels(
        "cuda",
        modules=(plan,),
        least={"CELLS": 1, "ROW_BYTES": 1},
        apart={"CELLS": 1, "GRAM_BYTES": 1},
        runs={"ROW_BYTES": 1000},
        codes=lambda *options: (None, *CrossAttentionOptions(*options).codes),
        before=vary,
    )
    with cuda.sizes(CELLS=1500, ROW_BYTES=20_000, GRAM_BYTES=40_000):
        yield cuda


@pytest.fixture(autouse=True)
def schedule(kernels: Kernels, request: pytest.FixtureRequest) -> None:
    kernels.before(request.node.name)


class TestAgreement(Agreement):
    @examples(12)
    @given(batch=features(IN_HALF_RANGE, FEW_ITEMS), options=scan_options())
    def test_tfloat32(self, kernels: Kernels, batch: Features, options: dict[str, Any]) -> None:
        assume(well_posed(batch.to(torch.bfloat16).to(torch.float64), options))
        check(kernels, batch, "tf32", **options)

    @examples(12)
    @given(batch=features(IN_HALF_RANGE, FEW_ITEMS), options=scan_options())
    def test_bfloat16(self, kernels: Kernels, batch: Features, options: dict[str, Any]) -> None:
        assume(well_posed(batch.to(torch.bfloat16).to(torch.float64), options))
        check(kernels, batch, "bfloat16", **options)

    @precisions
    @pytest.mark.parametrize("longest", [(12, 9), (150, 5)], ids=str)
    def test_the_ring_comes_round(self, kernels: Kernels, precision: str, longest: tuple[int, int]) -> None:
        """Rows of more stages than any shape of tile has, of which the last is not full."""
        dim = 6 * 64 // PRECISIONS[precision][0].itemsize - 3
        check(kernels, batch_of(2, 5, dim, longest), precision, raw_feature_norm="clipped", normalize=True)

    @precisions
    @pytest.mark.parametrize("norm", ["softmax", "clipped_l2norm", "l1norm", "no_norm"])
    def test_queries_in_pieces(self, kernels: Kernels, precision: str, norm: str) -> None:
        """Of two tiles and of more, beside shorter ones; and of exactly one tile."""
        batch = batch_of(3, 4, 12, (7, 300))
        batch.word_lengths[:] = torch.tensor([128, 300, 17, 129])
        check(kernels, batch, precision, raw_feature_norm=norm, pooling=pooling_of(norm), lambda_softmax=3.0)

    @precisions
    @pytest.mark.parametrize(("norm", "rows"), [("softmax", 145), ("clipped_l2norm", 300), ("no_norm", 520)])
    def test_contexts_longer_than_a_tile(self, kernels: Kernels, precision: str, norm: str, rows: int) -> None:
        """Fewer queries fit beside them, of 520 rows 16 with gradients; one is in pieces of its own."""
        batch = batch_of(3, 6, 12, (rows, 50))
        batch.region_lengths[:] = torch.tensor([rows, 3, rows - 1])
        batch.word_lengths[:] = torch.tensor([1, 2, 3, 50, 4, 16])
        check(kernels, batch, precision, raw_feature_norm=norm, pooling=pooling_of(norm))

    @precisions
    @DIRECTIONS
    def test_many_jobs(self, kernels: Kernels, precision: str, direction: str) -> None:
        """More of contexts than pass a tile of queries abreast, and several of queries, of full tiles and others."""
        many, few = (150, 1), (5, 70)
        n, longest = zip(*((many, few) if direction == "t2i" else (few, many)), strict=True)
        with kernels.sizes(**USUAL):
            check(kernels, batch_of(*n, 10, longest), precision, direction=direction, pooling="lse", normalize=False)

    @precisions
    @pytest.mark.parametrize("normalize", [False, True])
    def test_many_listed_pairs(self, kernels: Kernels, precision: str, normalize: bool) -> None:
        """More than a block takes, many of one context, some twice."""
        generator = torch.Generator().manual_seed(4)
        pairs = torch.stack([torch.randint(0, n, (300,), generator=generator) for n in (3, 17)], 1)
        pairs[:150, 0] = 1
        batch = batch_of(4, 17, 10, (20, 30), pairs=pairs)
        with kernels.sizes(**USUAL):
            check(kernels, batch, precision, normalize=normalize, pooling="sum")


def pooling_of(norm: str) -> str:
    """Every norm another."""
    return {"softmax": "lse", "clipped_l2norm": "avg", "l1norm": "max", "no_norm": "sum"}[norm]


class TestNotFinite(NotFinite): ...


class TestGradients(Gradients):
    @precisions
    @pytest.mark.parametrize(("norm", "pooling", "direction"), NORMS)
    def test_digits(self, kernels: Kernels, precision: str, norm: str, pooling: str, direction: str) -> None:
        """Of usual features, of which more are right than hold for any."""
        dtype, allowed = PRECISIONS[precision]
        options = {"direction": direction, "raw_feature_norm": norm, "pooling": pooling, "normalize": True}
        for longest in ((12, 9), (40, 80)):
            batch = batch_of(3, 4, 30, longest).to(torch.bfloat16).to(torch.float64)
            results = []
            with tfloat32(allowed), kernels.sizes(**USUAL):
                for backend, cast in (("reference", torch.float64), (kernels.backend, dtype)):
                    results.append(evaluate(scan_scores, batch, cast, lambda_softmax=5.0, backend=backend, **options))
            for true, ours, digits in zip(*results, DIGITS[precision], strict=True):
                assert (ours - true).abs().max() <= digits * true.abs().max()


class TestCalls(Calls): ...


@pytest.mark.parametrize(
    ("precision", "norm", "listed"),  # every two
    [
        ("ieee", "softmax", False),
        ("ieee", "clipped_l2norm", True),
        ("tf32", "clipped_l2norm", False),
        ("bfloat16", "softmax", True),
        ("float16", "clipped_l2norm", False),
        ("float16", "softmax", True),
    ],
)
def test_schedules_do_not_show(kernels: Kernels, simulated: Device, precision: str, norm: str, listed: bool) -> None:
    dtype, allowed = PRECISIONS[precision]
    pairs = torch.randint(0, 5, (40, 2), generator=torch.Generator().manual_seed(1)) if listed else None
    batch = batch_of(5, 5, 100, (21, 80)).to(dtype)
    batch.word_lengths[3] = 80
    made: list[tuple[Tensor, ...]] = []
    with tfloat32(allowed), kernels.sizes(**USUAL):
        for schedule in SCHEDULES:
            simulated.choose(schedule, 3)
            sides = [side.clone().requires_grad_() for side in (batch.regions, batch.words)]
            scores = kernels.score(*sides, *batch.lengths, raw_feature_norm=norm, pooling="lse", pairs=pairs)
            weights = score_weights(scores.shape).to(scores)
            made.append((scores.detach(), *torch.autograd.grad((scores * weights).sum(), sides)))
    for results in made[1:]:
        assert all(torch.equal(result, first) for result, first in zip(results, made[0], strict=True))


@pytest.mark.parametrize("norm", ["softmax", "clipped_l2norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gradients", [False, True])
def test_the_longest_contexts(kernels: Kernels, gradients: bool, dtype: torch.dtype, norm: str) -> None:
    """They are served whatever the norm, by blocks that fit; longer ones are refused."""
    most = longest_contexts(gradients)
    regions = torch.randn(1, most + 1, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    words = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for backend, cast in ((kernels.backend, dtype), ("reference", torch.float64)):
        sides = [side.to(cast).clone().requires_grad_(gradients) for side in (regions[:, :most], words)]
        with kernels.sizes(**USUAL):
            scores = scan_scores(*sides, raw_feature_norm=norm, lambda_softmax=2.0, backend=backend)
            results.append((scores, *(torch.autograd.grad(scores.sum(), sides) if gradients else ())))
    for ours, true in zip(*results, strict=True):
        unit = torch.finfo(ours.dtype).eps + 1e-5  # of bfloat16 gradients of similarities are too
        assert (ours.double() - true).abs().max() <= unit * true.abs().max()
    with pytest.raises(UnsupportedByBackend, match=f"attended items of up to {most} rows.*the longest has {most + 1}"):
        scores = kernels.score(regions.requires_grad_(gradients), words)
        scores.sum().backward()


def longest_contexts(gradients: bool) -> int:
    room, of_row = (plan.GRADIENT_ROOM, plan.GRADIENT_ROW_ROOM) if gradients else (plan.ROOM, plan.ROW_ROOM)
    return (227 * 2**10 - room) // of_row
