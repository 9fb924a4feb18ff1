"""The command about features that others made: `score`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.errors import warnings_as_lines
from crossret.cli.options import RegionLengths, Threads, WordLengths, in_a_directory, option, use_threads
from crossret.cli.score_options import ScoreOptions, with_score_options


@with_score_options
def score(
    regions: Annotated[
        Path, option("Region features (images, regions, dimensions), .npy.", exists=True, dir_okay=False)
    ],
    words: Annotated[Path, option("Word features (captions, words, dimensions), .npy.", exists=True, dir_okay=False)],
    output: Annotated[
        Path, option("Scores (images, captions) float32, .npy, to write.", dir_okay=False, callback=in_a_directory)
    ],
    region_lengths: RegionLengths = None,
    word_lengths: WordLengths = None,
    *,
    scoring: ScoreOptions,
    threads: Threads = None,
) -> None:
    """Score files of features.

    Every image with every caption, in bounded memory: features in, a matrix of
    scores out. Scores of features that are not finite in float32 are written as
    they are, NaN or infinite, with a warning that names the first such item.

    \b
    Examples:
      crossret score --regions regions.npy --words words.npy --word-lengths lengths.npy --output scores.npy
      crossret score --regions regions.npy --words words.npy --output scores.npy --sum-max --normalize
    """
    from crossret.report import progress_bar
    from crossret.score_files import score_files

    scorer = scoring.scorer()
    use_threads(threads)
    with warnings_as_lines(), progress_bar("scoring") as progress:
        n, m = score_files(
            scorer,
            regions,
            words,
            output,
            region_lengths=region_lengths,
            word_lengths=word_lengths,
            progress=progress,
        )
    typer.echo(f"{output}: scores of {n:,} images with {m:,} captions")
