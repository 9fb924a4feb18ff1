"""Reranking: given candidates of every query, scored and sorted; no other pair is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crossret.models.protocol import Matcher
from crossret.progress import Progress
from crossret.search.blocks import Scorer
from crossret.search.matching import Side, matched
from crossret_kernels.extending import candidate_topk


def rerank(
    scorer: Scorer | Matcher,
    queries: Side,
    corpus: Side,
    candidates: NDArray[np.integer] | Tensor,
    *,
    k: int,
    query: str = "caption",
    progress: Progress | None = None,
    name: str = "candidates",
) -> tuple[Tensor, Tensor]:
    """The best of some given items of a corpus for every query, by a scorer of features or by any model.

    Items are read, or encoded, in the order of the corpus and in blocks, each that is a candidate once for some
    millions of candidates; memory does not grow with either side.

    Args:
        scorer: of features, for instance ``crossret_kernels.maxsim_scores`` or ``scan_scores`` with its options bound;
            or a model, of what it encoded.
        queries, corpus: the two sides. Of a scorer, features, scored in float32: ``StoredItems`` or ``StoredShards`` of
            the disk, or as the scorer takes them. Of a model, what it encoded: ``StoredEncoded`` of the disk, or
            ``Encoded`` in memory.
        candidates: (n_queries, K) integers, an array, which may be memory-mapped, or a tensor: items of the corpus, and
            -1 for none. One that a row has twice counts once.
        k: how many, at least 1; all candidates where there are fewer.
        query: kind of the queries, "caption" or "image"; the corpus is the other.
        progress: called with (queries done, all of them) now and then.
        name: the candidates' name in errors.

    Returns:
        (values, indices), both (n_queries, min(k, K)), on the CPU, best first, as ``retrieve`` has them: of equal
        scores the lower index. Where a query has fewer candidates the last are -inf and -1.

    Raises:
        OSError, TypeError, ValueError: as ``matched``, or k is out of range, or a candidate is no item of the corpus:
            names its row and column.
    """
    given = candidates.detach().cpu().numpy() if isinstance(candidates, Tensor) else candidates
    with matched(scorer, queries, corpus, query) as (score, wanted, items):
        return candidate_topk(score, wanted, items, given, k=k, progress=progress, name=name)
