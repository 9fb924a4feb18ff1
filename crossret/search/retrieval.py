"""Searching a corpus: the best images for captions, the best captions for images, without the matrix of all scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from crossret.models.protocol import Matcher
from crossret.progress import Progress
from crossret.search.blocks import Scorer
from crossret.search.matching import Side, matched
from crossret_kernels.extending import streamed_topk


def retrieve(
    scorer: Scorer | Matcher,
    queries: Side,
    corpus: Side,
    *,
    k: int,
    query: str,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """The best items of a corpus for every query, read, or encoded, in blocks.

    Args:
        scorer: of features, for instance ``crossret_kernels.scan_scores`` with its options bound; or a model, of what
            it encoded.
        queries, corpus: the two sides, either of them larger than memory. Of a scorer, features, ``StoredItems`` or
            ``StoredShards``, scored in float32; of a model, what it encoded, ``StoredEncoded``.
        k, query, progress: as ``crossret_kernels.scan_topk``.

    Returns:
        (values, indices), both (queries, min(k, corpus)), best first.

    Raises:
        OSError, TypeError, ValueError: as ``matched``, or k is out of range.
    """
    with matched(scorer, queries, corpus, query) as (score, wanted, items):
        return streamed_topk(score, wanted, items, k=k, progress=progress)


def ranked(
    values: Tensor,
    indices: Tensor,
    queries: Sequence[dict[str, Any]],
    describe: Callable[[int], dict[str, Any]],
    why_not_finite: Callable[[int, int], str],
) -> list[dict[str, Any]]:
    """Results as JSON objects, one a query: {"query": its number, …, "results": [{"rank", "index", "score", …}, …]}.

    Args:
        values, indices: (queries, k) as retrieved or reranked; -1 is no item, and no result.
        queries: further facts on each query.
        describe: further facts on the item of an index.
        why_not_finite: reason why the score of a query with an item is no finite number.

    Raises:
        ValueError: a score is no finite number, which JSON cannot hold; names the query and the item, and says why.
    """
    wrong = (~values.isfinite() & (indices >= 0)).nonzero().tolist()
    if wrong:
        query, rank = wrong[0]
        item, value = int(indices[query, rank]), float(values[query, rank])
        raise ValueError(f"query {query} has the score {value} with item {item}: {why_not_finite(query, item)}")
    return [
        {
            "query": number,
            **query,
            "results": [
                {"rank": rank, "index": index, "score": value, **describe(index)}
                for rank, (value, index) in enumerate(zip(row_values, row_indices, strict=True), start=1)
                if index >= 0
            ],
        }
        for number, (query, row_values, row_indices) in enumerate(
            zip(queries, values.tolist(), indices.tolist(), strict=True)
        )
    ]
