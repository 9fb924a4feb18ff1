"""The best k of given candidates for every query, over any scorer: their pairs are scored, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.inputs.blocks import Items
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.topk.streamed import Progress, check_k, check_progress, merge_topk

NONE = -1  # in the place of a candidate where a query has fewer than others

_CANDIDATES = 2 * 2**20  # of successive queries, that are sorted by item and looked up together
_PAIRS = 2**13  # scored in one call: a model may make something of each
_PART = 2**20  # candidates looked at together


class PairScore(Protocol):
    """Scores (P,) of pairs (P, 2) int64 of places in a block of queries and in one of the corpus."""

    def __call__(self, queries: Any, items: Any, pairs: Tensor, /) -> Tensor: ...


def candidate_topk(
    score: PairScore,
    queries: Items[Any],
    corpus: Items[Any],
    candidates: NDArray[np.integer],
    *,
    k: int,
    progress: Progress | None = None,
    name: str = "candidates",
) -> tuple[Tensor, Tensor]:
    """The best of some given items of a corpus for every query.

    Items are read in the order of the corpus and in blocks, each that is a candidate once for some millions of
    candidates; memory does not grow with either side.

    Args:
        score: of pairs; its dtype is the values'.
        queries, corpus: both sides.
        candidates: (n_queries, K) integers, which may be memory-mapped: items of the corpus, and -1 for none. One that
            a row has twice counts once.
        k: how many, at least 1; all candidates where there are fewer.
        progress: called with (queries done, all of them) now and then.
        name: what errors call the candidates.

    Returns:
        (values, indices), both (n_queries, min(k, K)), on the CPU, without gradient, best first, in the order of
        `streamed_topk`. Where a query has fewer candidates the last are -inf and -1.

    Raises:
        TypeError: candidates or k are no integers, or progress cannot be called. ValueError: k is less than 1, or a
            candidate is no item of the corpus: names its row and column.
    """
    check_k(k)
    check_progress(progress)
    n = len(queries)
    check_candidates(candidates, n, len(corpus), name)
    step = max(1, _CANDIDATES // max(1, candidates.shape[1]))
    best = []
    for start in range(0, n, step):
        part = _without_repeats(np.asarray(candidates[start : start + step], np.int64))

        def show(share: float, start: int = start, size: int = len(part)) -> None:
            if progress is not None:
                progress(start + math.floor(share * size), n)

        best.append(_best(_scores(score, queries, corpus, part, start, show), torch.from_numpy(part), k))
        show(1)
    values, indices = zip(*best, strict=True)
    return torch.cat(values), torch.cat(indices)


def as_candidates(candidates: Array | Sequence[Array | Sequence[int]], name: str) -> NDArray[np.integer]:
    """Candidates (n_queries, K) as an array: one, a tensor, or a sequence a query, of which shorter ones end in `NONE`.

    Raises:
        TypeError, ValueError: they are none of these; names the row.
    """
    if isinstance(candidates, Tensor):
        return candidates.detach().cpu().numpy()
    if isinstance(candidates, np.ndarray):
        return candidates
    if not isinstance(candidates, (list, tuple)):
        raise TypeError(f"{name} must be an array, a tensor or a list of rows, not {type(candidates).__name__}")
    rows = []
    for number, row in enumerate(candidates):
        array = as_candidates(row, f"{name}[{number}]") if isinstance(row, Tensor) else np.asarray(row)
        if array.ndim != 1 or (len(array) and not np.issubdtype(array.dtype, np.integer)):
            raise TypeError(f"{name}[{number}] must be integers (K,), got {array.dtype} {array.shape}")
        rows.append(array)
    table = np.full((len(rows), max((len(row) for row in rows), default=0)), NONE, np.int64)
    for places, row in zip(table, rows, strict=True):
        places[: len(row)] = row
    return table


def check_candidates(candidates: NDArray[np.integer], n_queries: int, n_items: int, name: str) -> None:
    """Look at all candidates before any is scored.

    Raises:
        TypeError: they are no integers.
        ValueError: there is not a row for every query, or one is no item of the corpus; names the row and the column.
    """
    if not np.issubdtype(candidates.dtype, np.integer):
        raise TypeError(f"{name} must be integers, not {candidates.dtype}")
    if candidates.ndim != 2 or len(candidates) != n_queries:
        raise ValueError(
            f"{name}: expected shape ({n_queries}, K), a row for every query, got {tuple(candidates.shape)}"
        )
    step = max(1, _PART // max(1, candidates.shape[1]))
    for start in range(0, n_queries, step):
        part = candidates[start : start + step]
        wrong = np.argwhere((part < NONE) | (part >= n_items))
        if len(wrong):
            row, column = wrong[0].tolist()
            raise ValueError(
                f"{name}: row {start + row}, column {column}: {part[row, column]} is no item of the corpus, which has "
                f"0 to {n_items - 1}; {NONE} stands for none"
            )


def _without_repeats(candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Candidates with each row in ascending order; repeats become NONE."""
    rows = np.sort(candidates, axis=1)
    rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = NONE
    return rows


def pair_runs(
    queries: Items[Any], corpus: Items[Any], candidates: NDArray[np.int64], first: int = 0
) -> Iterator[tuple[NDArray[np.int64], Any, Any, Tensor, float]]:
    """All pairs of queries ``first`` and on with their candidates (n, K), each item that is one read once.

    Yields:
        Where the candidates of a run stand among all n · K, a block of queries, one of the corpus, the pairs (P, 2)
        int64 of places in these, and the share of all candidates that is done with this run.
    """
    places = np.flatnonzero(candidates != NONE)
    places = places[candidates.reshape(-1)[places].argsort(kind="stable")]
    items, begins = np.unique(candidates.reshape(-1)[places], return_index=True)
    begins = np.append(begins, len(places))
    done = 0
    for run, block in corpus.chosen(items):
        block_places = places[begins[run.start] : begins[run.stop]]
        columns = np.repeat(np.arange(run.stop - run.start), np.diff(begins[run.start : run.stop + 1]))
        # Sorted by query: those of a block of queries are together.
        order = block_places.argsort()
        block_places, columns = block_places[order], columns[order]
        query_numbers, rows = np.unique(block_places // candidates.shape[1], return_inverse=True)
        for queries_run, query_block in queries.chosen(query_numbers + first):
            begin, end = np.searchsorted(rows, (queries_run.start, queries_run.stop))
            for start in range(begin, end, _PAIRS):
                part = slice(start, min(start + _PAIRS, end))
                pairs = np.stack([rows[part] - queries_run.start, columns[part]], 1)
                done += len(pairs)
                yield block_places[part], query_block, block, torch.from_numpy(pairs), done / len(places)


def _scores(
    score: PairScore,
    queries: Items[Any],
    corpus: Items[Any],
    candidates: NDArray[np.int64],
    first: int,
    show: Callable[[float], None],
) -> Tensor:
    """(n, K) scores of queries ``first`` and on with their candidates, -inf where there is none."""
    scores = torch.full(candidates.shape, -torch.inf)
    with torch.no_grad():
        for places, query_block, block, pairs, done in pair_runs(queries, corpus, candidates, first):
            values = score(query_block, block, pairs).cpu()
            scores = scores.to(torch.promote_types(values.dtype, torch.float32))
            scores.view(-1)[torch.from_numpy(places)] = values.to(scores.dtype)
            show(done)
    return scores


def _best(scores: Tensor, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k of each row, best first; candidates ascend but for those that are none, which come last."""
    last = torch.iinfo(torch.int64).max
    values, indices = merge_topk([(scores, candidates.masked_fill(candidates == NONE, last))], k)
    return values, indices.masked_fill(indices == last, NONE)
