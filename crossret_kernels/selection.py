"""Which (image, caption) pairs a call scores: all of them, a list of pairs, or candidates of every query."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.ragged import FEW, as_int64, bounds, checkable


def as_pairs(
    pairs: Tensor | None,
    candidates: Tensor | None,
    direction: str,
    n_images: int,
    n_captions: int,
    device: torch.device,
) -> Tensor | None:
    """The pairs to score as (P, 2) int64 (image, caption) on `device`; None for all pairs.

    `candidates` (n_queries, K) hold, for every item of the attending side (captions for t2i, images for i2t), the
    indices of the K items of the other side it is scored against.
    """
    if pairs is not None and candidates is not None:
        raise ValueError("pairs and candidates exclude each other: pass one of them")
    if pairs is not None:
        pairs = _as_indices(pairs, "pairs")
        if pairs.dim() != 2 or pairs.size(1) != 2:
            raise ValueError(f"pairs must have shape (P, 2), got {tuple(pairs.shape)}")
        if checkable():
            images, captions = pairs.unbind(1)
            _check_range(images, n_images, "pairs", "image")
            _check_range(captions, n_captions, "pairs", "caption")
        return pairs.to(device)
    if candidates is None:
        return None
    candidates = _as_indices(candidates, "candidates")
    queries, others, other = (
        (n_captions, n_images, "image") if direction == "t2i" else (n_images, n_captions, "caption")
    )
    if candidates.dim() != 2 or candidates.size(0) != queries:
        raise ValueError(
            f"candidates must have shape ({queries}, K), a row for each attending item, got {tuple(candidates.shape)}"
        )
    if checkable():
        _check_range(candidates, others, "candidates", other)
        if candidates.numel() <= FEW:
            listed = [(own, index) for own, row in enumerate(candidates.tolist()) for index in row]
            if direction == "t2i":
                listed = [(index, own) for own, index in listed]
            return torch.tensor(listed, dtype=torch.int64, device=device).view(-1, 2)
    candidates = candidates.to(device)
    own = torch.arange(queries, device=device).unsqueeze(1).expand_as(candidates)
    return torch.stack((candidates, own) if direction == "t2i" else (own, candidates), 2).view(-1, 2)


def shape_scores(scores: Tensor, candidates: Tensor | None) -> Tensor:
    """What was made of pairs (P, …) as the caller gets it: (n_queries, K, …) for candidates, at least float32."""
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    return scores if candidates is None else scores.view(*candidates.shape, *scores.shape[1:])


def _as_indices(indices: object, name: str) -> Tensor:
    if not isinstance(indices, Tensor):
        raise TypeError(f"{name} must be an integer tensor, not {type(indices).__name__}")
    return as_int64(indices, name)


def _check_range(indices: Tensor, count: int, name: str, item: str) -> None:
    if indices.numel() == 0:
        return
    lowest, highest = bounds(indices)
    if lowest < 0 or highest >= count:
        where = ((indices < 0) | (indices >= count)).nonzero()[0].tolist()
        value = int(indices[tuple(where)])
        place = "][".join(str(index) for index in where)
        raise ValueError(f"{name}[{place}] names {item} {value}, but there are {count} {item}s")
