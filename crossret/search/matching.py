"""Scores of queries with a corpus, whatever they are made of: kernels score features, a model what it encoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

from torch import Tensor

from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher, evaluating
from crossret.search.blocks import (
    REGIONS,
    Scorer,
    feature_blocks,
    plain_features,
    shard_blocks,
    sides,
    stored_blocks,
)
from crossret.search.items import EncodedCaptions, EncodedImages, KeptItems
from crossret.search.manifest import CAPTIONS, IMAGES
from crossret.search.stored import StoredEncoded
from crossret_kernels.extending import FeatureBlock, Features, Items, block_scores

FeatureSide: TypeAlias = "StoredItems | StoredShards | Features"
EncodedSide: TypeAlias = "StoredEncoded | EncodedImages | EncodedCaptions | Encoded"
Side: TypeAlias = "FeatureSide | EncodedSide"

_ENCODED = (StoredEncoded, EncodedImages, EncodedCaptions, Encoded)


class Score(Protocol):
    """Scores (q, c) of a block of queries with a block of the corpus, or (P,) of pairs (P, 2) int64 of their places."""

    def __call__(self, queries: Any, items: Any, pairs: Tensor | None = None, /) -> Tensor: ...


@contextmanager
def matched(
    scorer: Scorer | Matcher, queries: Side, corpus: Side, query: str
) -> Iterator[tuple[Score, Items[Any], Items[Any]]]:
    """Scoring function, and queries and corpus in the blocks that it takes, while the block runs.

    Args:
        scorer: of features, for instance ``crossret_kernels.scan_scores`` with its options bound; or a model, of what
            it encoded: in evaluation mode meanwhile.
        queries, corpus: of a scorer, features on the disk or in memory, scored in float32; of a model, what it encoded,
            on the disk or in memory, or images and captions that are encoded as they are scored.
        query: kind of the queries, "caption" or "image"; the corpus is the other.

    Raises:
        OSError: a file is missing or cannot be read.
        TypeError: the scorer does not score such a side.
        ValueError: the two sides have other dimensions, what is on the disk is of another model or the other side, or
            query is out of range; names it.
    """
    of_queries, of_corpus = sides(query)
    named = {"queries": queries, "corpus": corpus}
    if is_model(scorer):
        for name, side in named.items():
            if not isinstance(side, _ENCODED):
                raise TypeError(f"{name}: {scorer.kind} scores what it encoded, not {type(side).__name__}")
        with evaluating(scorer):
            yield _by_model(scorer, query), _encoded(scorer, queries, of_queries), _encoded(scorer, corpus, of_corpus)
        return
    for name, side in named.items():
        if isinstance(side, _ENCODED):
            raise TypeError(f"{name}: what a model encoded is scored by that model, not by {scorer!r}")
    if isinstance(queries, (StoredItems, StoredShards)) and isinstance(corpus, (StoredItems, StoredShards)):
        check_dimensions(queries, corpus)
    kernel = cast(Scorer, scorer)
    yield _by_kernel(kernel, query), _features(queries, of_queries), _features(corpus, of_corpus)


def check_dimensions(first: StoredItems | StoredShards, second: StoredItems | StoredShards) -> None:
    """Raise a ValueError that names both files where their features cannot be compared."""
    if first.dim != second.dim:
        raise ValueError(f"{first.path}: {first.dim} dimensions, but {second.path} has {second.dim}")


def is_model(scorer: Scorer | Matcher) -> TypeGuard[Matcher]:
    """Whether this scores what it encodes itself."""
    return hasattr(scorer, "encode_images") and hasattr(scorer, "encode_captions")


def _by_kernel(scorer: Scorer, query: str) -> Score:
    of_all = block_scores(scorer, query)

    def score(queries: FeatureBlock, items: FeatureBlock, pairs: Tensor | None = None, /) -> Tensor:
        if pairs is None:
            return of_all(queries, items)
        v, e = (queries, items) if query == "image" else (items, queries)
        return scorer(v[0], e[0], v[1], e[1], pairs=pairs if query == "image" else pairs.flip(1))

    return score


def _by_model(model: Matcher, query: str) -> Score:
    def score(queries: Encoded, items: Encoded, pairs: Tensor | None = None, /) -> Tensor:
        if pairs is not None:
            pairs = pairs.to(queries.sequences.device)
        if query == "image":
            return model.score(queries, items, pairs)
        return model.score(items, queries).T if pairs is None else model.score(items, queries, pairs.flip(1))

    return score


def _features(side: Any, row: str) -> Items[FeatureBlock]:
    if isinstance(side, StoredShards):
        return shard_blocks(side, row)
    if isinstance(side, StoredItems):
        return stored_blocks(side, row)
    return feature_blocks(plain_features(side), None, row)


def _encoded(model: Matcher, side: Any, row: str) -> Items[Encoded]:
    device = next(model.parameters()).device
    if isinstance(side, StoredEncoded):
        wanted = IMAGES if row == REGIONS else CAPTIONS
        if side.manifest.side != wanted:
            raise ValueError(f"{side.directory}: holds encoded {side.manifest.side}, not {wanted}")
        side.check(model)
        return side.items(device)
    if isinstance(side, Encoded):
        return KeptItems(side.to(device))
    items: Items[Encoded] = side
    return items
