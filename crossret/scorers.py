"""Scorers to drop into somebody's own model: regions and words in, a score for every image with every caption out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from crossret_kernels import (
    ScanAttention,
    ScanContributions,
    maxsim_scores,
    scan_attention,
    scan_contributions,
    scan_scores,
)
from crossret_kernels.late_interaction import Contributions, explain


class CrossAttentionScorer(nn.Module):
    """SCAN's stacked cross attention (Eqs. 1-8). No parameters; the arguments are those of ``scan_scores``.

    Args:
        direction: "t2i" (words attend to regions) or "i2t" (regions attend to words).
        raw_feature_norm: how similarities are normalised before the softmax: "softmax", "l2norm", "clipped_l2norm",
            "l1norm", "clipped_l1norm", "clipped" or "no_norm".
        clip_slope: slope of the clip below zero; 0 is the paper's [s]₊, 0.1 its published code.
        lambda_softmax: λ₁, inverse temperature of the attention.
        pooling: "lse", "avg", "sum" or "max" over the relevances.
        lambda_lse: λ₂ of LSE pooling.
        normalize: whether features are L2-normalised first (Eq. 1); without, they are taken as they come.
    """

    def __init__(
        self,
        direction: str = "t2i",
        *,
        raw_feature_norm: str = "clipped_l2norm",
        clip_slope: float = 0.1,
        lambda_softmax: float = 9.0,
        pooling: str = "avg",
        lambda_lse: float = 6.0,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.direction = direction
        self.options: dict[str, Any] = {
            "raw_feature_norm": raw_feature_norm,
            "clip_slope": clip_slope,
            "lambda_softmax": lambda_softmax,
            "pooling": pooling,
            "lambda_lse": lambda_lse,
            "normalize": normalize,
        }

    def forward(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """Score every image with every caption, or the given pairs only.

        Args:
            regions: (n_images, R, D) float.
            words: (n_captions, W, D) float.
            lengths: (n_captions,) int64, words in each caption.
            region_lengths: (n_images,) int64, regions in each image; None where all have R.
            pairs: (P, 2) int64 of (image, caption).

        Returns:
            (n_images, n_captions) scores, or (P,) for pairs.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.scan_scores``.
        """
        return scan_scores(regions, words, region_lengths, lengths, pairs=pairs, **self._all_options())

    def attention(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor,
    ) -> ScanAttention:
        """What the scores of the given pairs are made of; arguments as ``forward``.

        Q queries attend to C contexts: words to regions ("t2i") or regions to words ("i2t").

        Returns:
            Scores (P,), weights (P, Q, C) over the contexts and relevances (P, Q), differentiable, zero at the padding;
            see ``crossret_kernels.scan_attention``.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.scan_attention``.
        """
        return scan_attention(regions, words, region_lengths, lengths, pairs=pairs, **self._all_options())

    def contributions(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor,
    ) -> ScanContributions:
        """What each query brings to the scores of the given pairs, without gradient; arguments as ``forward``.

        Returns:
            As ``attention``, and shares (P, Q) that add up to the scores; see ``crossret_kernels.scan_contributions``.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.scan_contributions``.
        """
        return scan_contributions(regions, words, region_lengths, lengths, pairs=pairs, **self._all_options())

    def _all_options(self) -> dict[str, Any]:
        return {**self.options, "direction": self.direction}

    def extra_repr(self) -> str:
        return ", ".join([repr(self.direction), *(f"{name}={value!r}" for name, value in self.options.items())])


class SumMaxScorer(nn.Module):
    """Sum-Max: each query's largest similarity, summed over queries (SCAN Eq. 9 for "t2i", Eq. 10 for "i2t").

    Args:
        direction: "t2i" sums over words the maximum over regions, "i2t" the other way.
        normalize: whether features are L2-normalised first.
    """

    def __init__(self, direction: str = "t2i", *, normalize: bool = False) -> None:
        super().__init__()
        self.direction = direction
        self.normalize = normalize

    def forward(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """As ``CrossAttentionScorer.forward``."""
        return maxsim_scores(
            regions, words, region_lengths, lengths, direction=self.direction, normalize=self.normalize, pairs=pairs
        )

    def contributions(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor,
    ) -> Contributions:
        """What each query takes and brings to scores of the given pairs, without gradient; arguments as ``forward``.

        Returns:
            See ``crossret_kernels.late_interaction.explain``, with images in the place of its queries.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.maxsim_scores``.
        """
        direction = "q2d" if self.direction == "i2t" else "d2q"
        return explain(
            regions, words, region_lengths, lengths, pairs=pairs, direction=direction, normalize=self.normalize
        )

    def extra_repr(self) -> str:
        return f"{self.direction!r}, normalize={self.normalize}"


class EnsembleScorer(nn.Module):
    """The mean of several scorers' scores, as SCAN's ensembles average score matrices (Section 4.2).

    Args:
        scorers: at least one module with the ``forward`` of ``CrossAttentionScorer``.

    Raises:
        ValueError: there are no scorers.
    """

    def __init__(self, scorers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.scorers = nn.ModuleList(scorers)
        if not self.scorers:
            raise ValueError("scorers: an ensemble needs at least one")

    def forward(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """As ``CrossAttentionScorer.forward``."""
        first, *others = self.scorers
        total: Tensor = first(regions, words, lengths, region_lengths, pairs=pairs)
        for scorer in others:
            total = total + scorer(regions, words, lengths, region_lengths, pairs=pairs)
        return total / len(self.scorers)
