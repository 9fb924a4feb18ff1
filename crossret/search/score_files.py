"""Files of region and word features in, a file of scores out: any number of items in bounded memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from crossret.files.arrays import write_blocks
from crossret.files.features import StoredItems, check_output, why_not_finite
from crossret.models.protocol import Matcher
from crossret.progress import Progress
from crossret.search.blocks import Scorer
from crossret.search.matching import Side, check_dimensions, matched
from crossret.search.stored import WHY_OF_MODEL, StoredEncoded

# Scores of a block: 8 MiB.
BLOCK_SCORES = 2 * 2**20


def score_files(
    scorer: Scorer,
    regions: Path,
    words: Path,
    output: Path,
    *,
    region_lengths: Path | None = None,
    word_lengths: Path | None = None,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Score every image with every caption and write the (n, m) float32 matrix, image-major, atomically.

    Features that are not finite in float32 make scores NaN or infinite. These are written as they are, so that one bad
    item does not cost the scores of all others, and a warning names the first of them.

    All three are memory maps, of which only blocks are in memory: a bounded number of bytes, whatever n and m.

    Args:
        scorer: for instance ``crossret_kernels.scan_scores`` with its options bound.
        regions: .npy file (n, R, D), float16, float32 or float64 (scored in float32), or a directory of features as
            ``StoredItems.of_directory`` reads it.
        words: .npy file (m, W, D) or a directory, likewise.
        output: the .npy file to write.
        region_lengths: .npy file (n,) of integers, 1 to R: the regions of each image. None: all R.
        word_lengths: .npy file (m,) likewise, 1 to W.
        progress: called with (images scored, n) after every block of images.

    Returns:
        (n, m).

    Raises:
        OSError: a file cannot be read or written, or the disk has no room for the scores.
        ValueError: a file is not such an array, the arrays do not agree, or ``output`` is one of them; names the file
            and the place.
    """
    check_output(output, regions, words, region_lengths, word_lengths)
    images, captions = StoredItems.of_path(regions, region_lengths), StoredItems.of_path(words, word_lengths)
    check_dimensions(images, captions)

    def why(image: int, caption: int) -> str:
        return why_not_finite((images, image), (captions, caption))

    return _write(scorer, images, captions, output, why, progress)


def score_encoded(
    model: Matcher,
    images: StoredEncoded,
    captions: StoredEncoded,
    output: Path,
    *,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write scores of what a model encoded, by the model itself, as ``score_files``.

    Raises:
        OSError: as ``score_files``.
        ValueError: what is on the disk is of another model or the other side, or ``output`` is one of its files; names
            it.
    """
    check_output(output, images.directory, captions.directory)

    def why(image: int, caption: int) -> str:
        return images.why_not_finite(image) or captions.why_not_finite(caption) or WHY_OF_MODEL

    return _write(model, images, captions, output, why, progress)


def _write(
    scorer: Scorer | Matcher,
    images: Side,
    captions: Side,
    output: Path,
    why: Callable[[int, int], str],
    progress: Progress | None,
) -> tuple[int, int]:
    wrong = None
    with matched(scorer, images, captions, "image") as (score, rows_of, columns_of):
        n, m = len(rows_of), len(columns_of)
        row_runs = rows_of.runs(math.isqrt(BLOCK_SCORES))
        column_runs = columns_of.runs(BLOCK_SCORES // max(run.stop - run.start for run in row_runs))
        with write_blocks(output, (n, m)) as write, torch.no_grad():
            for rows in row_runs:
                block = rows_of[rows]
                for columns in column_runs:
                    scores = score(block, columns_of[columns]).float().cpu()
                    write(rows, columns, scores.numpy())
                    if wrong is None and not scores.isfinite().all():
                        row, column = (~scores.isfinite()).nonzero()[0].tolist()
                        wrong = rows.start + row, columns.start + column
                if progress is not None:
                    progress(rows.stop, n)
    if wrong is not None:
        warn_not_finite(output, why(*wrong))
    return n, m


def warn_not_finite(output: Path, why: str) -> None:
    """Warn that a score in ``output`` is no finite number, and say why."""
    warnings.warn(f"{output}: not all scores are finite: {why}", stacklevel=3)
