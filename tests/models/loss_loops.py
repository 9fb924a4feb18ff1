"""Losses of a batch by loops over its entries, in Python floats."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def negatives_of(entry: int, n: int, ids: Sequence[int] | None) -> list[int]:
    """The entries that are not about this one's image."""
    return [j for j in range(n) if (j != entry if ids is None else ids[j] != ids[entry])]


def triplet_by_hand(
    scores: Tensor, margin: float, negatives: str = "hardest", p: float = 8.0, ids: Sequence[int] | None = None
) -> float:
    """SCAN Eqs. 11, 12 and HAN Eq. 4, the norm of the hinges, over (n, n) scores, summed over the batch."""
    total = 0.0
    for i in range(len(scores)):
        for row in (scores[i].tolist(), scores[:, i].tolist()):
            hinges = [max(0.0, margin - row[i] + row[j]) for j in negatives_of(i, len(scores), ids)]
            if negatives == "softmax":
                total += sum(hinge**p for hinge in hinges) ** (1 / p)
            else:
                total += sum(hinges) if negatives == "sum" else max(hinges, default=0.0)
    return total


def within_by_hand(
    scores: Tensor, images: Tensor, captions: Tensor, margin: float, kind: str, ids: Sequence[int] | None = None
) -> float:
    """The terms within the modalities of OAN Eq. 10, without their weight, of the negatives of Eq. 11 or 12.

    Args:
        scores, images, captions: (n, n), of images with captions, images with images, captions with captions.
        margin: alpha_intra; kind: "own" or "partner".
    """
    total = 0.0
    for i in range(len(scores)):
        others = negatives_of(i, len(scores), ids)
        if not others:
            continue
        if kind == "own":
            image = max(others, key=lambda j: images[i, j].item())
            caption = max(others, key=lambda j: captions[i, j].item())
        else:
            image = max(others, key=lambda j: scores[i, j].item())  # the partner of the caption hardest for image i
            caption = max(others, key=lambda j: scores[j, i].item())
        total += max(0.0, margin - 1 + images[i, image].item()) + max(0.0, margin - 1 + captions[i, caption].item())
    return total
