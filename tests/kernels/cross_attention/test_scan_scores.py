"""`scan_scores` of every backend, instruction set and dtype against the float64 oracle, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, example, given

from crossret_kernels import scan_scores
from crossret_kernels.cross_attention import op
from tests.kernels.strategies import (
    DIRECTIONS,
    IN_HALF_RANGE,
    Features,
    examples,
    features,
    nearly_cancelling_numbers,
    scan_options,
)
from tests.kernels.tolerance import ISAS, Expectation, check_float64, cpu_isa, well_posed

EVEN = {
    **{"direction": "t2i", "raw_feature_norm": "clipped_l2norm", "clip_slope": 0.1, "lambda_softmax": 0.0},
    **{"pooling": "lse", "lambda_lse": 0.1, "normalize": False},
}


@examples(150)
@given(batch=features(), options=scan_options())
def test_float32(batch: Features, options: dict[str, Any]) -> None:
    assume(well_posed(batch, options))
    expected = Expectation.of(scan_scores, batch, torch.float32, **options)
    expected.check_faults()
    expected.check("torch")
    for isa in ISAS:
        expected.check("cpu", isa)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@examples(40)
@given(batch=features(IN_HALF_RANGE), options=scan_options())
@example(batch=nearly_cancelling_numbers(), options=EVEN)
def test_half_precision_features(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(dtype).to(torch.float64)
    assume(well_posed(batch, options))
    expected = Expectation.of(scan_scores, batch, dtype, **options)
    expected.check_faults()
    expected.check("torch")
    for isa in ISAS:
        expected.check("cpu", isa)


@examples(30)
@given(batch=features(), options=scan_options(directions=(*DIRECTIONS, "both")))
def test_torch_is_exact_in_float64(batch: Features, options: dict[str, Any]) -> None:
    assume(well_posed(batch, options))
    check_float64(scan_scores, batch, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@examples(30)
@given(batch=features(IN_HALF_RANGE), options=scan_options("cpu", ("both",)))
def test_both_directions_from_one_product(dtype: torch.dtype, batch: Features, options: dict[str, Any]) -> None:
    batch = batch.to(dtype).to(torch.float64)
    assume(well_posed(batch, options))
    expected = Expectation.of(scan_scores, batch, dtype, **options)
    expected.check_faults()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "one_product_serves", lambda _: True)
        for isa in ISAS:
            expected.check("cpu", isa)


@examples(50)
@given(batch=features(most=(3, 4)), options=scan_options(directions=("both",)))
def test_both_directions(batch: Features, options: dict[str, Any]) -> None:
    """Which kernels have one by one."""
    assume(well_posed(batch, options))
    expected = Expectation.of(scan_scores, batch, torch.float32, **options)
    expected.check_faults()
    expected.check("torch")
    expected.check("cpu")


@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
def test_batches_of_many_blocks_and_groups(direction: str) -> None:
    """More images than a group holds, more words than a block, one image and one caption far longer than the rest."""
    generator = torch.Generator().manual_seed(0)
    regions, words = torch.randn(16, 60, 1100, generator=generator), torch.randn(9, 70, 1100, generator=generator)
    region_lengths = torch.randint(30, 40, (16,), generator=generator).index_fill(0, torch.tensor(3), 60)
    word_lengths = torch.randint(1, 21, (9,), generator=generator).index_fill(0, torch.tensor(7), 70)
    batch = Features(regions.double(), words.double(), region_lengths, word_lengths, None)
    expected = Expectation.of(
        scan_scores,
        batch,
        torch.float32,
        direction=direction,
        raw_feature_norm="clipped_l2norm",
        lambda_softmax=4.0,
        pooling="lse",
        normalize=True,
    )
    for isa in ISAS:
        expected.check("cpu", isa)


@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
def test_gradients_of_more_pairs_than_a_chunk_holds(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "one_product_serves", lambda _: True)
    generator = torch.Generator().manual_seed(1)
    regions, words = torch.randn(100, 24, 8, generator=generator), torch.randn(250, 12, 8, generator=generator)
    lengths = [torch.randint(1, n + 1, (count,), generator=generator) for n, count in ((24, 100), (12, 250))]
    grads = []
    for backend in ("cpu", "torch"):
        v, e = regions.clone().requires_grad_(), words.clone().requires_grad_()
        scores = scan_scores(v, e, *lengths, direction=direction, backend=backend)
        weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2))
        grads.append(torch.autograd.grad((scores * weights).sum(), (v, e)))
    for native, chunked in zip(*grads, strict=True):
        torch.testing.assert_close(native, chunked, rtol=1e-3, atol=1e-4 * float(chunked.abs().max()))


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_the_clip_slopes_at_a_similarity_of_zero(direction: str) -> None:
    """LeakyReLU's derivative at zero is its slope, as PyTorch has it; small whole numbers are often orthogonal."""
    generator = torch.Generator().manual_seed(4)
    regions, words = (torch.randint(-1, 2, (3, n, 4), generator=generator).double() for n in (5, 6))
    batch = Features(regions, words, torch.full((3,), 5), torch.full((3,), 6), None)
    expected = Expectation.of(
        scan_scores, batch, torch.float32, direction=direction, raw_feature_norm="clipped", lambda_softmax=0.5
    )
    for isa in ISAS:
        expected.check("cpu", isa)


@pytest.mark.parametrize("lambda_softmax", [9.0, 17.0, 20.0])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])
def test_one_opposed_word_leaves_every_weight_tiny(scale: float, lambda_softmax: float) -> None:
    """n = −1 throughout: weights of exp(−2λ), were they not taken relative to the largest."""
    generator = torch.Generator().manual_seed(5)
    regions = scale * torch.rand(2, 4, 8, generator=generator, dtype=torch.float64)
    words = -torch.rand(2, 1, 8, generator=generator, dtype=torch.float64)
    batch = Features(regions, words, torch.full((2,), 4), torch.ones(2, dtype=torch.int64), None)
    for norm in ("l2norm", "clipped_l2norm"):
        expected = Expectation.of(
            scan_scores, batch, torch.float32, raw_feature_norm=norm, lambda_softmax=lambda_softmax
        )
        for isa in ISAS:
            expected.check("cpu", isa)


@pytest.mark.parametrize(("n_regions", "n_words"), [(1, 1), (1, 12), (36, 12)])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_long_features_do_not_blow_up_what_rounding_leaves(direction: str, n_regions: int, n_words: int) -> None:
    """Σ ∂L/∂logit is zero but for rounding, which λ·‖c‖ would carry into the gradients of unnormalised features."""
    generator = torch.Generator().manual_seed(6)
    regions, words = (10 * torch.rand(2, n, 512, generator=generator).double() for n in (n_regions, n_words))
    batch = Features(regions, words, torch.full((2,), n_regions), torch.full((2,), n_words), None)
    expected = Expectation.of(scan_scores, batch, torch.float32, direction=direction, raw_feature_norm="no_norm")
    for isa in ISAS:
        expected.check("cpu", isa)


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
def test_parallel_rows_cancel_exactly_once_normalised(backend: str) -> None:
    regions = torch.tensor([[[41.0, 0, 0], [-1.0, 0, 0]]])
    scores = scan_scores(
        regions, torch.tensor([[[1.0, 2.0, 3.0]]]), normalize=True, lambda_softmax=0.0, backend=backend
    )
    assert scores.item() == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-20, 1e-18, 1.0, 1e15])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_normalised_features_may_have_any_length(direction: str, size: float, dtype: torch.dtype, isa: str) -> None:
    generator = torch.Generator().manual_seed(0)
    regions = (torch.randn(3, 7, 33, generator=generator) * size).to(dtype)
    words = (torch.randn(2, 6, 33, generator=generator) * size).to(dtype)
    expected = scan_scores(regions.double(), words.double(), direction=direction, normalize=True, backend="reference")
    with cpu_isa(isa):
        scores = scan_scores(regions, words, direction=direction, normalize=True, backend="cpu")
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-6)
