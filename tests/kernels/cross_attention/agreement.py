"""`scan_scores` by a backend for GPUs against the float64 oracle, forward and backward, in many small tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from crossret_kernels import scan_scores
from tests.kernels.cross_attention.kernels import DIRECTIONS, NO_NUMBERS, Kernels, batch_of
from tests.kernels.strategies import (
    FEW_ITEMS,
    IN_HALF_RANGE,
    Features,
    examples,
    features,
    nearly_cancelling,
    scan_options,
)
from tests.kernels.tolerance import well_posed


class Agreement:
    @examples(25)
    @given(batch=features(most=FEW_ITEMS), data=st.data())
    def test_float32(self, kernels: Kernels, batch: Features, data: st.DataObject) -> None:
        options = data.draw(scan_options(kernels.backend))
        batch = kernels.held(batch)
        assume(well_posed(batch, options))
        kernels.check(batch, **options)

    @examples(12)
    @given(batch=features(IN_HALF_RANGE, FEW_ITEMS), data=st.data())
    def test_float16(self, kernels: Kernels, batch: Features, data: st.DataObject) -> None:
        options = data.draw(scan_options(kernels.backend))
        batch = batch.to(torch.float16).to(torch.float64)
        assume(well_posed(batch, options))
        kernels.check(batch, torch.float16, **options).check_faults()

    @DIRECTIONS
    @pytest.mark.parametrize("longest", [(3, 2), (37, 35)], ids=str)
    def test_exponentials_of_what_is_not_there(
        self, kernels: Kernels, direction: str, longest: tuple[int, int]
    ) -> None:
        """Beside opposites, whose similarities are far below the zeros that stand where there are none."""
        batch = batch_of(2, 3, 2, longest)
        batch = replace(batch, regions=batch.regions.abs() * 4, words=-batch.words.abs() * 4)
        for norm, lambda_softmax in (("no_norm", 20.0), ("l2norm", 120.0)):
            options = {"direction": direction, "raw_feature_norm": norm, "lambda_softmax": lambda_softmax}
            kernels.check(batch, lambda_lse=200.0, pooling="lse", **options)

    @DIRECTIONS
    @pytest.mark.parametrize(
        ("norm", "pooling", "listed"),
        [
            ("clipped_l2norm", "lse", False),
            ("softmax", "max", False),
            ("l1norm", "sum", True),
            ("no_norm", "avg", True),
            ("l2norm", "softmax", False),
        ],
    )
    def test_items_of_several_tiles_and_blocks(
        self, kernels: Kernels, direction: str, norm: str, pooling: str, listed: bool
    ) -> None:
        pairs = torch.tensor([[0, 1], [1, 0], [0, 1]]) if listed else None
        batch = batch_of(2, 2, longest=(37, 35), pairs=pairs)
        batch.region_lengths[0], batch.word_lengths[1] = 37, 35
        options = {"direction": direction, "raw_feature_norm": norm, "pooling": pooling, "normalize": not listed}
        kernels.check(batch, **options)

    @pytest.mark.parametrize(
        ("direction", "dtype", "normalize", "longest"),  # every two
        [
            ("t2i", torch.float32, False, (12, 9)),
            ("t2i", torch.float16, True, (12, 35)),
            ("i2t", torch.float32, True, (35, 17)),
            ("i2t", torch.float16, False, (12, 9)),
        ],
        ids=str,
    )
    def test_workspaces_of_one_item(
        self, kernels: Kernels, direction: str, dtype: torch.dtype, normalize: bool, longest: tuple[int, int]
    ) -> None:
        """Every run is then as small as it can be; sums of both sides go one after the other."""
        for least in (kernels.least, kernels.apart):
            with kernels.sizes(**least):
                kernels.check(batch_of(3, 4, longest=longest), dtype, direction=direction, normalize=normalize)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    def test_listed_pairs_in_runs(self, kernels: Kernels, dtype: torch.dtype) -> None:
        """Of some items all pairs are listed, of one none, one pair twice; an item's lie in two runs."""
        pairs = torch.tensor([[0, 3], [2, 0], [0, 1], [0, 0], [2, 3], [0, 2], [2, 3]])
        batch = batch_of(4, 4, pairs=pairs)
        kernels.check(batch, dtype, normalize=True)
        with kernels.sizes(**kernels.runs):
            kernels.check(batch, dtype, normalize=True)

    @pytest.mark.parametrize("scale", [2.0**-66, 2.0**-73])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_words_whose_squares_are_out_of_range(self, kernels: Kernels, normalize: bool, scale: float) -> None:
        batch = batch_of(2, 3, dim=8, longest=(4, 3))
        batch.words[1, 0] *= scale
        results = []
        for dtype, backend in ((torch.float64, "reference"), (torch.float32, kernels.backend)):
            sides = [batch.regions.to(dtype).requires_grad_(), batch.words.to(dtype).requires_grad_()]
            scores = scan_scores(*sides, *batch.lengths, normalize=normalize, backend=backend)
            results.append(torch.autograd.grad(scores.sum(), sides))
        for true, ours in zip(*results, strict=True):
            assert (ours - true).abs().max() <= 1e-5 * true.abs().max()

    @NO_NUMBERS
    @DIRECTIONS
    def test_huge_lambdas(self, kernels: Kernels, direction: str) -> None:
        """Of items of many rows: a norm along one row leaves logits that only rounding tells apart."""
        batch = batch_of(3, 4).to(torch.float32)
        sides = batch.regions, batch.words
        options = {"direction": direction, "pooling": "lse", "lambda_softmax": 3.4e38, "lambda_lse": 3e38}
        expected = scan_scores(*sides, backend="reference", **options)
        torch.testing.assert_close(kernels.score(*sides, **options), expected, rtol=0, atol=1e-5)
        batch.regions[0] *= 1e6  # whose logits, without a norm, float32 cannot hold
        options |= {"raw_feature_norm": "no_norm", "lambda_softmax": 1e35}
        scores = kernels.score(*sides, **options)
        expected = scan_scores(*sides, backend="reference", **options)
        torch.testing.assert_close(scores[1:], expected[1:], rtol=0, atol=1e-5)

    @DIRECTIONS
    @pytest.mark.parametrize("n", [6, 150])
    def test_one_context_has_all_the_weight(self, kernels: Kernels, direction: str, n: int) -> None:
        """Of long features: gradients of logits, which λ multiplies, are nothing but for rounding."""
        batch = batch_of(1, 2, 48, (n, 5) if direction == "t2i" else (5, n))
        batch = replace(batch, regions=batch.regions * 8, words=batch.words * 8)
        kernels.check(batch, direction=direction, raw_feature_norm="no_norm", lambda_softmax=20.0, normalize=False)

    def test_attended_vectors_that_nearly_cancel(self, kernels: Kernels) -> None:
        """The kernels must see it and take the long way."""
        for norm, scaled in (("no_norm", False), ("clipped", True)):
            kernels.check(nearly_cancelling(), raw_feature_norm=norm, lambda_softmax=1.0, normalize=scaled)

    @pytest.mark.parametrize("n", [3, 17], ids=["in one block", "in two"])
    def test_contexts_that_cancel_together(self, kernels: Kernels, n: int) -> None:
        """No two of three are nearly opposed; of 17 all of the first block are alike, which the next one undoes."""
        generator = torch.Generator().manual_seed(3)
        directions = torch.linalg.qr(torch.randn(2, 24, 2, generator=generator, dtype=torch.float64))[0].mT
        sums = directions[:, :1].expand(-1, n - 1, -1)
        if n == 3:
            sums = sums * torch.tensor([[0.5], [0.5]]) + directions[:, 1:] * torch.tensor([[0.8], [-0.8]])
        regions = 0.1 * torch.cat([sums, -1.001 * sums.sum(1, keepdim=True)], 1)
        words = torch.randn(2, 1, 24, generator=generator, dtype=torch.float64)
        batch = Features(regions, words, torch.full((2,), n), torch.ones(2, dtype=torch.int64), None)
        kernels.check(batch, raw_feature_norm="no_norm", lambda_softmax=1e-3)

    @pytest.mark.parametrize("lambda_softmax", [9.0, 20.0, 21.0, 50.0])
    @pytest.mark.parametrize("scale", [1.0, 1e-6])
    def test_one_opposed_word_leaves_every_weight_tiny(
        self, kernels: Kernels, scale: float, lambda_softmax: float
    ) -> None:
        generator = torch.Generator().manual_seed(5)
        regions = scale * torch.rand(2, 4, 8, generator=generator, dtype=torch.float64)
        words = -torch.rand(2, 1, 8, generator=generator, dtype=torch.float64)
        batch = Features(regions, words, torch.full((2,), 4), torch.ones(2, dtype=torch.int64), None)
        for norm in ("l2norm", "clipped_l2norm"):
            kernels.check(batch, raw_feature_norm=norm, lambda_softmax=lambda_softmax)
