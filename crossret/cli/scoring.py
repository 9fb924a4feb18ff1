"""The command about features that others made: `score`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossret.cli.options import (
    Direction,
    Pooling,
    RawFeatureNorm,
    Threads,
    given,
    in_a_directory,
    option,
    refuse_unused,
    use_threads,
)

if TYPE_CHECKING:
    from crossret.score_files import Scorer


RegionLengths = Annotated[
    Path | None, option("Regions of each image, .npy of integers; by default all.", exists=True, dir_okay=False)
]
WordLengths = Annotated[
    Path | None, option("Words of each caption, .npy of integers; by default all.", exists=True, dir_okay=False)
]
ScoreDirection = Annotated[
    Direction | None, option("t2i: words attend to regions; i2t: regions to words. By default t2i.")
]
ScoreRawFeatureNorm = Annotated[
    RawFeatureNorm | None, option("Normalisation of similarities; by default clipped_l2norm.")
]
ScoreClipSlope = Annotated[float | None, option("Slope of the clip below zero; by default 0.1, the paper's is 0.")]
ScoreLambdaSoftmax = Annotated[
    float | None, option("Inverse temperature of the attention; by default 9 (the paper's i2t: 4).")
]
ScorePooling = Annotated[Pooling | None, option("How relevances become a score; by default avg.")]
ScoreLambdaLse = Annotated[float | None, option("Sharpness of LSE pooling; by default 6.")]
Normalize = Annotated[bool, option("L2-normalise all features first.", "--normalize")]
SumMax = Annotated[bool, option("Instead of attention, sum each query's largest similarity.", "--sum-max")]


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
    direction: ScoreDirection = None,
    raw_feature_norm: ScoreRawFeatureNorm = None,
    clip_slope: ScoreClipSlope = None,
    lambda_softmax: ScoreLambdaSoftmax = None,
    pooling: ScorePooling = None,
    lambda_lse: ScoreLambdaLse = None,
    normalize: Normalize = False,
    sum_max: SumMax = False,
    threads: Threads = None,
) -> None:
    """Score files of features.

    Every image with every caption, in bounded memory: features in, a matrix of
    scores out.

    \b
    Examples:
      crossret score --regions regions.npy --words words.npy --word-lengths lengths.npy --output scores.npy
      crossret score --regions regions.npy --words words.npy --output scores.npy --sum-max --normalize
    """
    from crossret.report import progress_bar
    from crossret.score_files import score_files

    chosen = {
        "raw_feature_norm": raw_feature_norm,
        "clip_slope": clip_slope,
        "lambda_softmax": lambda_softmax,
        "pooling": pooling,
        "lambda_lse": lambda_lse,
    }
    scorer = scorer_of(direction or "t2i", chosen, normalize=normalize, sum_max=sum_max)
    use_threads(threads)
    with progress_bar("scoring") as progress:
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


def scorer_of(direction: Direction, chosen: dict[str, Any], *, normalize: bool, sum_max: bool) -> Scorer:
    """The kernels' score that these options ask for.

    Raises a ValueError where one is out of range or makes no difference.
    """
    from functools import partial

    from crossret.models.scan import ScanConfig
    from crossret_kernels import maxsim_scores, scan_scores

    # Options mean what they mean to a model, and have the same ranges; its sizes play no part.
    cross_attention = f"sum_max_{direction}" if sum_max else direction
    config = ScanConfig.from_dict(
        {"image_dim": 1, "vocabulary_size": 1, "cross_attention": cross_attention, **given(chosen)}
    )
    refuse_unused(config, chosen)
    if sum_max:
        return partial(maxsim_scores, direction=direction, normalize=normalize)
    return partial(scan_scores, **config.attention_options(direction), normalize=normalize)
