"""Reranking: given candidates of every query, scored and sorted; no other pair is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.evaluation import Progress
from crossret.models.protocol import Matcher
from crossret.search.blocks import Items, Scorer
from crossret.search.candidates import NONE, check_candidates
from crossret.search.matching import Score, Side, matched
from crossret_kernels.extending import check_k, check_progress

_CANDIDATES = 2 * 2**20  # of successive queries, that are sorted by item and looked up together
_PAIRS = 2**13  # scored in one call: a model may make something of each


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
        query: what queries are, "caption" or "image"; the corpus is the other.
        progress: called with (queries done, all of them) now and then.
        name: what errors call the candidates.

    Returns:
        (values, indices), both (n_queries, min(k, K)), on the CPU, best first, as ``retrieve`` has them: of equal
        scores the lower index. Where a query has fewer candidates the last are -inf and -1.

    Raises:
        OSError, TypeError, ValueError: as ``matched``, or k is out of range, or a candidate is no item of the corpus:
            names its row and column.
    """
    check_k(k)
    check_progress(progress)
    given = candidates.detach().cpu().numpy() if isinstance(candidates, Tensor) else candidates
    with matched(scorer, queries, corpus, query) as (score, wanted, items):
        n = len(wanted)
        check_candidates(given, n, len(items), name)
        step = max(1, _CANDIDATES // max(1, given.shape[1]))
        best = []
        for start in range(0, n, step):
            part = _without_repeats(np.asarray(given[start : start + step], np.int64))

            def show(share: float, start: int = start, size: int = len(part)) -> None:
                if progress is not None:
                    progress(start + math.floor(share * size), n)

            best.append(_sorted(_scores(score, wanted, items, part, start, show), torch.from_numpy(part), k))
            show(1)
    values, indices = zip(*best, strict=True)
    return torch.cat(values), torch.cat(indices)


def _without_repeats(candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each row ascending, and none in the place of what it has again."""
    found = np.sort(candidates, axis=1)
    found[:, 1:][found[:, 1:] == found[:, :-1]] = NONE
    return found


def _scores(
    score: Score,
    queries: Items[Any],
    corpus: Items[Any],
    candidates: NDArray[np.int64],
    first: int,
    show: Callable[[float], None],
) -> Tensor:
    """(n, K) scores of queries ``first`` and on with their candidates, -inf where there is none."""
    scores = torch.full(candidates.shape, -torch.inf)
    flat = scores.view(-1)
    places = np.flatnonzero(candidates != NONE)
    places = places[candidates.reshape(-1)[places].argsort(kind="stable")]
    items, begins = np.unique(candidates.reshape(-1)[places], return_index=True)
    begins = np.append(begins, len(places))
    with torch.no_grad():
        for run, block in corpus.chosen(items):
            of_block = places[begins[run.start] : begins[run.stop]]
            columns = np.repeat(np.arange(run.stop - run.start), np.diff(begins[run.start : run.stop + 1]))
            # By query, so that those of a block of queries are together.
            order = of_block.argsort()
            of_block, columns = of_block[order], columns[order]
            asked, rows = np.unique(of_block // candidates.shape[1], return_inverse=True)
            for queries_run, query_block in queries.chosen(asked + first):
                begin, end = np.searchsorted(rows, (queries_run.start, queries_run.stop))
                for at in range(begin, end, _PAIRS):
                    some = slice(at, min(at + _PAIRS, end))
                    pairs = np.stack([rows[some] - queries_run.start, columns[some]], 1)
                    found = score(query_block, block, torch.from_numpy(pairs))
                    flat[torch.from_numpy(of_block[some])] = found.float().cpu()
            show(int(begins[run.stop]) / len(places))
    return scores


def _sorted(scores: Tensor, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k of each row, best first; candidates ascend but for those that are none, which come last."""
    last = torch.iinfo(torch.int64).max
    indices, order = candidates.masked_fill(candidates == NONE, last).sort(dim=1)
    values, best = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, best)[:, :k]
    return values[:, :k].contiguous(), indices.masked_fill(indices == last, NONE)
