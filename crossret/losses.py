"""Losses as modules that carry their hyper-parameters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from crossret.distributed import Share
from crossret.hyperparameters import ModelConfig
from crossret.hyperparameters.model import LARGEST_SCALE
from crossret_kernels import infonce_loss, sigmoid_loss, triplet_loss
from crossret_kernels.extending import (
    as_integers,
    check_floating,
    choose,
    infonce_row_loss,
    safe_sqrt,
    triplet_row_loss,
)


class MatchingLoss(nn.Module, ABC):
    """A loss over a score matrix of which a diagonal holds the matching pairs: what all of them have in common.

    A subclass has ``_of_batch``, and ``_of_share`` of a batch of which this process has some rows.

    Args:
        reduction: "sum" or "mean" over the batch.
    """

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(
        self,
        scores: Tensor,
        image_ids: Tensor | None = None,
        *,
        positive_offset: int = 0,
        share: Share | None = None,
    ) -> Tensor:
        """The loss of one batch, or a rank's share in it.

        Args:
            scores: (n, m) float, image-major, m = n in one process; image i and caption i + positive_offset match.
            image_ids: (m,) int64, the image that caption j is about: captions of one image are never each other's
                negatives. None where all images differ.
            positive_offset: the first row's caption, where scores are of some of the images and columns are to have no
                more negatives than these.
            share: where several processes train together, what this one has of the batch: scores are its rows
                (share.n, share.total), image_ids (share.n,) of its own pairs, given on all ranks or on none. Columns
                come from the other ranks, and gradients go back to them, in PyTorch operations; no rank holds the
                whole matrix.

        Returns:
            a scalar; with ``share`` the losses of its rows and of its columns, whose sum over the ranks is the loss of
            the batch, as is the sum of gradients. DistributedDataParallel takes the gradients' mean: multiply by
            share.group.size for it.

        Raises:
            ValueError, TypeError: as the loss's function in ``crossret_kernels``, or scores do not fit the share.
        """
        if share is None or share.group.size == 1:
            options: dict[str, Any] = {"image_ids": image_ids, "positive_offset": positive_offset}
            return self._of_batch(scores, **options, reduction=self.reduction)
        if positive_offset:
            raise ValueError(f"positive_offset is the share's, {share.offset}, and must not be given beside it")
        choose("reduction", self.reduction, ("sum", "mean"))
        check_floating(scores, "scores")
        share.check("scores", scores, (share.n, share.total))
        ids = None if image_ids is None else _ids_of_all(image_ids, scores, share)
        return self.reduced(self._of_share(_exact(scores), share, image_ids=ids, positive_offset=share.offset), share)

    def reduced(self, summed: Tensor, share: Share) -> Tensor:
        """A sum over a batch, or a rank's share in it, as this loss has it: terms beside a mean are means, too."""
        return summed / share.total if self.reduction == "mean" else summed

    @abstractmethod
    def _of_batch(self, scores: Tensor, **options: Any) -> Tensor:
        """The loss of all of a batch."""

    @abstractmethod
    def _of_share(self, scores: Tensor, share: Share, **options: Any) -> Tensor:
        """The sum of what this rank's rows and columns have of the batch's loss."""


class TripletLoss(MatchingLoss):
    """Hinge-based triplet ranking loss, ``crossret_kernels.triplet_loss``.

    Args:
        margin: alpha of the hinges.
        negatives: "hardest" (SCAN Eq. 12), "sum" (SCAN Eq. 11) or "softmax" (HAN Eq. 4).
        p: order of the norm of "softmax"; without effect on the others.
        reduction: "sum" (SCAN) or "mean" over the batch.
    """

    def __init__(
        self, margin: float = 0.2, negatives: str = "hardest", *, p: float = 8.0, reduction: str = "sum"
    ) -> None:
        super().__init__(reduction)
        self.margin = margin
        self.negatives = negatives
        self.p = p

    def _of_batch(self, scores: Tensor, **options: Any) -> Tensor:
        return triplet_loss(scores, margin=self.margin, negatives=self.negatives, p=self.p, **options)

    def _of_share(self, scores: Tensor, share: Share, **options: Any) -> Tensor:
        options |= {"margin": self.margin, "negatives": self.negatives, "p": self.p}
        return _rows_and_columns(triplet_row_loss, scores, share, **options)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, negatives={self.negatives!r}, p={self.p}, reduction={self.reduction!r}"


class InfoNceLoss(MatchingLoss):
    """Cross entropies of both ways' softmaxes, ``crossret_kernels.infonce_loss``, with a learnable temperature (CLIP).

    Attributes:
        log_scale: a parameter, the logarithm of the inverse temperature. It is kept from exceeding log 100, as CLIP
            keeps it, whenever the loss is computed.

    Args:
        scale: the inverse temperature to start from.
        label_smoothing: the share of the target that goes to all pairs.
        reduction: "mean" (CLIP) or "sum" over the batch.
    """

    def __init__(self, scale: float = 1 / 0.07, *, label_smoothing: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_scale = nn.Parameter(_log_of(scale))
        self.label_smoothing = label_smoothing

    def scale(self) -> Tensor:
        """The inverse temperature, a scalar of at most 100."""
        with torch.no_grad():
            # Just below: the exponential rounds log 100 up. Its gradient is made of its result alone, so that losses of
            # several matrices may go backward together.
            self.log_scale.clamp_(max=math.log(LARGEST_SCALE) - 1e-6)
        return self.log_scale.exp()

    def _of_batch(self, scores: Tensor, **options: Any) -> Tensor:
        return infonce_loss(scores, self.scale(), label_smoothing=self.label_smoothing, **options)

    def _of_share(self, scores: Tensor, share: Share, **options: Any) -> Tensor:
        options |= {"scale": self.scale(), "label_smoothing": self.label_smoothing}
        return _rows_and_columns(infonce_row_loss, scores, share, **options) / 2

    def extra_repr(self) -> str:
        return f"label_smoothing={self.label_smoothing}, reduction={self.reduction!r}"


class SigmoidLoss(MatchingLoss):
    """A sigmoid for every pair, ``crossret_kernels.sigmoid_loss``, with a learnable scale and bias (SigLIP).

    Attributes:
        log_scale, bias: parameters, the logarithm of the scale, and the bias.

    Args:
        scale, bias: values to start from.
        reduction: "mean" (SigLIP): the sum over all pairs, divided by the images of the batch; or that "sum".
    """

    def __init__(self, scale: float = 10.0, bias: float = -10.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_scale = nn.Parameter(_log_of(scale))
        self.bias = nn.Parameter(torch.tensor(bias))

    def _of_batch(self, scores: Tensor, **options: Any) -> Tensor:
        return sigmoid_loss(scores, self.log_scale.exp(), self.bias, **options)

    def _of_share(self, scores: Tensor, share: Share, **options: Any) -> Tensor:
        return self._of_batch(scores, reduction="sum", **options)  # its rows are all that it has of the batch

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


def _log_of(scale: float) -> Tensor:
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be a positive number, got {scale}")
    return torch.tensor(math.log(scale))


def matching_loss(config: ModelConfig, *, reduction: str = "sum") -> MatchingLoss:
    """The loss that a model's hyper-parameters choose; ``reduction`` is of the triplet loss, others are means."""
    if config.loss == "triplet":
        options = {name: getattr(config, name) for name in config.OF_TRIPLETS if hasattr(config, name)}
        return TripletLoss(**options, reduction=reduction)
    scale = config.loss_scale
    if config.loss == "infonce":
        return InfoNceLoss(1 / 0.07 if scale is None else scale, label_smoothing=config.label_smoothing)
    return SigmoidLoss(10.0 if scale is None else scale, config.loss_bias)


class IntraPairLoss(nn.Module):
    """SMAN's intra-pair constraint (Eq. 22): matching pairs are to lie closer together than a margin.

    Eq. 22 needs a distance: of the mean over the levels of the cosines, 1 - d / levels with d of Eq. 20. Its two terms
    are equal, so that it counts twice.

    Args:
        margin: m₂, the distance that a matching pair may have.
        levels: of context vectors, over which d is summed.
    """

    def __init__(self, margin: float = 0.25, levels: int = 3) -> None:
        super().__init__()
        self.margin = margin
        self.levels = levels

    def forward(self, scores: Tensor, *, positive_offset: int = 0) -> Tensor:
        """The loss of a batch, a scalar: summed over the diagonal of ``scores``, the d of Eq. 20.

        Args:
            scores: (n, m) float, m = n in one process; image i and caption i + positive_offset match.
            positive_offset: where several processes train together, the first caption of this one.
        """
        distances = 1 - scores.diagonal(positive_offset)[: len(scores)] / self.levels
        return 2 * (distances - self.margin).relu().sum()

    def extra_repr(self) -> str:
        return f"margin={self.margin}, levels={self.levels}"


class DiversityLoss(nn.Module):
    """MHSAN's diversity regularisation (Eq. 5): heads are to look at different places.

    Args:
        squared: whether the Frobenius norm is squared, as Eq. 5 has it; the figures of Table 5 are of the plain norm.
    """

    def __init__(self, *, squared: bool = False) -> None:
        super().__init__()
        self.squared = squared

    def forward(self, weights: Tensor, *, total: int | None = None) -> Tensor:
        """The mean over n items of ‖M Mᵀ − I‖, a scalar.

        Args:
            weights: (n, L, r) float: the weight of each of r heads on each of L places, zero at the padding.
            total: the items of the batch, where n are only some of them: the sum over n is divided by it.
        """
        overlaps = weights.mT @ weights
        squares = (overlaps - torch.eye(weights.shape[2], dtype=weights.dtype, device=weights.device)).square()
        sums = squares.sum((1, 2))
        return (sums if self.squared else safe_sqrt(sums)).sum() / (len(weights) if total is None else total)

    def extra_repr(self) -> str:
        return f"squared={self.squared}"


class StructurePreservingLoss(nn.Module):
    """OAN's loss of one kind of score with hard negatives of both modalities (Eqs. 9-12).

    Eq. 10's intra-modal term rewards similar negatives as it is printed. Built is [α_intra − 1 + S(v, v̄)]₊ and the same
    of captions: the hinge with S(v, v) = 1 restored.

    Args:
        margin: α_inter of the hinges between modalities.
        negatives: of those hinges, as in ``TripletLoss``.
        intra_negatives: v̄ is the hardest negative of the own modality ("own", Eq. 11) or the partner of the other
            modality's hardest ("partner", Eq. 12); "none" leaves the term out.
        intra_margin, intra_weight: α_intra and β.
        matching_loss: the loss between the modalities; None is the triplet loss of Eq. 9, by ``margin`` and
            ``negatives``.
    """

    def __init__(
        self,
        margin: float = 0.2,
        negatives: str = "hardest",
        *,
        intra_negatives: str = "partner",
        intra_margin: float = 0.1,
        intra_weight: float = 0.5,
        matching_loss: MatchingLoss | None = None,
    ) -> None:
        super().__init__()
        self.matching_loss = TripletLoss(margin, negatives) if matching_loss is None else matching_loss
        self.intra_negatives = intra_negatives
        self.intra_margin = intra_margin
        self.intra_weight = intra_weight

    def forward(
        self,
        scores: Tensor,
        images: Tensor,
        captions: Tensor,
        image_ids: Tensor | None = None,
        *,
        share: Share | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The two terms of a batch: that between the modalities and, weighted by β, that within them.

        Both are sums over it, or means where ``matching_loss`` is one.

        Args:
            scores: (n, n) float, image-major; image i and caption i match.
            images, captions: (n, n) float, the cosines S of images with images and of captions with captions.
            image_ids: (n,) int64, as in ``MatchingLoss``.
            share: as in ``MatchingLoss``: scores and cosines are (share.n, share.total), and so are the terms shares.

        Raises:
            ValueError, TypeError: as ``MatchingLoss``; cosines are not of the scores' shape, or ``intra_negatives`` is
                no such name.
        """
        choose("intra_negatives", self.intra_negatives, ("own", "partner", "none"))
        for name, cosines in (("images", images), ("captions", captions)):
            if cosines.shape != scores.shape:
                raise ValueError(
                    f"{name} must have the scores' shape {tuple(scores.shape)}, got {tuple(cosines.shape)}"
                )
        share = share or Share.whole(len(scores))
        inter = self.matching_loss(scores, image_ids, share=share)
        if self.intra_negatives == "none":
            return inter, inter.new_zeros(())
        if image_ids is None:
            ids = torch.arange(share.total, device=scores.device)
        else:
            ids = _ids_of_all(image_ids, scores, share)
        match = ids[share.rows, None] == ids[None, :]
        intra = inter.new_zeros(())
        within = (images, captions)
        ranking = (scores, share.exchanged(_exact(scores.detach())).T) if self.intra_negatives == "partner" else within
        for own, other in zip(within, ranking, strict=True):
            ranked = other.detach().masked_fill(match, -torch.inf)
            hardest = own.gather(1, ranked.argmax(1, keepdim=True)).squeeze(1)
            hinges = (self.intra_margin - 1 + hardest).relu()
            intra = intra + hinges.masked_fill(match.all(1), 0).sum()
        return inter, self.intra_weight * self.matching_loss.reduced(intra, share)

    def extra_repr(self) -> str:
        return (
            f"intra_negatives={self.intra_negatives!r}, intra_margin={self.intra_margin}, "
            f"intra_weight={self.intra_weight}"
        )


def _ids_of_all(image_ids: Tensor, scores: Tensor, share: Share) -> Tensor:
    """Ids of the whole batch from this rank's, int64 on the scores' device; checked before they are sent."""
    ids = as_integers(image_ids, "image_ids")
    if ids.shape != (share.n,):
        raise ValueError(f"image_ids must hold one id for each of this rank's {share.n} pairs, got {tuple(ids.shape)}")
    return share.gathered(ids.to(scores.device))


def _rows_and_columns(loss_of_rows: Callable[..., Tensor], scores: Tensor, share: Share, **options: Any) -> Tensor:
    """Sum of the losses of this rank's rows, and of its columns, which the other ranks send it."""
    columns = share.exchanged(scores).T
    return loss_of_rows(scores, **options).sum() + loss_of_rows(columns, **options).sum()


def _exact(scores: Tensor) -> Tensor:
    """At least float32, as losses are summed, and as all ranks have them: autocast's dtypes hang on a rank's items."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
