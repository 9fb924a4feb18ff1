"""Calls of `scan_scores` by a backend for GPUs: layouts, views, masks, empty items, torch's transforms."""

from __future__ import annotations

import pytest
import torch

from crossret_kernels import scan_scores, scan_topk
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.gpu import sides as gpu_sides
from crossret_kernels.inputs import call
from tests.kernels.cross_attention.kernels import DIRECTIONS, LISTED, Kernels, batch_of


class Calls:
    @DIRECTIONS
    def test_layouts_and_views_score_alike(self, kernels: Kernels, direction: str) -> None:
        batch = batch_of(4, 6).to(torch.float32)
        expected = kernels.score(*batch.arguments(), direction=direction)
        for layout in ("packed", "list"):
            scores = kernels.score(*batch.arguments(layout), direction=direction)
            torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
        wide = torch.full((4, 20, 40), torch.nan)
        wide[:, 3:15, 5:29] = batch.regions
        words = batch.words.transpose(1, 2).contiguous().transpose(1, 2)  # rows are not contiguous
        views = wide[:, 3:15, 5:29], words
        scores = kernels.score(*views, *batch.lengths, direction=direction)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
        same = batch.regions[:1].expand(4, -1, -1)  # the image of all captions, of which memory has one
        scores = kernels.score(same, batch.words, *batch.lengths, direction=direction)
        expected_of_same = kernels.score(same.clone(), batch.words, *batch.lengths, direction=direction)
        torch.testing.assert_close(scores, expected_of_same, rtol=0, atol=1e-6)
        candidates = torch.tensor([[2, 0], [1, 1], [3, 2], [0, 3], [0, 1], [2, 2]])[: 6 if direction == "t2i" else 4]
        chosen = kernels.score(*batch.arguments(), candidates=candidates, direction=direction)
        of_queries = expected.T if direction == "t2i" else expected
        torch.testing.assert_close(chosen, of_queries.gather(1, candidates), rtol=0, atol=1e-6)

    @LISTED
    @DIRECTIONS
    def test_masks_and_empty_items(self, kernels: Kernels, direction: str, listed: bool) -> None:
        """Rows that a mask leaves out are never read and have no gradient; items without any score what is asked."""
        batch = batch_of(4, 5, longest=(6, 35)).to(torch.float32)
        generator = torch.Generator().manual_seed(2)
        masks = [torch.rand(side.shape[:2], generator=generator) < 0.6 for side in (batch.regions, batch.words)]
        masks[0][1], masks[1][4], masks[1][0] = False, False, True
        pairs = torch.tensor([[0, 4], [1, 2], [3, 0], [0, 3], [3, 0]]) if listed else None
        results = []
        for fill, dtype, backend in ((torch.nan, torch.float32, kernels.backend), (0.0, torch.float64, "reference")):
            sides = [batch.regions.to(dtype), batch.words.to(dtype)]
            for side, mask in zip(sides, masks, strict=True):
                side[~mask] = fill
                side.requires_grad_()
            scores = scan_scores(
                *sides, region_mask=masks[0], word_mask=masks[1], empty_score=-2.5, pairs=pairs, direction=direction,
                pooling="lse", backend=backend,
            )  # fmt: skip
            weights = torch.arange(1.0, 1 + scores.numel()).view(scores.shape).to(scores)
            results.append((scores, *torch.autograd.grad((scores * weights).sum(), sides)))
        for ours, true in zip(*results, strict=True):
            torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-5)
        assert (results[0][0] == -2.5).sum() == (2 if listed else 8)

    @DIRECTIONS
    def test_lengths_that_nobody_looks_at_are_held_within_items(
        self, kernels: Kernels, direction: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As while a CUDA graph is captured, of what is on the device."""
        batch = batch_of(3, 4, dim=8, longest=(5, 3)).to(torch.float32)
        lengths = batch.region_lengths.clone()
        lengths[1] = 5
        expected = kernels.score(batch.regions, batch.words, lengths, None, direction=direction)
        lengths[1] = 1_000_000
        monkeypatch.setattr(call, "checkable", lambda: False)
        monkeypatch.setattr(gpu_sides, "capturing", lambda _: True)
        found = kernels.score(batch.regions, batch.words, lengths, None, direction=direction)
        assert torch.equal(found, expected)
        lengths[1] = -7
        found = kernels.score(batch.regions, batch.words, lengths, None, direction=direction, empty_score=3.0)
        assert found[1].tolist() == [3.0] * 4
        with pytest.raises(RuntimeError, match="packed items' offsets"):
            kernels.score(batch.regions, (batch.words.flatten(0, 1), torch.tensor([0, 4, 6, 9, 12])))

    def test_what_is_saved_changes_no_gradient(self, kernels: Kernels) -> None:
        for dtype in (torch.float32, torch.float16):
            batch = batch_of(3, 4, dim=8, longest=(5, 3)).to(dtype)
            leaves = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
            given = leaves[0], None, batch.region_lengths, None, leaves[1], None, batch.word_lengths, None, None
            options = (None, True, *ScanOptions(pooling="lse", normalize=True).codes)
            made = [
                getattr(torch.ops.crossret, f"scan_scores_{kernels.backend}")(*given, *options, save)
                for save in (False, True)
            ]
            saved = [any(x.numel() for x in others) for _, *others in made]
            assert not saved[0] and (saved[1] or dtype is torch.float16)
            without, withal = (torch.autograd.grad(scores.sum(), leaves) for scores, *_ in made)
            torch.testing.assert_close(withal, without)

    @pytest.mark.parametrize("n", [(0, 3), (3, 0), (0, 0)])
    def test_no_pairs(self, kernels: Kernels, n: tuple[int, int]) -> None:
        sides = [torch.randn(count, 2, 4, requires_grad=True) for count in n]
        scores = kernels.score(*sides)
        assert scores.shape == n
        scores.sum().backward()
        assert all(side.grad is not None and not side.grad.any() for side in sides)
        for pairs in (None, torch.tensor([[0, 1], [1, 0], [1, 1]])):
            empty = torch.zeros(2, dtype=torch.int64)
            sides = [torch.randn(2, 3, 4, requires_grad=True) for _ in range(2)]
            scores = kernels.score(*sides, word_lengths=empty, empty_score=0.5, pairs=pairs)
            scores.sum().backward()
            assert (scores == 0.5).all()
            assert all(side.grad is not None and not side.grad.any() for side in sides)
        none = torch.empty(0, 2, dtype=torch.int64)
        assert kernels.score(torch.randn(2, 2, 4), torch.randn(2, 2, 4), pairs=none).shape == (0,)

    def test_best_images_of_every_caption(self, kernels: Kernels) -> None:
        batch = batch_of(9, 4).to(torch.float32)
        values, indices = scan_topk(*batch.arguments(), k=3, backend=kernels.backend)
        scores = kernels.score(*batch.arguments()).T
        best = scores.sort(dim=1, descending=True, stable=True)
        assert torch.equal(indices, best.indices[:, :3])
        torch.testing.assert_close(values, best.values[:, :3], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("pairs", [None, torch.tensor([[0, 1], [2, 0]])], ids=["all", "listed"])
    def test_registration(self, kernels: Kernels, pairs: torch.Tensor | None) -> None:
        batch = batch_of(3, 2, dim=8, longest=(4, 3)).to(torch.float32)
        sides = (
            batch.regions.requires_grad_(), None, batch.region_lengths, None,
            batch.words.requires_grad_(), None, batch.word_lengths, None,
        )  # fmt: skip
        score, differentiate = (
            getattr(torch.ops.crossret, f"scan_scores_{kernels.backend}{name}").default for name in ("", "_backward")
        )
        codes = ScanOptions(pooling="lse", normalize=True).codes
        # No empty items, float32 that TF32 multiplies, and nothing that is saved: it would have no known shape.
        options = (None, True, *codes, False)
        torch.library.opcheck(score, (*sides, pairs, *options))
        scores, *saved = score(*sides, pairs, *options)
        detached = [side.detach() if isinstance(side, torch.Tensor) else side for side in sides]
        gradient = (torch.ones_like(scores), *saved)
        torch.library.opcheck(differentiate, (*gradient, *detached, pairs, *options, True, False))

    def test_inside_torch_compile(self, kernels: Kernels) -> None:
        batch = batch_of(3, 2, dim=8, longest=(4, 3)).to(torch.float32)
        score = torch.compile(lambda v, e: kernels.score(v, e) * 2, fullgraph=True, backend="aot_eager")
        sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
        scores = score(*sides)
        expected = kernels.score(*sides) * 2
        assert torch.equal(scores, expected)
        for ours, true in zip(
            torch.autograd.grad(scores.sum(), sides), torch.autograd.grad(expected.sum(), sides), strict=True
        ):
            assert torch.equal(ours, true)

    @pytest.mark.parametrize("inside", [False, True])
    def test_under_autocast(self, kernels: Kernels, inside: bool) -> None:
        """Features are cast; their gradients are not, wherever they are asked for."""
        batch = batch_of(3, 4, dim=8).to(torch.float32)
        results = []
        for cast, enabled in ((torch.float32, True), (torch.float16, False)):
            sides = [batch.regions.clone().requires_grad_(), batch.words.clone().requires_grad_()]
            with torch.autocast("cpu", torch.float16, enabled=enabled):
                scores = kernels.score(*(side.to(cast) for side in sides), *batch.lengths)
                if inside:
                    gradients = torch.autograd.grad(scores.square().sum(), sides)
            if not inside:
                gradients = torch.autograd.grad(scores.square().sum(), sides)
            results.append((scores, *gradients))
        for ours, expected in zip(*results, strict=True):
            assert ours.dtype is torch.float32
            assert torch.equal(ours, expected)
