"""Candidates by an index of nearest vectors, of faiss: one vector an item is compared, not all its rows."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.files.atomic import atomic_write
from crossret.files.directories import user_cache as user_cache
from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.models.encoded import Encoded
from crossret.progress import Progress
from crossret.search.fixed_dimensional import FixedDimensional, MeanVectors, Vectors
from crossret.search.matching import Side
from crossret.search.stored import StoredEncoded
from crossret_kernels.extending import release_pages

VECTORS = ("muvera", "mean")

_ROWS_BYTES = 64 * 2**20  # bytes of a corpus read at a time
_FLAT_BYTES = 2**31  # bytes of vectors up to which all are compared
_TRAINED = 64  # vectors a list is trained on
_PROBED = 0.2  # share of the lists


class NearestVectors:
    """An index of a corpus by one vector an item, which finds candidates of queries.

    Up to 2 GiB of vectors all are compared; of more those in the nearest fifth of lists (IVF), in 16 bits a number.

    Args:
        corpus: its rows.
        vectors: "muvera", whose inner products estimate MaxSim from the query, or "mean".
        normalize: whether to divide every row by its norm first.
        progress: called with (items, all of them) while they are read.

    Raises:
        ValueError: faiss is missing; ``vectors`` is neither. OSError: a file cannot be read.
    """

    def __init__(
        self,
        corpus: StoredShards | StoredItems,
        vectors: str = "muvera",
        *,
        normalize: bool = False,
        progress: Progress | None = None,
    ) -> None:
        check_faiss()
        if vectors not in VECTORS:
            raise ValueError(f"vectors must be one of {', '.join(VECTORS)}, not {vectors!r}")
        self.normalize = normalize
        self.vectors: Vectors = FixedDimensional(corpus.dim) if vectors == "muvera" else MeanVectors(corpus.dim)
        parts = _parts(corpus)
        settings = {**self.vectors.settings(), "normalize": normalize, "items": len(corpus), "index": 1}
        path = user_cache() / f"{_digest(parts, settings)}.faiss"
        self._index = _read(path, len(corpus), self.vectors.dim)
        if self._index is None:
            self._index = self._build(parts, len(corpus), progress)
            _write(path, self._index)

    def candidates(self, rows: Tensor, offsets: Tensor, count: int) -> NDArray[np.int64]:
        """(n, count) places of the items nearest to queries, -1 where there are fewer.

        Args:
            rows: (rows, D) floating point, of all queries one after another.
            offsets: (n + 1,) int64, where those of each begin and end.
            count: how many, at least 1.
        """
        vectors = self.vectors.of_queries(self._prepared(rows), offsets)
        found: NDArray[np.int64] = self._index.search(vectors.numpy(), min(count, self._index.ntotal))[1]
        return found

    def _prepared(self, rows: Tensor) -> Tensor:
        rows = rows.detach().float().cpu()
        return torch.nn.functional.normalize(rows, dim=-1) if self.normalize else rows

    def _build(self, parts: list[StoredItems], n: int, progress: Progress | None) -> Any:
        import faiss

        dim = self.vectors.dim
        if 4 * n * dim <= _FLAT_BYTES:
            index: Any = faiss.IndexFlatIP(dim)
        else:
            lists = int(4 * math.sqrt(n))
            index = faiss.index_factory(dim, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
            index.cp.seed, index.cp.niter = 0, 8
            index.nprobe = max(8, int(_PROBED * lists))
            sample = np.sort(np.random.default_rng(0).choice(n, min(n, lists * _TRAINED), replace=False))
            made = [self._of(rows, offsets) for rows, offsets in _read_items(parts, sample)]
            index.train(np.concatenate(made))
        done = 0
        for rows, offsets in _read_items(parts):
            encoded = self._of(rows, offsets)
            index.add(encoded)
            done += len(encoded)
            if progress is not None:
                progress(done, n)
        return index

    def _of(self, rows: Tensor, offsets: Tensor) -> NDArray[np.float32]:
        made: NDArray[np.float32] = self.vectors.of_documents(self._prepared(rows), offsets).numpy()
        return made


def nearest_candidates(
    queries: Side, corpus: Side, vectors: str, count: int, normalize: bool, progress: Progress | None = None
) -> NDArray[np.int64]:
    """Candidates of every query, (n_queries, count): items of a corpus on the disk by ``NearestVectors``.

    Args:
        queries: features, ``StoredItems``, or what a model encoded.
        corpus: features on the disk, or what a model encoded there, of which scores are made of rows.
        vectors, normalize, progress: as ``NearestVectors`` takes them.
        count: how many for each query.

    Raises:
        ValueError: the corpus is not on the disk, or its model's scores are not of rows; or as ``NearestVectors``.
        OSError: a file cannot be read.
    """
    if isinstance(corpus, StoredEncoded):
        if not corpus.manifest.config.scored_by_rows:
            kind = corpus.manifest.config.kind
            raise ValueError(f"{corpus.directory}: scores of {kind} are of more than rows, of which faiss knows")
        corpus = corpus.shards
    if not isinstance(corpus, (StoredShards, StoredItems)):
        raise ValueError("faiss indexes a corpus on the disk: features, or what `encode` or `index` wrote")
    index = NearestVectors(corpus, vectors, normalize=normalize, progress=progress)
    found = [index.candidates(rows, offsets, count) for rows, offsets in rows_of(queries)]
    return np.concatenate(found)


def rows_of(queries: Side) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of queries one after another and their offsets, a bounded part at a time."""
    if isinstance(queries, StoredEncoded):
        queries = queries.shards
    if isinstance(queries, (StoredItems, StoredShards)):
        yield from _read_items(_parts(queries))
        return
    assert isinstance(queries, Encoded)
    valid = torch.arange(queries.sequences.size(1), device=queries.lengths.device) < queries.lengths[:, None]
    yield queries.sequences[valid], torch.cat([torch.zeros(1, dtype=torch.int64), queries.lengths.cpu().cumsum(0)])


def check_faiss() -> None:
    """Raise a ValueError that names the extra where faiss is missing."""
    if importlib.util.find_spec("faiss") is None:
        raise ValueError("candidates by faiss need faiss-cpu: pip install 'crossret[faiss]'")


def _parts(corpus: StoredShards | StoredItems) -> list[StoredItems]:
    if isinstance(corpus, StoredItems):
        return [corpus]
    return [corpus.open(number) for number in range(len(corpus.shards))]


def _read_items(parts: list[StoredItems], chosen: NDArray[np.int64] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of items one after another and their offsets, a bounded part at a time: all, or those of some places."""
    first = 0
    for items in parts:
        ends, starts = _ends(items)
        own = (
            np.arange(len(items))
            if chosen is None
            else chosen[(chosen >= first) & (chosen < first + len(items))] - first
        )
        lengths = (ends - starts)[own]
        step = max(1, _ROWS_BYTES // (4 * items.dim * int((ends - starts).max())))
        flat = items.values.reshape(-1, items.dim)
        for start in range(0, len(own), step):
            some = own[start : start + step]
            if len(some) == some[-1] - some[0] + 1 and items.offsets is not None:
                rows = np.array(flat[starts[some[0]] : ends[some[-1]]], np.float32)
            else:
                rows = np.concatenate([np.asarray(flat[starts[item] : ends[item]], np.float32) for item in some])
            release_pages(items.values)
            offsets = np.concatenate([[0], lengths[start : start + step].cumsum()])
            yield torch.from_numpy(rows), torch.from_numpy(offsets.astype(np.int64))
        first += len(items)


def _ends(items: StoredItems) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the rows of every item end and begin, of all that are stored."""
    if items.offsets is not None:
        return items.offsets[1:], items.offsets[:-1]
    starts = np.arange(len(items)) * items.values.shape[1]
    return starts + (items.values.shape[1] if items.lengths is None else items.lengths), starts


def _digest(parts: list[StoredItems], settings: dict[str, Any]) -> str:
    """Tells a corpus and what is made of it from others: files by their place, size and time of change."""
    files = []
    for items in parts:
        for path in sorted(items.path.parent.glob("*.npy")):
            status = os.stat(path)
            files.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps([files, settings], sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path, n: int, dim: int) -> Any:
    """An index that was kept; None where there is none, or not one of this size."""
    import faiss

    if not path.is_file():
        return None
    try:
        index = faiss.deserialize_index(np.fromfile(path, np.uint8))
    except RuntimeError:  # another version of faiss wrote it, or it is cut
        return None
    return index if (index.ntotal, index.d) == (n, dim) else None


def _write(path: Path, index: Any) -> None:
    """Keep an index in the user's cache; where that cannot be written it is made again another time."""
    import faiss

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(faiss.serialize_index(index).tobytes())
    except OSError:
        return
