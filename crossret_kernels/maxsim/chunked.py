"""Backend "torch" of Sum-Max: the similarities of bounded chunks, their maxima, pooled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.maxsim.maxima import argmaxima, pooled_maxima
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.padded.arithmetic import safe_normalize
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
