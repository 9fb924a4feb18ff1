"""Losses as modules that carry their hyper-parameters."""

from __future__ import annotations

from torch import Tensor, nn

from crossret_kernels import triplet_loss


class TripletLoss(nn.Module):
    """Hinge-based triplet ranking loss over a score matrix whose diagonal holds the matching pairs.

    Args:
        margin: alpha of the hinges.
        negatives: "hardest" (SCAN Eq. 12), "sum" (SCAN Eq. 11) or "softmax" (HAN Eq. 4).
        p: order of the norm of "softmax"; without effect on the others.
        reduction: "sum" (SCAN) or "mean" over the batch.
    """

    def __init__(
        self, margin: float = 0.2, negatives: str = "hardest", *, p: float = 8.0, reduction: str = "sum"
    ) -> None:
        super().__init__()
        self.margin = margin
        self.negatives = negatives
        self.p = p
        self.reduction = reduction

    def forward(self, scores: Tensor, image_ids: Tensor | None = None) -> Tensor:
        """The loss of one batch.

        Args:
            scores: (n, n) float, image-major; image i and caption i match.
            image_ids: (n,) int64, the image that entry i is about: captions of one image are never each other's
                negatives. None where all images differ.

        Returns:
            a scalar.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.triplet_loss``.
        """
        return triplet_loss(
            scores,
            margin=self.margin,
            negatives=self.negatives,
            p=self.p,
            image_ids=image_ids,
            reduction=self.reduction,
        )

    def extra_repr(self) -> str:
        return f"margin={self.margin}, negatives={self.negatives!r}, p={self.p}, reduction={self.reduction!r}"
