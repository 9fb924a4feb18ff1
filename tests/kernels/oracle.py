"""Scores straight from the paper, one pair and one query at a time, in NumPy float64: the oracle of the oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPS = 1e-8


def scan_score(
    regions: Array, words: Array, pooling: str, lambda_lse: float, direction: str, lambda_softmax: Any, **options: Any
) -> float:
    """SCAN Eqs. 1–8 for one image (R, D) and one caption (W, D); of both directions their mean."""
    if direction == "both":
        lambdas = lambda_softmax if isinstance(lambda_softmax, tuple) else (lambda_softmax, lambda_softmax)
        ways = zip(("t2i", "i2t"), lambdas, strict=True)
        return sum(scan_score(regions, words, pooling, lambda_lse, way, x, **options) for way, x in ways) / 2
    options |= {"direction": direction, "lambda_softmax": lambda_softmax}
    return pooled(scan_attention(regions, words, **options)[1], pooling, lambda_lse)


def scan_attention(
    regions: Array,
    words: Array,
    direction: str,
    raw_feature_norm: str,
    clip_slope: float,
    lambda_softmax: float,
    normalize: bool,
    relevance: str = "cosine",
    focal: bool = False,
    threshold: float | None = None,
) -> tuple[Array, Array]:
    """The weights (Q, C) of SCAN Eq. 3 and the relevances (Q,) of Eq. 4 of one image and one caption.

    Weights of BFAN's focal attention and of SPARC, relevances of CHAN.
    """
    if normalize:
        regions, words = _unit(regions), _unit(words)
    contexts, queries = (regions, words) if direction == "t2i" else (words, regions)
    s = np.array([[float(c @ q) for q in queries] for c in contexts])
    x = np.where(s > 0, s, clip_slope * s) if raw_feature_norm.startswith("clipped") else s
    n = np.array([_normalised(row, raw_feature_norm) for row in x])
    weights, relevances = [], []
    for q, query in enumerate(queries):
        if raw_feature_norm == "minmax":
            p = _spread(s[:, q], threshold)
        else:
            unscaled = np.exp(lambda_softmax * n[:, q] - (lambda_softmax * n[:, q]).max())
            p = unscaled / unscaled.sum()
        weights.append(_focused(p) if focal else p)
        attended = weights[-1] @ contexts
        relevances.append(_cosine(query, attended) if relevance == "cosine" else _projection(query, attended))
    return np.array(weights), np.array(relevances)


def maxsim_score(
    regions: Array, words: Array, direction: str, pooling: str, normalize: bool, clip_slope: float = 1.0,
    lambda_lse: float = 6.0, top: int = 0, context_pooling: str = "max", temperature: float = 0.1,
) -> float:  # fmt: skip
    """SCAN Eqs. 9 and 10 for one image (R, D) and one caption (W, D), and what today's scorers make of them."""
    if normalize:
        regions, words = _unit(regions), _unit(words)
    s = np.array([[float(v @ e) for e in words] for v in regions])
    s = np.where(s > 0, s, clip_slope * s)
    ways = {"t2i": [s.T], "i2t": [s], "both": [s.T, s]}[direction]
    scores = []
    for of_queries in ways:
        best = of_queries.max(1)
        if context_pooling == "lse":
            best = best + temperature * np.log(np.exp((of_queries - best[:, None]) / temperature).sum(1))
        scores.append(pooled(best, pooling, lambda_lse, top))
    return sum(scores) / len(scores)


def pooled(values: Array, pooling: str, lambda_lse: float, top: int = 0) -> float:
    if pooling == "topk":
        return float(np.sort(values)[::-1][:top].sum())
    if pooling == "lse":
        largest = values.max()
        return float(largest + np.log(np.exp(lambda_lse * (values - largest)).sum()) / lambda_lse)
    if pooling == "softmax":
        weights = np.exp(lambda_lse * (values - values.max()))
        return float((weights * values).sum() / weights.sum())
    if pooling == "avg":
        return float(values.mean())
    return float(values.sum() if pooling == "sum" else values.max())


def _unit(features: Array) -> Array:
    return np.array([row / math.hypot(*row) if row.any() else row for row in features])


def _cosine(query: Array, attended: Array) -> float:
    lengths = math.hypot(*query), math.hypot(*attended)
    if not all(lengths):
        return 0.0
    product = float(query @ attended)
    return product / EPS if math.prod(lengths) < EPS else product / lengths[0] / lengths[1]


def _projection(query: Array, attended: Array) -> float:
    """The query's length along what it attends to."""
    length = math.hypot(*attended)
    return float(query @ attended) / max(length, EPS) if length else 0.0


def _focused(weights: Array) -> Array:
    """A query's weights of those contexts alone whose weight is above the mean of all, or equal but for rounding."""
    kept = np.array([p if p * len(weights) > 1 - 2**-14 else 0.0 for p in weights])
    return kept / kept.sum()


def _spread(s: Array, threshold: float | None) -> Array:
    """A query's weights by where its similarities are between the least and the greatest."""
    least, most, threshold = min(s), max(s), 1 / len(s) if threshold is None else threshold
    if least == most:
        return np.full(len(s), 1 / len(s))
    n = [(x - least) / (most - least) for x in s]
    kept = np.array([x if x >= threshold else 0.0 for x in n])
    return kept / kept.sum()


def _normalised(row: Array, mode: str) -> Array:
    """One context's similarities to all queries, normalised along them."""
    if mode == "softmax":
        e = np.exp(row - row.max())
        return e / e.sum()
    if mode in ("l2norm", "clipped_l2norm"):
        norm = math.hypot(*row)
    elif mode in ("l1norm", "clipped_l1norm"):
        norm = float(np.abs(row).sum())
    else:
        return row
    return row / (norm + EPS)
