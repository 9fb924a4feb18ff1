"""Backend "torch" of stacked cross attention: kernels.md §1 with both identities, in bounded chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.arithmetic import safe_normalize, safe_sqrt
from crossret_kernels.chunked import Block, chunked_scores
from crossret_kernels.cross_attention.attention import attention_logits, pooled_relevance
from crossret_kernels.cross_attention.options import CrossAttentionOptions
from crossret_kernels.ragged import Ragged


def scan_scores_chunked(regions: Ragged, words: Ragged, pairs: Tensor | None, options: CrossAttentionOptions) -> Tensor:
    """Scores by the Gram form: the attended vectors are never built."""

    def score(block: Block) -> Tensor:
        attention = block.as_attention(options.direction)
        logits = attention_logits(attention.similarities, attention.context_mask, attention.query_mask, options)
        p = torch.softmax(logits, -2)
        products = (p * attention.similarities).sum(-2)
        norms = safe_sqrt(attention.gram_form(p))
        return pooled_relevance(products, norms, attention.queries, attention.query_mask, options)

    return chunked_scores(regions, words, pairs, score, transform=safe_normalize if options.normalize else None)
