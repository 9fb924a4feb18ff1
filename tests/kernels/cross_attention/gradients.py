"""Gradients of `scan_scores` by a backend for GPUs: of one side, of few scores, of none, in memory that holds NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from crossret_kernels import scan_scores
from tests.kernels.cross_attention.kernels import DIRECTIONS, LISTED, Kernels, batch_of, new_memory_is_nan


class Gradients:
    @DIRECTIONS
    def test_only_one_side_needs_a_gradient(self, kernels: Kernels, direction: str) -> None:
        batch = batch_of(3, 5).to(torch.float32)
        whole = [side.clone().requires_grad_() for side in (batch.regions, batch.words)]
        kernels.score(*whole, *batch.lengths, direction=direction).sum().backward()
        for needed in (0, 1):
            sides = [batch.regions.clone(), batch.words.clone()]
            sides[needed].requires_grad_()
            kernels.score(*sides, *batch.lengths, direction=direction).sum().backward()
            assert torch.equal(sides[needed].grad, whole[needed].grad)
            assert sides[1 - needed].grad is None

    @LISTED
    @DIRECTIONS
    def test_tiles_without_a_gradient_are_left_out(self, kernels: Kernels, direction: str, listed: bool) -> None:
        """As of most pairs of a hardest-negative loss: what their memory held, here NaN, is not read."""
        pairs = torch.tensor([[0, 3], [2, 0], [0, 1], [4, 6], [2, 3]]) if listed else None
        batch = batch_of(5, 7).to(torch.float32)
        sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
        scores, expected = (
            scan_scores(*sides, *batch.lengths, direction=direction, pairs=pairs, backend=backend)
            for backend in (kernels.backend, "reference")
        )
        chosen = torch.zeros_like(scores)
        chosen[1:5:3] = torch.tensor([0.7, -0.4]) if listed else torch.eye(7)[[2, 6]]
        chosen *= 2.0**-40  # a small gradient is one
        with new_memory_is_nan():
            found = torch.autograd.grad(scores, sides, chosen)
        for ours, true in zip(found, torch.autograd.grad(expected, sides, chosen), strict=True):
            torch.testing.assert_close(ours * 2.0**40, true * 2.0**40, rtol=1e-4, atol=1e-6)

    def test_rows_that_listed_items_lack_are_not_multiplied(self, kernels: Kernels) -> None:
        """Of pairs beside longer ones, what their memory held, here NaN."""
        lengths = torch.tensor([17, 2]), torch.tensor([3, 1])
        batch = replace(batch_of(2, 2, 8, (17, 3)), region_lengths=lengths[0], word_lengths=lengths[1])
        results = []
        for dtype, backend in ((torch.float32, kernels.backend), (torch.float64, "reference")):
            sides = [batch.regions.to(dtype).requires_grad_(), batch.words.to(dtype).requires_grad_()]
            with new_memory_is_nan():
                scores = scan_scores(*sides, *lengths, pairs=torch.tensor([[0, 1], [1, 0]]), backend=backend)
                results.append(torch.autograd.grad(scores.sum(), sides))
        for ours, true in zip(*results, strict=True):
            torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-5)

    @LISTED
    def test_gradients_of_scores_that_are_views(self, kernels: Kernels, listed: bool) -> None:
        """Expanded and transposed ones are read where they are."""
        batch = batch_of(3, 4).to(torch.float32)
        pairs = torch.tensor([[0, 1], [2, 3], [1, 1]]) if listed else None
        sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
        scores = kernels.score(*sides, *batch.lengths, pairs=pairs)
        wide = torch.randn(*scores.shape[::-1], 2)[..., 0]
        for grad in (torch.tensor(0.5).expand_as(scores), wide.T if not listed else wide):
            found = torch.autograd.grad(scores, sides, grad, retain_graph=True)
            expected = torch.autograd.grad(scores, sides, grad.contiguous(), retain_graph=True)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)

    def test_of_equal_relevances_the_first_gets_the_gradient(self, kernels: Kernels) -> None:
        regions = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]])
        words = torch.tensor([1.0, 0.5]).expand(1, 3, 2).clone().requires_grad_()
        kernels.score(regions, words, raw_feature_norm="no_norm", pooling="max").backward()
        assert words.grad[0, 0].all()
        assert not words.grad[0, 1:].any()

    @pytest.mark.parametrize(("empty", "words"), [(0, 2), (1, 17)], ids=["contexts", "queries"])
    def test_runs_of_empty_items_alone(self, kernels: Kernels, empty: int, words: int) -> None:
        """A row that is not there stands for them: what its memory held, here NaN, is not multiplied."""
        batch = batch_of(2 - empty, 1 + empty, 8, (17, words)).to(torch.float32)
        lengths = [torch.full((2 - empty,), 17), torch.full((1 + empty,), words)]
        lengths[empty][0] = 0
        results = []
        for dtype, backend in ((torch.float32, kernels.backend), (torch.float64, "reference")):
            sides = [batch.regions.to(dtype).requires_grad_(), batch.words.to(dtype).requires_grad_()]
            with new_memory_is_nan(), kernels.sizes(**kernels.least):
                scores = scan_scores(*sides, *lengths, empty_score=0.5, backend=backend)
                results.append((scores, *torch.autograd.grad(scores.sum(), sides)))
        for ours, true in zip(*results, strict=True):
            torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-5)

    def test_twice_the_same_bits(self, kernels: Kernels) -> None:
        batch = batch_of(5, 7).to(torch.float32)
        results = []
        for _ in range(2):
            sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
            scores = kernels.score(*sides, *batch.lengths)
            scores.square().sum().backward()
            results.append((scores, sides[0].grad, sides[1].grad))
        torch.testing.assert_close(*results, rtol=0, atol=0)
