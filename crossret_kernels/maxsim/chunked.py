"""Backend "torch" of Sum-Max: the similarities of bounded chunks, their maxima, pooled."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.arithmetic import pool, safe_normalize
from crossret_kernels.chunked import Block, chunked_scores
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.ragged import Ragged


def maxsim_scores_chunked(regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions) -> Tensor:
    """Scores chunk by chunk: no similarity outlives its block."""

    def score(block: Block) -> Tensor:
        attention = block.as_attention(options.direction)
        best = attention.similarities.masked_fill(~attention.context_mask[..., :, None], -torch.inf).max(-2).values
        return pool(best, attention.query_mask, options.pooling, 1.0)

    return chunked_scores(regions, words, pairs, score, transform=safe_normalize if options.normalize else None)
