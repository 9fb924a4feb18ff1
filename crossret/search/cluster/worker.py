"""What runs on a node: a worker that holds the kernels and maps the shards that are there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from crossret import __version__
from crossret.files.shards import StoredShards
from crossret.search.blocks import Scorer, ShardBlocks, feature_blocks, shard_blocks, sides
from crossret_kernels.extending import (
    ENVIRONMENT_VARIABLE,
    FeatureBlock,
    FeatureBlocks,
    Features,
    Lengths,
    block_scores,
    topk_of_runs,
)

if TYPE_CHECKING:
    import ray


@dataclass(frozen=True)
class Search:
    """What all workers are asked for: sent once, and read by the workers of a node where it then lies.

    Attributes:
        scorer: scores images with captions.
        backend: what CROSSRET_BACKEND is where they are asked, if it is set there.
        query: "caption" or "image".
        features, lengths: the queries.
        query_runs: how they are cut into blocks.
        k: how many of each part are wanted.
    """

    scorer: Scorer
    backend: str | None
    query: str
    features: Features
    lengths: Lengths
    query_runs: list[slice]
    k: int

    def queries(self) -> FeatureBlocks:
        return feature_blocks(self.features, self.lengths, sides(self.query)[0])


class Worker:
    """Answers for parts of a corpus, without any memory of what it answered: whatever is lost may be asked again."""

    def __init__(self, corpus: StoredShards, threads: int) -> None:
        self.corpus = corpus
        self.threads = threads
        self.blocks: dict[str, ShardBlocks[FeatureBlock]] = {}
        self.search: tuple[int, Search, FeatureBlocks] | None = None

    def start(self) -> tuple[str, list[int]]:
        """This node's version of crossret, and which shards are on it."""
        torch.set_num_threads(self.threads)
        shards = self.corpus.shards
        return __version__, [number for number, shard in enumerate(shards) if shard.directory.is_dir()]

    def plan(self, shard: int, query: str, most: int) -> list[tuple[int, int]]:
        """The runs of a shard, from and to which of its items, at most ``most`` of them in each."""
        return [(run.start, run.stop) for run in self._blocks(query).shard(shard).runs(most)]

    def topk(self, number: int, search: list[ray.ObjectRef[Search]], shard: int, runs: list[tuple[int, int]]) -> Any:
        """``topk_of_runs`` of some runs of a shard, as arrays; indices are places in the corpus.

        ``search`` is not fetched where it is that of this number before.
        """
        import ray

        if self.search is None or self.search[0] != number:
            wanted = ray.get(search[0])
            self.search = number, wanted, wanted.queries()
        _, wanted, queries = self.search
        if wanted.backend is None:
            os.environ.pop(ENVIRONMENT_VARIABLE, None)
        else:
            os.environ[ENVIRONMENT_VARIABLE] = wanted.backend
        values, indices = topk_of_runs(
            block_scores(wanted.scorer, wanted.query),
            queries,
            wanted.query_runs,
            self._blocks(wanted.query).shard(shard),
            [slice(*run) for run in runs],
            k=wanted.k,
        )
        return values.numpy(), (indices + self.corpus.shards[shard].start).numpy()

    def _blocks(self, query: str) -> ShardBlocks[FeatureBlock]:
        if query not in self.blocks:
            self.blocks = {query: shard_blocks(self.corpus, sides(query)[1])}
        return self.blocks[query]
