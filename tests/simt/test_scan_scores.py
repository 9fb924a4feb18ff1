"""`scan_scores` by backend "cuda" on the CPU, held to the checks of tests/kernels/cross_attention and to its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
import torch
from hypothesis import assume, given
from torch import Tensor

from crossret_kernels import ScanOptions, UnsupportedByBackend, scan_scores
from crossret_kernels.backends import NOT_IN_TF32
from crossret_kernels.gpu.tuning import CudaAttention
from tests.kernels.cross_attention.agreement import Agreement
from tests.kernels.cross_attention.calls import Calls
from tests.kernels.cross_attention.gradients import Gradients
from tests.kernels.cross_attention.kernels import Kernels, batch_of
from tests.kernels.cross_attention.longest import check_longest_contexts
from tests.kernels.cross_attention.not_finite import NotFinite
from tests.kernels.precision import tfloat32
from tests.kernels.strategies import (
    FEW_ITEMS,
    IN_HALF_RANGE,
    NORM_MODES,
    Features,
    examples,
    features,
    nearly_cancelling,
    scan_options,
)
from tests.kernels.tolerance import Expectation, evaluate, score_weights, well_posed
from tests.simt.launches import MOST_SHARED, SCHEDULES, Device

USUAL = {name: getattr(CudaAttention, name) for name in ("CELLS", "ROW_BYTES", "GRAM_BYTES")}
DTYPES = torch.float32, torch.bfloat16, torch.float16
# What scores and gradients lose at most of the largest, in usual batches. Gradients of similarities are bfloat16
# where features are.
DIGITS = {
    torch.float32: (1e-5, 2e-5, 2e-5),
    torch.bfloat16: (1e-5, 2.0**-7, 2.0**-7),
    torch.float16: (2e-6, 2.0**-10, 2.0**-10),
}
# Of two bfloat16s, as which Gram matrices and weights are multiplied but of float16, 2⁻¹⁷; as much as eight
# times that of ‖a‖² where contexts cancel in part (kCancelled of csrc/cross_attention/gram.cuh).
GRAM_UNIT = 2.0**-14
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)

# Every norm, with a pooling and a direction, in two of the dtypes.
NORMS = [
    (norm, ("lse", "avg", "max", "sum")[i % 4], ("t2i", "i2t")[i // 4], DTYPES[(i + j) % 3])
    for i, norm in enumerate(NORM_MODES)
    for j in (0, 1)
]

pytestmark = pytest.mark.usefixtures("one_thread")


def in_tfloat32(x: Tensor) -> Tensor:
    """Rounded to the 11 binary digits of TF32."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


class CudaKernels(Kernels):
    """float32 features are held to what TF32 holds of them, whose products are exact."""

    def held(self, batch: Features) -> Features:
        return replace(batch, regions=in_tfloat32(batch.regions), words=in_tfloat32(batch.words))

    def check(self, batch: Features, dtype: torch.dtype = torch.float32, **options: Any) -> Expectation:
        if dtype is not torch.float16:
            options["unit"] = GRAM_UNIT
        if dtype is torch.bfloat16:
            options["share"] = torch.finfo(dtype).eps / 2  # as which gradients of similarities are multiplied
        return super().check(self.held(batch) if dtype is torch.float32 else batch, dtype, **options)


@pytest.fixture(scope="module")
def kernels(simulated: Device) -> Iterator[Kernels]:
    """Calls come in several parts, or not; each that is checked has a schedule and multiprocessors by its name."""

    def vary(what: str) -> None:
        number = crc32(what.encode())
        simulated.choose(SCHEDULES[number % 4], (1, 2, 100)[number // 4 % 3], capability=(80, 90)[number // 12 % 2])

    cuda = CudaKernels(
        "cuda",
        modules=(CudaAttention,),
        least={"CELLS": 1, "ROW_BYTES": 1},
        apart={"CELLS": 1, "GRAM_BYTES": 1},
        runs={"ROW_BYTES": 1000},
        before=vary,
    )
    with cuda.sizes(CELLS=1500, ROW_BYTES=20_000, GRAM_BYTES=40_000, WARPGROUPS=True):
        yield cuda


@pytest.fixture(autouse=True)
def schedule(kernels: Kernels, request: pytest.FixtureRequest) -> None:
    kernels.before(request.node.name)


class TestAgreement(Agreement):
    @examples(12)
    @given(batch=features(IN_HALF_RANGE, FEW_ITEMS), options=scan_options("cuda"))
    def test_bfloat16(self, kernels: Kernels, batch: Features, options: dict[str, Any]) -> None:
        assume(well_posed(batch.to(torch.bfloat16).to(torch.float64), options))
        kernels.check(batch, torch.bfloat16, **options)

    @dtypes
    @pytest.mark.parametrize("longest", [(12, 9), (150, 5)], ids=str)
    def test_the_ring_comes_round(self, kernels: Kernels, dtype: torch.dtype, longest: tuple[int, int]) -> None:
        """Rows of more stages than any shape of tile has, of which the last is not full."""
        dim = 6 * 64 // dtype.itemsize - 3
        kernels.check(batch_of(2, 5, dim, longest), dtype, raw_feature_norm="clipped", normalize=True)

    @dtypes
    @pytest.mark.parametrize("norm", ["softmax", "clipped_l2norm", "l1norm", "no_norm"])
    def test_queries_in_pieces(self, kernels: Kernels, dtype: torch.dtype, norm: str) -> None:
        """Of two tiles and of more, beside shorter ones; and of exactly one tile."""
        batch = batch_of(3, 4, 12, (7, 300))
        batch.word_lengths[:] = torch.tensor([128, 300, 17, 129])
        kernels.check(batch, dtype, raw_feature_norm=norm, pooling=pooling_of(norm), lambda_softmax=3.0)

    @pytest.mark.parametrize(
        ("norm", "rows", "dtype"),
        [
            *(("softmax", 145, dtype) for dtype in DTYPES),
            *(("clipped_l2norm", 300, dtype) for dtype in DTYPES[:2]),
            *(("no_norm", 520, dtype) for dtype in (torch.float32, torch.float16)),
        ],
        ids=str,
    )
    def test_contexts_longer_than_a_tile(self, kernels: Kernels, dtype: torch.dtype, norm: str, rows: int) -> None:
        """Fewer queries fit beside them, of 520 rows 16 with gradients; one is in pieces of its own."""
        batch = batch_of(2, 5, 12, (rows, 50))
        batch.region_lengths[:] = torch.tensor([3, rows])
        batch.word_lengths[:] = torch.tensor([1, 2, 50, 4, 16])
        kernels.check(batch, dtype, raw_feature_norm=norm, pooling=pooling_of(norm))

    @pytest.mark.parametrize(
        ("dtype", "direction"), [(torch.float32, "i2t"), (torch.bfloat16, "t2i"), (torch.float16, "i2t")], ids=str
    )
    def test_many_jobs(self, kernels: Kernels, dtype: torch.dtype, direction: str) -> None:
        """More of contexts than pass a tile of queries abreast, and several of queries, of full tiles and others."""
        many, few = (150, 1), (5, 70)
        n, longest = zip(*((many, few) if direction == "t2i" else (few, many)), strict=True)
        with kernels.sizes(**USUAL):
            kernels.check(batch_of(*n, 10, longest), dtype, direction=direction, pooling="lse", normalize=False)

    @dtypes
    @pytest.mark.parametrize("normalize", [False, True])
    def test_many_listed_pairs(self, kernels: Kernels, dtype: torch.dtype, normalize: bool) -> None:
        """More than a block takes, many of one context, some twice; of short queries more than a job has."""
        generator = torch.Generator().manual_seed(4)
        pairs = torch.stack([torch.randint(0, n, (300,), generator=generator) for n in (3, 17)], 1)
        pairs[:150, 0] = 1
        batch = batch_of(4, 17, 10, (20, 30 if normalize else 5), pairs=pairs)
        with kernels.sizes(**USUAL):
            kernels.check(batch, dtype, normalize=normalize, pooling="sum")

    def test_exponentials_of_what_is_far_below_zero(self, kernels: Kernels) -> None:
        """A softmax over queries whose every exponential float32 takes for zero, the greatest not taken out."""
        batch = batch_of(2, 3, 2, (37, 35))
        batch = replace(batch, regions=batch.regions.abs() * 4 + 8, words=-batch.words.abs() * 4 - 8)
        kernels.check(batch, raw_feature_norm="softmax")

    def test_a_logit_that_overflows_has_all_the_weight(self, kernels: Kernels) -> None:
        regions, words = torch.tensor([[[1e6, 0.0], [0.5, 0.5]]]), torch.ones(1, 1, 2)
        scores = kernels.score(regions, words, raw_feature_norm="no_norm", lambda_softmax=1e35, pooling="avg")
        torch.testing.assert_close(scores, torch.full((1, 1), 0.5**0.5))

    def test_long_attended_vectors_that_nearly_cancel(self, kernels: Kernels) -> None:
        batch = nearly_cancelling()
        batch = replace(batch, regions=batch.regions * 1e6, words=batch.words * 1e-6)
        kernels.check(batch, raw_feature_norm="no_norm", lambda_softmax=1e-2)


def pooling_of(norm: str) -> str:
    """Every norm another."""
    return {"softmax": "lse", "clipped_l2norm": "avg", "l1norm": "max", "no_norm": "sum"}[norm]


class TestNotFinite(NotFinite):
    def test_what_is_not_finite_far_behind_in_long_contexts(self, kernels: Kernels) -> None:
        """Scores of queries without rows are what is asked even so."""
        batch = batch_of(2, 2, 4, (150, 3)).to(torch.float32)
        batch.region_lengths[:], batch.word_lengths[1] = 150, 0
        clean = kernels.score(*batch.arguments(), empty_score=0.5)
        batch.regions[1, 149, 0] = torch.nan
        scores = kernels.score(*batch.arguments(), empty_score=0.5)
        assert scores[1, 0].isnan()
        assert scores[1, 1] == 0.5
        assert torch.equal(scores[0], clean[0])

    def test_the_greatest_numbers(self, kernels: Kernels) -> None:
        """They have directions, and are too long to be multiplied as they are."""
        regions, words = torch.tensor([[[2e38, 0.0]], [[1e38, 1e38]]]), torch.tensor([[[1.0, 2.0]]])
        scores = kernels.score(regions, words, normalize=True, pooling="avg")
        torch.testing.assert_close(scores, torch.tensor([[0.2], [0.9]]).sqrt())
        assert kernels.score(regions, words).isnan().all()

    @pytest.mark.parametrize(("side", "given"), [(0, 1.0), (1, 1.0), (None, 1e20)], ids=str)
    def test_gradients_of_pairs_that_are_not_finite(self, kernels: Kernels, side: int | None, given: float) -> None:
        """By an item of either side, or by what they are given, which is too large."""
        batch = batch_of(2, 3).to(torch.float32)
        sides = batch.regions, batch.words
        if side is not None:
            sides[side][1 - side, 0, 0] = torch.nan
        scores = kernels.score(*(own.requires_grad_() for own in sides), *batch.lengths, pooling="sum")
        of_regions, of_words = torch.autograd.grad(scores, sides, torch.tensor([[0, 1, 0], [given, given, 0]]))
        assert of_regions[0].isfinite().all()
        assert of_regions[1, : batch.region_lengths[1]].isnan().all()
        assert of_words[0, : batch.word_lengths[0]].isnan().all()
        assert of_words[2].isfinite().all()


class TestGradients(Gradients):
    @pytest.mark.parametrize(("norm", "pooling", "direction", "dtype"), NORMS)
    def test_digits(self, kernels: Kernels, norm: str, pooling: str, direction: str, dtype: torch.dtype) -> None:
        """Of usual features, of which more are right than hold for any."""
        options = {"direction": direction, "raw_feature_norm": norm, "pooling": pooling, "normalize": True}
        for longest in ((12, 9), (40, 80)):
            batch = batch_of(3, 4, 30, longest).to(torch.bfloat16).to(torch.float64)
            results = []
            with kernels.sizes(**USUAL):
                for backend, cast in (("reference", torch.float64), (kernels.backend, dtype)):
                    results.append(evaluate(scan_scores, batch, cast, lambda_softmax=5.0, backend=backend, **options))
            for true, ours, digits in zip(*results, DIGITS[dtype], strict=True):
                assert (ours - true).abs().max() <= digits * true.abs().max()

    @pytest.mark.parametrize("most_shared", MOST_SHARED)
    @pytest.mark.parametrize("norm", ["softmax", "clipped_l2norm"])
    @dtypes
    def test_gpus_with_less_shared_memory(
        self, kernels: Kernels, simulated: Device, dtype: torch.dtype, norm: str, most_shared: int
    ) -> None:
        """Tiles of fewer rows."""
        own = replace(kernels, before=lambda _: simulated.choose(most_shared=most_shared))
        with kernels.sizes(**USUAL):
            for longest in ((36, 12), (20, 150)):
                own.check(batch_of(3, 10, 24, longest), dtype, raw_feature_norm=norm)

    @pytest.mark.parametrize("norm", ["clipped_l2norm", "clipped", "l1norm"])
    def test_similarities_of_zero(self, kernels: Kernels, norm: str) -> None:
        """Their slope is that of negative ones."""
        sides = [torch.tensor([side], dtype=torch.float64) for side in ([[1, 0], [1, 1]], [[0, 1], [1, 2]])]
        batch = Features(*sides, torch.tensor([2]), torch.tensor([2]), None)
        kernels.check(batch, raw_feature_norm=norm, pooling="sum")

    @pytest.mark.parametrize(("lambda_softmax", "scale"), [(1e36, 65536.0), (3.4e38, 6.0)])
    def test_gradients_that_lambda_takes_beyond_float32(
        self, kernels: Kernels, lambda_softmax: float, scale: float
    ) -> None:
        """Before they meet weights of zero; `scale` is that of a mixed-precision training's scores."""
        batch = batch_of(2, 3, 24).to(torch.float32)
        options = {"lambda_softmax": lambda_softmax, "raw_feature_norm": "no_norm", "normalize": True}
        gradients = []
        for dtype, backend in ((torch.float64, "reference"), (torch.float32, "cuda")):
            sides = [side.to(dtype, copy=True).requires_grad_() for side in (batch.regions, batch.words)]
            scores = scan_scores(*sides, *batch.lengths, backend=backend, **options)
            gradients.append([x.double() for x in torch.autograd.grad(scale * scores.sum(), sides)])
        for true, found in zip(*gradients, strict=True):
            torch.testing.assert_close(found, true, rtol=0, atol=2e-2 * float(true.abs().max()))

    def test_lambda_does_not_blow_up_what_cancels(self, kernels: Kernels) -> None:
        """Contexts are mirrored beside the queries, so that weights are equal and stay so, whatever lambda is."""
        generator = torch.Generator().manual_seed(6)
        words, along, beside = (torch.zeros(1, n, 24) for n in (9, 1, 1))
        words[..., :12] = torch.randn(9, 12, generator=generator)
        along[..., :12], beside[..., 12:] = torch.randn(2, 12, generator=generator)
        sides = [torch.cat([along + 100 * beside, along - 100 * beside], 1).requires_grad_(), words.requires_grad_()]
        made = []
        for lambda_softmax in (1.0, 1e6):
            options = {"raw_feature_norm": "no_norm", "pooling": "sum", "lambda_softmax": lambda_softmax}
            made.append(torch.autograd.grad(kernels.score(*sides, **options), sides))
        for once, again in zip(*made, strict=True):
            torch.testing.assert_close(once, again, rtol=1e-3, atol=1e-3 * float(once.abs().max()))


class TestCalls(Calls): ...


def test_float32_features_that_are_not_for_tf32_are_refused(kernels: Kernels) -> None:
    """By who calls the operation, and by the operation itself."""
    batch = batch_of(2, 3).to(torch.float32)
    told = re.escape(NOT_IN_TF32)
    with tfloat32(False):
        with pytest.raises(UnsupportedByBackend, match=told):
            kernels.score(*batch.arguments())
        with torch.autocast("cpu", torch.bfloat16):
            scores = kernels.score(*batch.arguments())
        assert torch.equal(scores, kernels.score(*batch.to(torch.bfloat16).arguments()))
    given = batch.regions, None, batch.region_lengths, None, batch.words, None, batch.word_lengths, None, None
    with pytest.raises(UnsupportedByBackend, match=told):
        torch.ops.crossret.scan_scores_cuda(*given, None, False, *ScanOptions().codes, False)


@pytest.mark.parametrize(
    ("dtype", "norm", "listed"),  # every two
    [
        (torch.float32, "softmax", False),
        (torch.float32, "clipped_l2norm", True),
        (torch.bfloat16, "softmax", True),
        (torch.bfloat16, "clipped_l2norm", False),
        (torch.float16, "clipped_l2norm", False),
        (torch.float16, "softmax", True),
    ],
    ids=str,
)
def test_schedules_do_not_show(
    kernels: Kernels, simulated: Device, dtype: torch.dtype, norm: str, listed: bool
) -> None:
    pairs = torch.randint(0, 5, (40, 2), generator=torch.Generator().manual_seed(1)) if listed else None
    batch = batch_of(5, 5, 100, (21, 80)).to(dtype)
    batch.word_lengths[3] = 80
    made: list[tuple[Tensor, ...]] = []
    with kernels.sizes(**USUAL):
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
    with kernels.sizes(**USUAL):
        check_longest_contexts(torch.device("cpu"), gradients, dtype, norm)
