"""Region or word features on the disk: one padded .npy file, or a directory that holds a corpus of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossret.files.arrays import map_array

FEATURE_DTYPES = ("<f2", "<f4", "<f8")
LENGTH_DTYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")

FEATURES, LENGTHS = "features.npy", "lengths.npy"
VALUES, OFFSETS = "values.npy", "offsets.npy"


@dataclass(frozen=True)
class StoredItems:
    """Memory-mapped features of some items, validated.

    Attributes:
        path: the file that holds the features.
        values: (n, L, D) padded, or (rows, D) packed; float16, float32 or float64.
        lengths: (n,) int64, rows of each padded item, each in 1..L; None where all have L, and for packed ones.
        offsets: (n + 1,) int64, where the rows of each packed item begin and end; None for padded ones.
    """

    path: Path
    values: NDArray[np.floating]
    lengths: NDArray[np.int64] | None = None
    offsets: NDArray[np.int64] | None = None

    @property
    def features(self) -> Any:
        """Features as the scores of ``crossret_kernels`` take them: the array, or (values, cu_seqlens)."""
        return self.values if self.offsets is None else (self.values, self.offsets)

    @property
    def dim(self) -> int:
        """D."""
        return self.values.shape[-1]

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def rows(self, item: int) -> NDArray[np.floating]:
        """The features of one item, as they are stored."""
        if self.offsets is not None:
            return self.values[self.offsets[item] : self.offsets[item + 1]]
        return self.values[item][: None if self.lengths is None else self.lengths[item]]

    def counts(self) -> NDArray[np.int64]:
        """(n,) the rows of each item."""
        if self.offsets is not None:
            return np.diff(self.offsets)
        return np.full(len(self), self.values.shape[1]) if self.lengths is None else self.lengths

    def is_finite(self, item: int) -> bool:
        """Whether float32 can hold all features of one item."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(self.rows(item).astype(np.float32)).all())

    @staticmethod
    def of_path(path: Path, lengths: Path | None = None) -> StoredItems:
        """Items at ``path``, as ``of_directory`` reads a directory and ``of_file`` a file and its lengths.

        Raises:
            OSError, ValueError: as these, or there are lengths beside a directory.
        """
        if not path.is_dir():
            return StoredItems.of_file(path, lengths)
        if lengths is not None:
            raise ValueError(f"{lengths}: lengths are for a file of features, but {path} is a directory with its own")
        return StoredItems.of_directory(path)

    @staticmethod
    def of_file(path: Path, lengths: Path | None = None) -> StoredItems:
        """Padded features (n, L, D) and, where items are not all as long, a file of (n,) integers.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not such an array; names the file and the item.
        """
        values = map_array(path, ndim=3, dtypes=FEATURE_DTYPES)
        n, longest = values.shape[:2]
        if lengths is None:
            return StoredItems(path, values)
        return StoredItems(path, values, lengths=read_lengths(lengths, path, n, longest))

    @staticmethod
    def of_directory(directory: Path) -> StoredItems:
        """A corpus: ``features.npy`` (n, L, D) and perhaps ``lengths.npy`` (n,), or ``values.npy`` (rows, D) and
        ``offsets.npy`` (n + 1,), of which item i has the rows offsets[i] to offsets[i + 1].

        Raises:
            OSError: the files are missing or cannot be read.
            ValueError: a file is not such an array, or both forms are there; names the file and the item.
        """
        padded, packed = (directory / FEATURES).exists(), (directory / VALUES).exists()
        if padded and packed:
            raise ValueError(f"{directory}: holds both {FEATURES} and {VALUES}; a corpus is one of them")
        if not padded and not packed:
            raise FileNotFoundError(f"{directory}: no {FEATURES}, and no {VALUES} with {OFFSETS}")
        if padded:
            lengths = directory / LENGTHS
            return StoredItems.of_file(directory / FEATURES, lengths if lengths.exists() else None)
        path = directory / OFFSETS
        values = map_array(directory / VALUES, ndim=2, dtypes=FEATURE_DTYPES)
        stored = map_array(path, ndim=1, dtypes=LENGTH_DTYPES)
        outside = np.flatnonzero((stored < 0) | (stored > len(values)))
        if len(outside):
            place = outside[0]
            raise ValueError(
                f"{path}: offset {place} is {stored[place]}, expected 0 to the {len(values)} rows of {VALUES}"
            )
        offsets = stored.astype(np.int64)
        if offsets[0] != 0 or offsets[-1] != len(values) or len(offsets) < 2:
            raise ValueError(
                f"{path}: must go from 0 to the {len(values)} rows of {VALUES}, "
                f"but goes from {offsets[0]} to {offsets[-1]}"
            )
        empty = np.flatnonzero(np.diff(offsets) < 1)
        if len(empty):
            item = empty[0]
            raise ValueError(f"{path}: item {item} has rows {offsets[item]} to {offsets[item + 1]}: needs at least one")
        return StoredItems(directory / VALUES, values, offsets=offsets)


def read_lengths(path: Path, of: object, n: int, longest: int) -> NDArray[np.int64]:
    """(n,) lengths of the items of another file, in memory.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no array of n integers, or one is not in 1..longest; names the file and the item.
    """
    sizes = map_array(path, ndim=1, dtypes=LENGTH_DTYPES)
    if sizes.shape != (n,):
        raise ValueError(f"{path}: {of} has {n} items, so expected shape ({n},), got {sizes.shape}")
    wrong = np.flatnonzero((sizes < 1) | (sizes > longest))
    if len(wrong):
        raise ValueError(f"{path}: item {wrong[0]} has length {sizes[wrong[0]]}, expected 1 to {longest}")
    return sizes.astype(np.int64)


def why_not_finite(*scored: tuple[StoredItems, int]) -> str:
    """Reason for a score that is no finite number: names the file and the item of the features that made it so.

    Args:
        scored: each side of the score, as items and the index of one of them.
    """
    for items, index in scored:
        if not items.is_finite(index):
            return f"{items.path}: item {index} has features that are not finite in float32"
    places = " with ".join(f"item {index} of {items.path}" for items, index in scored)
    return f"{places}: the score is beyond float32, the features are too large"


def check_output(output: Path, *inputs: Path | None) -> None:
    """Raise a ValueError where a file to write is one of those to read, or of those in a directory to read."""
    if not output.exists():
        return
    given = [path for path in inputs if path is not None]
    for path in (file for place in given for file in (place.rglob("*") if place.is_dir() else [place])):
        if path.exists() and path.samefile(output):
            raise ValueError(f"{output}: what is written would take the place of this input; write it elsewhere")
