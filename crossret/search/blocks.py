"""Features on the disk, read a block at a time: in runs as the kernels' searches take them, or some chosen items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret_kernels.extending import (
    QUERIES,
    Chosen,
    FeatureBlock,
    FeatureBlocks,
    Features,
    Items,
    Lengths,
    SideNames,
    choose,
    is_packed,
)

REGIONS, WORDS = "region", "word"

Block = TypeVar("Block", covariant=True)
# Scorer of a block: regions (n, R, D), words (m, W, D), region lengths (n,), word lengths (m,) -> (n, m), or, of
# pairs=(P, 2), -> (P,). For instance ``crossret_kernels.scan_scores`` with its options bound.
Scorer = Callable[..., Tensor]


def sides(query: str) -> tuple[str, str]:
    """Items of queries and of the corpus; raises a ValueError unless query is "caption" or "image"."""
    choose("query", query, QUERIES)
    return (WORDS, REGIONS) if query == "caption" else (REGIONS, WORDS)


def feature_blocks(features: Features, lengths: Lengths, side: str) -> FeatureBlocks:
    """One side's features, in float32 on the CPU; ``side`` is ``REGIONS`` or ``WORDS``, for what errors say."""
    return FeatureBlocks.of(
        features,
        lengths,
        names=SideNames(f"{side}s", f"{side}_lengths", f"{side}_mask", side),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def stored_blocks(items: StoredItems, side: str) -> FeatureBlocks:
    """Blocks of features on the disk, as ``feature_blocks``."""
    return feature_blocks(items.features, items.lengths, side)


def plain_features(features: Any) -> Any:
    """Features that are scored beside a stored corpus: arrays as they are, tensors in float32 as its blocks are."""
    if isinstance(features, Tensor):
        return features.detach().to("cpu", torch.float32)
    if is_packed(features):
        return plain_features(features[0]), features[1]
    if isinstance(features, Sequence):
        return [plain_features(item) for item in features]
    return np.asarray(features)


class ShardBlocks(Generic[Block]):
    """The items of a corpus in shards, of which one at a time is open.

    Args:
        corpus: its shards.
        of_shard: the items of an open one.
    """

    def __init__(self, corpus: StoredShards, of_shard: Callable[[StoredItems], Items[Block]]) -> None:
        self.corpus = corpus
        self.of_shard = of_shard
        self._open: tuple[int, Items[Block]] | None = None

    def __len__(self) -> int:
        return len(self.corpus)

    def runs(self, most: int) -> list[slice]:
        return [
            slice(shard.start + run.start, shard.start + run.stop)
            for number, shard in enumerate(self.corpus.shards)
            for run in self.shard(number).runs(most)
        ]

    def __getitem__(self, run: slice) -> Block:
        number, first = self.corpus.find(run.start)
        return self.shard(number)[first : first + run.stop - run.start]

    def chosen(self, items: Chosen) -> Iterator[tuple[slice, Block]]:
        starts = np.array([shard.start for shard in self.corpus.shards])
        ends = np.searchsorted(items, [*starts[1:], len(self)]).tolist()
        first = 0
        for number, last in enumerate(ends):
            if first < last:
                for run, block in self.shard(number).chosen(items[first:last] - starts[number]):
                    yield slice(first + run.start, first + run.stop), block
            first = last

    def shard(self, number: int) -> Items[Block]:
        """The items of one shard; those of another are closed."""
        if self._open is None or self._open[0] != number:
            self._open = None
            self._open = number, self.of_shard(self.corpus.open(number))
        return self._open[1]


def shard_blocks(corpus: StoredShards, side: str) -> ShardBlocks[FeatureBlock]:
    """A corpus of features, as ``stored_blocks`` reads each of its shards, with one buffer for all of them."""
    staging: list[Tensor] = []

    def of_shard(items: StoredItems) -> FeatureBlocks:
        blocks = stored_blocks(items, side)
        if staging and len(staging[0]) >= len(blocks.staging):
            blocks = replace(blocks, staging=staging[0])
        staging[:] = [blocks.staging]
        return blocks

    return ShardBlocks(corpus, of_shard)
