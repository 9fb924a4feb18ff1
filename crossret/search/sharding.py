"""A corpus of features cut into shards, in bounded memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.files.arrays import write_rows
from crossret.files.directories import new_directory
from crossret.files.features import FEATURES, LENGTHS, OFFSETS, VALUES, StoredItems
from crossret.files.json import write_json
from crossret.files.shards import SHARDS
from crossret.progress import Progress
from crossret.search.stored import StoredEncoded, is_encoded, stored_vectors, vectors_file
from crossret_kernels.extending import BLOCK_BYTES, release_pages


def cut_corpus(corpus: Path, output: Path, *, shards: int, progress: Progress | None = None) -> list[int]:
    """Write a corpus as ``StoredShards`` reads it: successive items together, about as many rows in each shard.

    Args:
        corpus: a directory of features, as ``StoredItems.of_directory`` reads it, or what a model encoded, of either
            side, with all that the model needs; what else is in it stays behind.
        output: the directory to write, absent or empty; it is there when it is whole.
        shards: how many.
        progress: called with (items written, all of them).

    Returns:
        How many items each shard has.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: shards is less than 1, or there are fewer items; or as ``StoredItems.of_directory``.
    """
    if shards < 1:
        raise ValueError(f"shards must be at least 1, not {shards}")
    with new_directory(output, corpus) as directory:
        manifest = StoredEncoded.of_directory(corpus).manifest if is_encoded(corpus) else None
        items = StoredItems.of_directory(corpus)
        vectors = stored_vectors(items, manifest) if manifest is not None else {}
        if len(items) < shards:
            raise ValueError(f"{items.path}: {len(items)} items are too few for {shards} shards")
        cuts = _cuts(items, shards)
        sizes = np.diff(cuts).tolist()
        for number, (first, last) in enumerate(pairwise(cuts)):
            (directory / _name(number)).mkdir()
            _write(items, first, last, directory / _name(number))
            for name, array in vectors.items():
                _copy(array, first, last, directory / _name(number) / vectors_file(name))
            if progress is not None:
                progress(last, len(items))
        entries = [{"path": _name(number), "items": size} for number, size in enumerate(sizes)]
        write_json(directory / SHARDS, {"dim": items.dim, "shards": entries})
        if manifest is not None:
            manifest.write(directory)
    return sizes


def _name(shard: int) -> str:
    return f"{shard:05}"


def _cuts(items: StoredItems, shards: int) -> list[int]:
    """Where shards begin and end, each of at least one item."""
    n = len(items)
    rows = np.arange(n + 1) if items.offsets is None else items.offsets
    wanted = rows[-1] * np.arange(1, shards) // shards
    cuts = [0, *np.searchsorted(rows, wanted).tolist(), n]
    for number in range(1, shards):  # one item at least in each, also of those that follow
        cuts[number] = min(max(cuts[number], cuts[number - 1] + 1), n - shards + number)
    return cuts


def _write(items: StoredItems, first: int, last: int, directory: Path) -> None:
    if items.offsets is not None:
        offsets = items.offsets[first : last + 1]
        _copy(items.values, int(offsets[0]), int(offsets[-1]), directory / VALUES)
        _save(offsets - offsets[0], directory / OFFSETS)
        return
    _copy(items.values, first, last, directory / FEATURES)
    if items.lengths is not None:
        _save(items.lengths[first:last], directory / LENGTHS)


def _copy(values: NDArray[np.generic], first: int, last: int, path: Path) -> None:
    step = max(1, BLOCK_BYTES // values[0].nbytes)
    with write_rows(path, values.shape[1:], values.dtype.str) as write:
        for start in range(first, last, step):
            write(values[start : min(start + step, last)])
            release_pages(values)


def _save(numbers: NDArray[np.int64], path: Path) -> None:
    with write_rows(path, (), "<i8") as write:
        write(numbers)
