"""Scorers to drop into somebody's own model: regions and words in, a score for every image with every caption out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from torch import Tensor, nn
from typing_extensions import Unpack

from crossret_kernels import (
    MaxSimFields,
    MaxSimOptions,
    ScanAttention,
    ScanContributions,
    ScanFields,
    ScanOptions,
    maxsim_scores,
    scan_attention,
    scan_contributions,
    scan_scores,
)
from crossret_kernels.late_interaction import Contributions, explain

Options = TypeVar("Options", ScanOptions, MaxSimOptions)


def _options(kind: type[Options], options: Options | None, fields: Mapping[str, Any]) -> Options:
    """Options with these fields in place of theirs; None: the defaults of the kind. Raises as the kind does."""
    if options is not None and not isinstance(options, kind):
        raise TypeError(f"options must be {kind.__name__}, not {type(options).__name__}")
    return kind(**fields) if options is None else replace(options, **fields)


class CrossAttentionScorer(nn.Module):
    """SCAN's stacked cross attention (Eqs. 1-8), as ``scan_scores`` makes it. No parameters.

    Args:
        direction: "t2i" (words attend to regions), "i2t" (regions attend to words) or "both", the mean of their scores,
            which has no ``attention`` and no ``contributions``; also by its name.
        options: how pairs are scored; None: the defaults of ``crossret_kernels.ScanOptions``, which documents them.
        **fields: fields of ``ScanOptions``, in place of those of `options`.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.ScanOptions``.
    """

    def __init__(
        self, direction: str | None = None, /, *, options: ScanOptions | None = None, **fields: Unpack[ScanFields]
    ) -> None:
        super().__init__()
        first = {} if direction is None else {"direction": direction}
        self.options = _options(ScanOptions, options, {**first, **fields})

    @property
    def direction(self) -> str:
        return self.options.direction

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
        return scan_scores(regions, words, region_lengths, lengths, pairs=pairs, options=self.options)

    def attention(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor,
    ) -> ScanAttention:
        """Scores of the given pairs, and the weights and relevances that make them; arguments as ``forward``.

        Q queries attend to C contexts: words to regions ("t2i") or regions to words ("i2t").

        Returns:
            Scores (P,), weights (P, Q, C) over the contexts and relevances (P, Q), differentiable, zero at the padding;
            see ``crossret_kernels.scan_attention``.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.scan_attention``.
        """
        return scan_attention(regions, words, region_lengths, lengths, pairs=pairs, options=self.options)

    def contributions(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor,
    ) -> ScanContributions:
        """Each query's share of the given pairs' scores, without gradient; arguments as ``forward``.

        Returns:
            As ``attention``, and shares (P, Q) that add up to the scores; see ``crossret_kernels.scan_contributions``.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.scan_contributions``.
        """
        return scan_contributions(regions, words, region_lengths, lengths, pairs=pairs, options=self.options)

    def extra_repr(self) -> str:
        return repr(self.options)


class SumMaxScorer(nn.Module):
    """Sum-Max: each query's largest similarity, summed over queries (SCAN Eq. 9 for "t2i", Eq. 10 for "i2t").

    ``SumMaxScorer("both", normalize=True, pooling="avg", clip_slope=0.1)`` is the alignment of LAPS, AVSE and SEPS.

    Args:
        direction: "t2i" sums over words the maximum over regions, "i2t" the other way, "both" is their mean; also by
            its name.
        options: how pairs are scored; None: the defaults of ``crossret_kernels.MaxSimOptions``, which documents them.
        **fields: fields of ``MaxSimOptions``, in place of those of `options`.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.MaxSimOptions``.
    """

    def __init__(
        self, direction: str | None = None, /, *, options: MaxSimOptions | None = None, **fields: Unpack[MaxSimFields]
    ) -> None:
        super().__init__()
        first = {} if direction is None else {"direction": direction}
        self.options = _options(MaxSimOptions, options, {**first, **fields})

    @property
    def direction(self) -> str:
        return self.options.direction

    def forward(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """Scores; arguments as ``CrossAttentionScorer.forward``."""
        return maxsim_scores(regions, words, region_lengths, lengths, pairs=pairs, options=self.options)

    def contributions(
        self,
        regions: Tensor,
        words: Tensor,
        lengths: Tensor,
        region_lengths: Tensor | None = None,
        *,
        pairs: Tensor,
    ) -> Contributions:
        """Each query's best match and share of the given pairs' scores, without gradient; arguments as ``forward``.

        Returns:
            See ``crossret_kernels.late_interaction.explain``, with images in the place of its queries.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.maxsim_scores``; the scorer takes both directions, or soft
                maxima, of which no row takes one.
        """
        options = asdict(self.options)
        direction = {"i2t": "q2d", "t2i": "d2q"}.get(options.pop("direction"))
        if direction is None:
            raise ValueError("contributions are of one direction: make a scorer of either")
        return explain(regions, words, region_lengths, lengths, pairs=pairs, direction=direction, **options)

    def extra_repr(self) -> str:
        return repr(self.options)


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
        """Mean scores; arguments as ``CrossAttentionScorer.forward``."""
        first, *others = self.scorers
        total: Tensor = first(regions, words, lengths, region_lengths, pairs=pairs)
        for scorer in others:
            total = total + scorer(regions, words, lengths, region_lengths, pairs=pairs)
        return total / len(self.scorers)
