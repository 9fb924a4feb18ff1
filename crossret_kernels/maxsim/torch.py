"""Backend "torch" of Sum-Max: the similarities of bounded chunks, their maxima, pooled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.padded.arithmetic import pool, safe_normalize
from crossret_kernels.padded.chunked import Block, chunked_scores


def maxsim_scores_chunked(regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions) -> Tensor:
    """Scores chunk by chunk: no similarity outlives its block."""

    return chunked_scores(regions, words, pairs, partial(_score, options=options), transform=_transform(options))


def maxsim_both_chunked(
    regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions
) -> tuple[Tensor, Tensor]:
    """Scores in the direction of the options and in the other one, of one product."""
    ways = options, options.turned

    def score(block: Block) -> Tensor:
        return torch.stack([_score(block, way) for way in ways], -1)

    scores = chunked_scores(regions, words, pairs, score, transform=_transform(options))
    if not len(regions) or not len(words):
        return scores, scores
    one, other = scores.unbind(-1)
    return one, other


def _score(block: Block, options: MaxSimOptions) -> Tensor:
    attention = block.as_attention(options.direction)
    return pooled_maxima(attention.similarities, attention.context_mask, attention.query_mask, options)


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


def pooled_maxima(similarities: Tensor, context_mask: Tensor, query_mask: Tensor, options: MaxSimOptions) -> Tensor:
    """Scores (…) of similarities (…, C, Q), masks (…, C) and (…, Q) of what is no padding."""
    if options.context_pooling == "max":
        best = clipped(_over_contexts(similarities, context_mask).values, options)
    else:
        valid = clipped(similarities, options).masked_fill(~context_mask[..., :, None], -torch.inf)
        largest = valid.detach().amax(-2, keepdim=True)
        soft = options.temperature * torch.logsumexp((valid - largest) / options.temperature, -2)
        best = largest.squeeze(-2) + soft
    return pool(best, query_mask.expand(best.shape), options.pooling, options.lambda_lse, options.top)


def clipped(similarities: Tensor, options: MaxSimOptions) -> Tensor:
    return similarities if options.clip_slope == 1 else F.leaky_relu(similarities, options.clip_slope)


def argmaxima(similarities: Tensor, context_mask: Tensor, query_mask: Tensor, width: int) -> Tensor:
    """The best context of every query (…, width), int64; −1 where there is no such query."""
    best = _over_contexts(similarities, context_mask).indices
    return F.pad(best.masked_fill(~query_mask, -1), (0, width - best.size(-1)), value=-1)


def _over_contexts(similarities: Tensor, context_mask: Tensor) -> torch.return_types.max:
    return similarities.masked_fill(~context_mask[..., :, None], -torch.inf).max(-2)
