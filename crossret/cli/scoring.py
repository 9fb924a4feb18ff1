"""The command about features that others made: `score`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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


def score(
    regions: Annotated[
        Path, option("Region features (images, regions, dimensions), .npy.", exists=True, dir_okay=False)
    ],
    words: Annotated[Path, option("Word features (captions, words, dimensions), .npy.", exists=True, dir_okay=False)],
    output: Annotated[
        Path, option("Scores (images, captions) float32, .npy, to write.", dir_okay=False, callback=in_a_directory)
    ],
    region_lengths: Annotated[
        Path | None, option("Regions of each image, .npy of integers; by default all.", exists=True, dir_okay=False)
    ] = None,
    word_lengths: Annotated[
        Path | None, option("Words of each caption, .npy of integers; by default all.", exists=True, dir_okay=False)
    ] = None,
    direction: Annotated[Direction, option("t2i: words attend to regions; i2t: regions to words.")] = "t2i",
    raw_feature_norm: Annotated[
        RawFeatureNorm | None, option("Normalisation of similarities; by default clipped_l2norm.")
    ] = None,
    clip_slope: Annotated[
        float | None, option("Slope of the clip below zero; by default 0.1, the paper's is 0.")
    ] = None,
    lambda_softmax: Annotated[
        float | None, option("Inverse temperature of the attention; by default 9 (the paper's i2t: 4).")
    ] = None,
    pooling: Annotated[Pooling | None, option("How relevances become a score; by default avg.")] = None,
    lambda_lse: Annotated[float | None, option("Sharpness of LSE pooling; by default 6.")] = None,
    normalize: Annotated[bool, option("L2-normalise all features first.", "--normalize")] = False,
    sum_max: Annotated[bool, option("Instead of attention, sum each query's largest similarity.", "--sum-max")] = False,
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
    from functools import partial

    from crossret.models.scan import ScanConfig
    from crossret.report import progress_bar
    from crossret.score_files import score_files
    from crossret_kernels import maxsim_scores, scan_scores

    chosen = {
        "raw_feature_norm": raw_feature_norm,
        "clip_slope": clip_slope,
        "lambda_softmax": lambda_softmax,
        "pooling": pooling,
        "lambda_lse": lambda_lse,
    }
    # Options mean what they mean to a model, and have the same ranges; its sizes play no part.
    cross_attention = f"sum_max_{direction}" if sum_max else direction
    config = ScanConfig.from_dict(
        {"image_dim": 1, "vocabulary_size": 1, "cross_attention": cross_attention, **given(chosen)}
    )
    refuse_unused(config, chosen)
    use_threads(threads)
    scorer: Scorer
    if sum_max:
        scorer = partial(maxsim_scores, direction=direction, normalize=normalize)
    else:
        scorer = partial(scan_scores, **config.attention_options(direction), normalize=normalize)
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
