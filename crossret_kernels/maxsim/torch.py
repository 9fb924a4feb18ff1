"""Backend "torch" of Sum-Max: the similarities of bounded chunks, their maxima, pooled."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.padded.arithmetic import pool, safe_normalize
from crossret_kernels.padded.chunked import Block, chunked_scores


def maxsim_scores_chunked(regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions) -> Tensor:
    """Scores chunk by chunk: no similarity outlives its block."""

    def score(block: Block) -> Tensor:
        attention = block.as_attention(options.direction)
        return pooled_maxima(attention.similarities, attention.context_mask, attention.query_mask, options.pooling)

    return chunked_scores(regions, words, pairs, score, transform=_transform(options))


def maxsim_argmax_chunked(
    regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions, width: int
) -> Tensor:
    """The best contexts (n_images, n_captions, width) or (P, width) of the similarities that the scores are made of."""
    count = (len(regions), len(words)) if pairs is None else (len(pairs),)
    if 0 in count:
        return torch.full((*count, width), -1, device=regions.values.device)

    def best(block: Block) -> Tensor:
        attention = block.as_attention(options.direction)
        return argmaxima(attention.similarities, attention.context_mask, attention.query_mask, width)

    with torch.no_grad():
        return chunked_scores(regions, words, pairs, best, transform=_transform(options))


def _transform(options: MaxSimOptions) -> Callable[[Tensor], Tensor] | None:
    return safe_normalize if options.normalize else None


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
