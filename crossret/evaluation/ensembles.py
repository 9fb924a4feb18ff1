"""Ensembles: the scores that several models, or files, give the same images and captions, averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.files.arrays import map_array
from crossret.files.features import FEATURE_DTYPES
from crossret_kernels.extending import release_pages

_BLOCK_SCORES = 4 * 2**20  # read at a time: 16 MiB as float32

ScoreMatrix = Callable[[], NDArray[np.float32]]
"""Makes a member's scores, (n_images, n_captions), when they are wanted; they are the caller's to change."""


def average_scores(members: Sequence[ScoreMatrix]) -> NDArray[np.float32]:
    """The mean of the members' scores, in float32; at most two matrices are in memory at a time.

    SCAN's ensemble: "combining t-i and i-t models by averaging their predicted similarity scores" (Lee et al., ECCV
    2018, Section 4.2 and the last rows of Tables 1 and 2). As there, no score is scaled before: of models whose scores
    have other ranges, that with the widest counts most.

    Raises:
        ValueError: there are no members, one's scores have another shape than the first's (names it by its place), or
            a mean is no finite number.
    """
    if not members:
        raise ValueError("members: an ensemble needs at least one")
    first, *others = members
    total = first()
    for place, member in enumerate(others, start=1):
        _add(total, member(), place)
    with np.errstate(over="ignore"):
        total /= len(members)
    for rows in _row_blocks(total):
        if not np.isfinite(total[rows]).all():
            raise ValueError("the sum of the members' scores is not finite in float32")
    return total


@dataclass(frozen=True)
class StoredScores:
    """A matrix of finite scores in a file, which stays on the disk until it is called for: a ``ScoreMatrix``."""

    values: NDArray[np.floating]

    @staticmethod
    def of_file(path: Path, shape: tuple[int, int]) -> StoredScores:
        """Scores as `score` and `evaluate --scores` write them, (n_images, n_captions), of any floating point.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no array of this shape, or a score is not finite in float32; names the file and the place.
        """
        values = map_array(path, ndim=2, dtypes=FEATURE_DTYPES)
        if values.shape != shape:
            raise ValueError(
                f"{path}: {shape[0]} images and {shape[1]} captions have scores of shape {shape}, got {values.shape}"
            )
        stored = StoredScores(values)
        for rows, block in stored._blocks():
            finite = np.isfinite(block)
            if not finite.all():
                row, column = (int(place) for place in np.unravel_index(finite.argmin(), finite.shape))
                score = values[rows.start + row, column]
                raise ValueError(
                    f"{path}: the score in row {rows.start + row}, column {column} is {score}, not finite in float32"
                )
        return stored

    def __call__(self) -> NDArray[np.float32]:
        """The scores in memory."""
        scores = np.empty(self.values.shape, np.float32)
        for rows, block in self._blocks():
            scores[rows] = block
        return scores

    def _blocks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        for rows in _row_blocks(self.values):
            with np.errstate(over="ignore", invalid="ignore"):
                block = self.values[rows].astype(np.float32)
            release_pages(self.values)
            yield rows, block


def _add(total: NDArray[np.float32], scores: NDArray[np.float32], place: int) -> None:
    if scores.shape != total.shape:
        raise ValueError(f"members[{place}] has scores of shape {scores.shape}, members[0] of {total.shape}")
    with np.errstate(over="ignore"):
        total += scores


def _row_blocks(scores: NDArray[np.floating]) -> Iterator[slice]:
    step = max(1, _BLOCK_SCORES // scores.shape[1])
    return (slice(start, min(start + step, len(scores))) for start in range(0, len(scores), step))
