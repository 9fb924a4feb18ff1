"""The best k items of a corpus for every query, over any scorer: no more than a block of scores ever exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.inputs.blocks import FeatureBlocks, ItemBlocks, device_of
from crossret_kernels.inputs.call import IMAGES_AND_CAPTIONS, Features, Lengths
from crossret_kernels.inputs.options import choose
from crossret_kernels.inputs.pairs import QUERIES
from crossret_kernels.inputs.tensors import Array, SideNames

# Scores that exist at a time: 8 MiB in float32. Merging in PyTorch operations takes some five times that.
BLOCK_SCORES = 2 * 2**20

Query = TypeVar("Query")
Item = TypeVar("Item")
Progress: TypeAlias = Callable[[int, int], object]
FeatureBlock: TypeAlias = tuple[Any, ...]  # (features, lengths, mask), and factors where there are any


def feature_topk(
    scores: Callable[..., Tensor],
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    k: int,
    query: str = "caption",
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty: bool = False,
    progress: Progress | None = None,
    dtype: torch.dtype | None = None,
    names: tuple[SideNames, SideNames] = IMAGES_AND_CAPTIONS,
    factors: tuple[Array | None, Array | None] = (None, None),
) -> tuple[Tensor, Tensor]:
    """`streamed_topk` of images or captions, for any scorer of features: (regions, words, their lengths) -> (n, m).

    `scan_topk` documents the arguments; arrays are cast to `dtype`, where one is given. `empty` tells whether items
    may be empty; masks, where there are any, it gets as `region_mask` and `word_mask`, and as `factors` what is kept of
    the items of either side, (n, …). `names` are what errors call either side. Raises what the
    checks of the scores do, for all items before any is scored, and ValueError for an unknown `query`.
    """
    choose("query", query, QUERIES)
    device = device_of(regions, words)
    inputs = (regions, region_lengths, region_mask), (words, word_lengths, word_mask)
    sides = [
        FeatureBlocks.of(*side, names=name, device=device, dtype=dtype, empty=empty, factors=factor)
        for side, name, factor in zip(inputs, names, factors, strict=True)
    ]
    corpus, queries = sides if query == "caption" else sides[::-1]
    return streamed_topk(block_scores(scores, query), queries, corpus, k=k, progress=progress)


def block_scores(scores: Callable[..., Tensor], query: str) -> Callable[[FeatureBlock, FeatureBlock], Tensor]:
    """Scores (q, c) of a block of queries with a block of the corpus, of any scorer of images and captions."""

    def score_images(v: FeatureBlock, e: FeatureBlock) -> Tensor:
        options = {} if v[2] is None and e[2] is None else {"region_mask": v[2], "word_mask": e[2]}
        options.update(zip(["factors"], (*v[3:], *e[3:]), strict=False))
        return scores(v[0], e[0], v[1], e[1], **options)

    return score_images if query == "image" else lambda e, v: score_images(v, e).T


def streamed_topk(
    score: Callable[[Query, Item], Tensor],
    queries: ItemBlocks[Query],
    corpus: ItemBlocks[Item],
    *,
    k: int,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """The k best items of the corpus for every query, by merging one block of scores after another.

    The corpus is read once, front to back; the queries once for each of its runs. Memory is O(queries · k) and a block
    of either side's features and of scores.

    Args:
        score: scores (q, c) of a block of queries with a block of the corpus; its dtype and device are the values'.
        queries, corpus: both sides.
        k: how many, at least 1; all items where the corpus has fewer.
        progress: called with (items of the corpus scored so far, all of them) after every run of the corpus.

    Returns:
        (values, indices), both (queries, min(k, corpus)), best first, without gradient; indices int64. What a stable
        descending sort of all scores begins with: of equal scores the lower index comes first, and NaN before all
        numbers.

    Raises:
        TypeError: k is no integer, or progress cannot be called. ValueError: k is less than 1.
    """
    check_k(k)
    check_progress(progress)
    corpus_runs = corpus.runs(corpus_run_limit(len(queries)))
    query_runs = queries.runs(query_run_limit(corpus_runs))
    return topk_of_runs(score, queries, query_runs, corpus, corpus_runs, k=k, progress=progress)


def check_k(k: object) -> None:
    """Raise a TypeError where k is no integer, and a ValueError where it is less than 1."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be an integer, not {type(k).__name__}")
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")


def check_progress(progress: object) -> None:
    """Raise a TypeError where progress cannot be called."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of (done, total) or None, not {type(progress).__name__}")


def corpus_run_limit(n_queries: int) -> int:
    """The most items of a corpus in a run of it."""
    return max(math.isqrt(BLOCK_SCORES), BLOCK_SCORES // max(n_queries, 1))


def query_run_limit(corpus_runs: Iterable[slice]) -> int:
    """The most queries in a run of them, beside these runs of a corpus."""
    return BLOCK_SCORES // max(1, *(run.stop - run.start for run in corpus_runs))


def topk_of_runs(
    score: Callable[[Query, Item], Tensor],
    queries: ItemBlocks[Query],
    query_runs: Sequence[slice],
    corpus: ItemBlocks[Item],
    corpus_runs: Sequence[slice],
    *,
    k: int,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """`streamed_topk` of a part of a corpus: successive runs of its, as they are cut for the whole.

    A pair's score rounds by what it is scored with. Blocks are given, so that parts that are searched one by one, and
    merged by `merge_topk`, are what searching the whole gives, to the last bit.

    Returns:
        (values, indices), both (queries, min(k, items of these runs)); indices are places in the corpus.
    """
    first, last = corpus_runs[0].start, corpus_runs[-1].stop
    k = min(int(k), last - first)
    best: list[tuple[Tensor, Tensor]] = []
    pending: list[list[Tensor]] = [[] for _ in query_runs]
    border = first
    with torch.no_grad():
        for run in corpus_runs:
            items = corpus[run]
            # Scores of several runs are merged at once where queries are few: it costs less, the more so if k is large.
            merges = run.stop == last or (run.stop - border) * len(queries) >= BLOCK_SCORES
            for number, rows in enumerate(query_runs):
                pending[number].append(score(queries[rows], items))
                if merges:
                    scores = torch.cat(pending[number], 1)  # contiguous, too, where they were transposed
                    pending[number].clear()
                    if border == first:
                        empty = scores.new_empty(scores.size(0), 0)
                        best.append((empty, empty.to(torch.int64)))
                    best[number] = _merge(*best[number], scores, border, k)
                    del scores  # before the next block of them exists
            del items
            border = run.stop if merges else border
            if progress is not None:
                progress(run.stop, len(corpus))
    values, indices = zip(*best, strict=True)
    return torch.cat(values), torch.cat(indices)


def merge_topk(parts: Sequence[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """The best k of what was found in parts of a corpus, in any order of them: ((queries, ≤ k), (queries, ≤ k)) each.

    Returns:
        (values, indices), both (queries, min(k, all that was found)), in the order of `streamed_topk`.
    """
    values, indices = (torch.cat(side, 1) for side in zip(*parts, strict=True))
    indices, order = indices.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values[:, :k].contiguous(), indices.gather(1, order[:, :k])


def _merge(values: Tensor, indices: Tensor, scores: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """The best k of those so far, (q, ≤ k) best first, and of the scores (q, c) of items start to start + c.

    Items come in the order of their indices, so an item is only ever ahead of those with smaller values, and a stable
    sort of old before new settles ties.
    """
    full = values.size(1) == k
    if full:
        # NaN is greater than all numbers, and this comparison lets it in.
        rows = (~(scores <= values[:, -1:])).any(1).nonzero().squeeze(1)
        if not rows.size(0):
            return values, indices
        old_values, old_indices, scores = values[rows], indices[rows], scores[rows]
    else:
        old_values, old_indices = values, indices
    columns = _best_columns(scores, min(k, scores.size(1)))
    best, order = torch.cat([old_values, scores.gather(1, columns)], 1).sort(dim=1, descending=True, stable=True)
    best_indices = torch.cat([old_indices, columns + start], 1).gather(1, order[:, :k])
    if not full:
        return best[:, :k].contiguous(), best_indices
    return values.index_copy_(0, rows, best[:, :k]), indices.index_copy_(0, rows, best_indices)


def _best_columns(scores: Tensor, k: int) -> Tensor:
    """Where the k greatest of each row are, (rows, k) ascending; of equal ones the first."""
    if k == scores.size(1):
        return torch.arange(k, device=scores.device).expand_as(scores)
    # Which of several equal columns topk takes is not defined, but the k-th value is; NaN is the greatest there too.
    kth = scores.topk(k, 1).values[:, -1:]
    above = ~(scores <= kth) & ~kth.isnan()
    tied = (scores == kth) | (scores.isnan() & kth.isnan())
    missing = k - above.sum(1, keepdim=True)
    mask = above | (tied & (tied.cumsum(1, dtype=torch.int32) <= missing))
    return mask.nonzero()[:, 1].view(-1, k)
