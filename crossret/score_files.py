"""Files of region and word features in, a file of scores out: any number of items in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.array_files import map_array
from crossret.files import atomic_write

FEATURE_DTYPES = ("<f2", "<f4", "<f8")
LENGTH_DTYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")

# What scores a block: regions (n, R, D), words (m, W, D), region lengths (n,), word lengths (m,) -> (n, m).
Scorer = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def score_files(
    scorer: Scorer,
    regions: Path,
    words: Path,
    output: Path,
    *,
    region_lengths: Path | None = None,
    word_lengths: Path | None = None,
    block: int = 512,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Score every image with every caption and write the (n, m) float32 matrix, image-major, atomically.

    Args:
        scorer: for instance ``crossret_kernels.scan_scores`` with its options bound.
        regions: .npy file (n, R, D), float16, float32 or float64 (scored in float32); memory-mapped.
        words: .npy file (m, W, D), likewise.
        output: the .npy file to write.
        region_lengths: .npy file (n,) of integers, 1 to R: the regions of each image. None: all R.
        word_lengths: .npy file (m,) likewise, 1 to W.
        block: images and captions scored at a time.
        progress: called with (images scored, n) after every block.

    Returns:
        (n, m).

    Raises:
        OSError: a file cannot be read or written.
        ValueError: a file is not such an array, the arrays do not agree, or ``output`` is one of them; names the file
            and the place.
    """
    for path in (regions, words, region_lengths, word_lengths):
        if path is not None and output.exists() and path.exists() and path.samefile(output):
            raise ValueError(f"{output}: the scores would take the place of this input; write them elsewhere")
    region_values = map_array(regions, ndim=3, dtypes=FEATURE_DTYPES)
    word_values = map_array(words, ndim=3, dtypes=FEATURE_DTYPES)
    if region_values.shape[2] != word_values.shape[2]:
        raise ValueError(
            f"{words}: words have {word_values.shape[2]} dimensions, "
            f"but the regions of {regions} have {region_values.shape[2]}"
        )
    n_regions = _read_lengths(region_lengths, region_values, regions)
    n_words = _read_lengths(word_lengths, word_values, words)
    n, m = len(region_values), len(word_values)
    with atomic_write(output) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (n, m)})
        for rows in _blocks(n, block):
            image_block, image_lengths = _tensor(region_values[rows]), n_regions[rows]
            scores = [
                scorer(image_block, _tensor(word_values[columns]), image_lengths, n_words[columns])
                for columns in _blocks(m, block)
            ]
            file.write(torch.cat(scores, dim=1).numpy().astype("<f4", copy=False).tobytes())
            if progress is not None:
                progress(rows.stop, n)
    return n, m


def _read_lengths(path: Path | None, features: NDArray[np.floating], features_path: Path) -> Tensor:
    n, longest = features.shape[:2]
    if path is None:
        return torch.full((n,), longest, dtype=torch.int64)
    lengths = map_array(path, ndim=1, dtypes=LENGTH_DTYPES)
    if lengths.shape != (n,):
        raise ValueError(f"{path}: {features_path} has {n} items, so expected shape ({n},), got {lengths.shape}")
    wrong = np.flatnonzero((lengths < 1) | (lengths > longest))
    if len(wrong):
        raise ValueError(f"{path}: item {wrong[0]} has length {lengths[wrong[0]]}, expected 1 to {longest}")
    return torch.from_numpy(lengths.astype(np.int64))


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _tensor(values: NDArray[np.floating]) -> Tensor:
    """A float32 copy of memory-mapped features: the map is read-only, which a tensor is not."""
    return torch.from_numpy(values.astype(np.float32))
