"""Scores one item at a time, as published code computes them: the yardstick, and in float64 the oracle."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Inputs

EPS = 1e-8


def scan_loop(
    inputs: Inputs, *, direction: str, lambda_softmax: float, pooling: str, lambda_lse: float = 6.0
) -> Tensor:
    """clipped_l2norm scores (n_images, n_captions) of images of one length: caption by caption, as SCAN's code does."""
    columns = []
    for caption, length in zip(inputs.words, inputs.word_lengths.tolist(), strict=True):
        own = caption[:length].expand(len(inputs.regions), -1, -1)
        queries, contexts = (own, inputs.regions) if direction == "t2i" else (inputs.regions, own)
        similarities = F.leaky_relu(contexts @ queries.mT, 0.1)
        normalised = similarities / (similarities.square().sum(2, keepdim=True).sqrt() + EPS)
        weights = torch.softmax(lambda_softmax * normalised.mT, 2)
        attended = weights @ contexts
        lengths_product = queries.norm(dim=2) * attended.norm(dim=2)
        relevance = (queries * attended).sum(2) / lengths_product.clamp(min=EPS)
        pooled = relevance.mean(1) if pooling == "avg" else torch.logsumexp(lambda_lse * relevance, 1) / lambda_lse
        columns.append(pooled)
    return torch.stack(columns, 1)


def maxsim_loop(inputs: Inputs) -> Tensor:
    """t2i Sum-Max scores (n_images, n_captions), a document and a query at a time."""
    documents = [item[:length] for item, length in zip(inputs.regions, inputs.region_lengths.tolist(), strict=True)]
    queries = [item[:length] for item, length in zip(inputs.words, inputs.word_lengths.tolist(), strict=True)]
    return torch.stack([torch.stack([(d @ q.T).amax(0).sum() for q in queries]) for d in documents])
