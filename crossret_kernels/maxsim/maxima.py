"""What backends "torch" and "reference" return of similarities: their pooled maxima, or where these are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.padded.arithmetic import pool


def pooled_maxima(similarities: Tensor, context_mask: Tensor, query_mask: Tensor, pooling: str) -> Tensor:
    """Scores (…) of similarities (…, C, Q), masks (…, C) and (…, Q) of what is no padding."""
    best = _over_contexts(similarities, context_mask).values
    return pool(best, query_mask.expand(best.shape), pooling, 1.0)


def argmaxima(similarities: Tensor, context_mask: Tensor, query_mask: Tensor, width: int) -> Tensor:
    """The best context of every query (…, width), int64; −1 where there is no such query."""
    best = _over_contexts(similarities, context_mask).indices
    return F.pad(best.masked_fill(~query_mask, -1), (0, width - best.size(-1)), value=-1)


def _over_contexts(similarities: Tensor, context_mask: Tensor) -> torch.return_types.max:
    return similarities.masked_fill(~context_mask[..., :, None], -torch.inf).max(-2)
