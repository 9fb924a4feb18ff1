"""What is not finite, or out of range, in `scan_scores` by a backend for GPUs: it stays where it is."""

from __future__ import annotations

import pytest
import torch

from crossret_kernels import scan_scores
from tests.kernels.cross_attention.kernels import NO_NUMBERS, Kernels, batch_of
from tests.kernels.tolerance import EPS, gradient_bounds

# Every two of a direction, a norm and a value.
CASES = [
    (("t2i", "i2t")[(i + j) % 2], norm, value)
    for i, norm in enumerate(("softmax", "clipped_l2norm", "no_norm"))
    for j, value in enumerate((torch.nan, torch.inf, -torch.inf, 1e25))
]


def check_gradients_beside_nan(kernels: Kernels, direction: str, dtype: torch.dtype) -> None:
    """One score's gradient is NaN: other items have theirs, to every digit that they have without it."""
    batch = batch_of(3, 4, longest=(5, 4)).to(dtype).to(torch.float64)
    grad = torch.linspace(-1, 1, 12).view(3, 4)
    results = []
    for cast, backend in ((torch.float64, "reference"), (torch.float32, "reference"), (dtype, kernels.backend)):
        sides = [side.to(cast).requires_grad_() for side in (batch.regions, batch.words)]
        scores = scan_scores(*sides, *batch.lengths, direction=direction, backend=backend)
        own = grad.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(torch.nan))
        found = torch.autograd.grad(scores, sides, own.to(scores) if backend != "reference" else grad.to(scores))
        results.append([x.double() for x in found])
    for side, others in enumerate(([0, 2], [0, 1, 3])):
        true, eager, ours = (found[side] for found in results)
        assert ours[(1, 2)[side], 0].isnan().any()
        bounds = gradient_bounds(true, 3 * (eager - true).abs().max() + 32 * EPS * true.abs().max(), dtype)
        assert bool(((ours - true).abs() <= bounds)[others].all())


class NotFinite:
    @NO_NUMBERS
    @pytest.mark.parametrize(("direction", "norm", "value"), CASES)
    def test_what_is_not_finite_stays_in_its_item(
        self, kernels: Kernels, direction: str, norm: str, value: float
    ) -> None:
        """In scores and, where its pairs have none, in gradients: it shares tiles with other items."""
        batch = batch_of(4, 5, longest=(5, 4)).to(torch.float32)
        options = {"direction": direction, "raw_feature_norm": norm, "pooling": "lse", "backend": kernels.backend}
        sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
        sides[0].data[1, 0, 3] = value
        scores = scan_scores(*sides, *batch.lengths, **options)
        others = torch.tensor([0, 2, 3])
        clean = scan_scores(batch.regions, batch.words, *batch.lengths, **options)
        assert scores[1].isnan().all()
        assert torch.equal(scores[others], clean[others])
        scores[others].sum().backward()
        spoilt = [side.grad for side in sides]
        clean_sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
        scan_scores(*clean_sides, *batch.lengths, **options)[others].sum().backward()
        torch.testing.assert_close(spoilt[0][others], clean_sides[0].grad[others], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(spoilt[1], clean_sides[1].grad, rtol=1e-5, atol=1e-6)

    @NO_NUMBERS
    @pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e25])
    def test_attended_vectors_that_cancel_beside_what_is_not_finite(self, kernels: Kernels, value: float) -> None:
        """The long way reads the rows of the whole tile."""
        generator = torch.Generator().manual_seed(3)
        regions = torch.randn(3, 2, 16, generator=generator)
        regions[0, 1] = -(1 + 1e-3) * regions[0, 0]
        words = 1e-2 * torch.randn(3, 3, 16, generator=generator)
        options = {"raw_feature_norm": "no_norm", "lambda_softmax": 1.0, "backend": kernels.backend}
        clean = scan_scores(regions, words, **options)
        regions[1, 0, 3] = value
        scores = scan_scores(regions, words, **options)
        assert scores[1].isnan().all()
        assert torch.equal(scores[[0, 2]], clean[[0, 2]])

    @NO_NUMBERS
    def test_attended_vectors_that_cancel_beside_queries_out_of_range(self, kernels: Kernels) -> None:
        """Whose products with them float32 cannot hold: other captions share the sums over queries."""
        generator = torch.Generator().manual_seed(3)
        regions = 1e6 * torch.randn(3, 2, 16, generator=generator)
        regions[:, 1] = -(1 + 1e-3) * regions[:, 0]
        sides = [regions.requires_grad_(), (1e-6 * torch.randn(3, 3, 16, generator=generator)).requires_grad_()]
        options = {"lambda_softmax": 1e-3, "pooling": "avg", "backend": kernels.backend}
        clean = scan_scores(*sides, **options)[:, [0, 2]]
        expected = torch.autograd.grad(clean.sum(), sides)
        sides[1].data[1, 0] = 1e37
        scores = scan_scores(*sides, **options)
        assert scores[:, 1].isnan().all()
        assert torch.equal(scores[:, [0, 2]], clean)
        torch.testing.assert_close(torch.autograd.grad(scores[:, [0, 2]].sum(), sides), expected, rtol=0, atol=0)

    @NO_NUMBERS
    @pytest.mark.parametrize(
        ("direction", "dtype", "listed", "value"),  # every two
        [
            ("t2i", torch.float32, False, torch.nan),
            ("i2t", torch.float16, True, torch.nan),
            ("t2i", torch.float16, False, torch.inf),
            ("i2t", torch.float32, True, torch.inf),
            ("t2i", torch.float32, True, 1e30),
            ("i2t", torch.float16, False, 1e30),
        ],
        ids=str,
    )
    def test_padding_is_never_read(
        self, kernels: Kernels, direction: str, dtype: torch.dtype, listed: bool, value: float
    ) -> None:
        """Nor has it a gradient, whatever it holds."""
        pairs = torch.tensor([[0, 2], [3, 0], [1, 3]]) if listed else None
        results = []
        for fill in (0.0, value):
            batch = batch_of(4, 5).to(dtype)
            sides = [batch.regions, batch.words]
            for side, lengths in zip(sides, batch.lengths, strict=True):
                for item, length in zip(side, lengths.tolist(), strict=True):
                    item[length:] = fill
                side.requires_grad_()
            scores = kernels.score(*sides, *batch.lengths, direction=direction, normalize=True, pairs=pairs)
            results.append((scores, *torch.autograd.grad(scores.sum(), sides)))
        torch.testing.assert_close(*results, rtol=0, atol=0)

    def test_contexts_whose_products_are_out_of_range_are_no_numbers(self, kernels: Kernels) -> None:
        """Rather than wrong ones; in their own scores."""
        batch = batch_of(3, 4).to(torch.float32)
        clean = kernels.score(*batch.arguments())
        batch.regions[1] *= 2e7
        scores = kernels.score(*batch.arguments())
        assert scores[1].isnan().all()
        assert torch.equal(scores[[0, 2]], clean[[0, 2]])

    @NO_NUMBERS
    @pytest.mark.parametrize(
        ("direction", "dtype"), [("t2i", torch.float32), ("i2t", torch.float32), ("t2i", torch.float16)], ids=str
    )
    def test_a_gradient_that_is_not_finite_stays_with_its_pair(
        self, kernels: Kernels, direction: str, dtype: torch.dtype
    ) -> None:
        check_gradients_beside_nan(kernels, direction, dtype)
