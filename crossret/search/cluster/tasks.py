"""Tasks of a node, without any memory of what ran before: whatever is lost may run again, there or elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crossret.files.shards import StoredShards
from crossret.search.blocks import Scorer, feature_blocks, sides, stored_blocks
from crossret_kernels.extending import ENVIRONMENT_VARIABLE, Features, Lengths, block_scores, topk_of_runs

Run = tuple[int, int]


@dataclass(frozen=True)
class Search:
    """Arguments that all tasks of a search have: sent to a node once.

    Attributes:
        corpus: which shards there are.
        scorer: scores images with captions.
        backend: value of CROSSRET_BACKEND where they are asked, if it is set there.
        threads: of each task.
        query: "caption" or "image".
        features, lengths: the queries.
        query_runs: how they are cut into blocks.
        k: how many of each part are wanted.
    """

    corpus: StoredShards
    scorer: Scorer
    backend: str | None
    threads: int
    query: str
    features: Features
    lengths: Lengths
    query_runs: list[slice]
    k: int


def runs_of(corpus: StoredShards, shard: int, query: str, most: int) -> list[Run]:
    """The runs of a shard, from and to which of its items, at most ``most`` of them in each."""
    return [(run.start, run.stop) for run in stored_blocks(corpus.open(shard), sides(query)[1]).runs(most)]


def topk_of(search: Search, shard: int, runs: list[Run]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """``topk_of_runs`` of some runs of a shard, as arrays; indices are places in the corpus."""
    torch.set_num_threads(search.threads)
    if search.backend is None:
        os.environ.pop(ENVIRONMENT_VARIABLE, None)
    else:
        os.environ[ENVIRONMENT_VARIABLE] = search.backend
    of_queries, of_corpus = sides(search.query)
    values, indices = topk_of_runs(
        block_scores(search.scorer, search.query),
        feature_blocks(search.features, search.lengths, of_queries),
        search.query_runs,
        stored_blocks(search.corpus.open(shard), of_corpus),
        [slice(*run) for run in runs],
        k=search.k,
    )
    return values.numpy(), (indices + search.corpus.shards[shard].start).numpy()
