"""The command that scores everything with everything: `score`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossret.cli.errors import refuse, warnings_as_lines
from crossret.cli.options import (
    RUN,
    Device,
    RegionLengths,
    Threads,
    WordLengths,
    file_to_write,
    load_model_of,
    load_trained,
    option,
    use_threads,
)
from crossret.cli.output import say
from crossret.cli.score_options import ScoreOptions, with_score_options

if TYPE_CHECKING:
    from crossret.search.blocks import Scorer


@with_score_options
def score(
    run: Annotated[Path | None, typer.Argument(exists=True, file_okay=False, help=RUN)] = None,
    data: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="Data in the precomputed-feature format, or what `encode` made of it.",
        ),
    ] = None,
    split: Annotated[str | None, option("Which SPLIT_ims.npy and SPLIT_caps.txt; by default test.")] = None,
    regions: Annotated[
        Path | None,
        option("Region features (images, regions, dimensions), .npy, or what `encode` wrote.", exists=True),
    ] = None,
    words: Annotated[
        Path | None,
        option("Word features (captions, words, dimensions), .npy, or what `encode` wrote.", exists=True),
    ] = None,
    region_lengths: RegionLengths = None,
    word_lengths: WordLengths = None,
    *,
    output: Annotated[Path, file_to_write("Scores (images, captions) float32, .npy, to write.")],
    scoring: ScoreOptions,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Score every image with every caption.

    With a model: a split of data that it encodes, or what it encoded before.
    Without: files of features; the other options say how they are scored. Files of
    either kind take bounded memory. Scores of features that are not finite in float32
    are written as they are, NaN or infinite, with a warning that names the first.

    \b
    Examples:
      crossret score runs/mhsan scenes --split test --output scores.npy
      crossret score runs/first embeddings --output scores.npy
      crossret score --regions regions.npy --words words.npy --word-lengths lengths.npy --output scores.npy
      crossret score --regions regions.npy --words words.npy --output scores.npy --sum-max --normalize
    """
    use_threads(threads)
    lengths = {"region_lengths": region_lengths, "word_lengths": word_lengths}
    with warnings_as_lines():
        if run is not None:
            refuse({**lengths, **asdict(scoring)}, "is for files of features, without RUN")
            n, m = _score_by_model(run, data, regions, words, split, device, output)
        else:
            refuse({"split": split, "device": device}, "needs RUN, a model")
            if regions is None or words is None:
                raise ValueError("--regions and --words are needed, or RUN and DATA")
            n, m = _score_features(scoring.scorer(), regions, words, region_lengths, word_lengths, output)
    say(f"{output}: scores of {n:,} images with {m:,} captions")


def _score_by_model(
    run: Path,
    data: Path | None,
    regions: Path | None,
    words: Path | None,
    split: str | None,
    device: str | None,
    output: Path,
) -> tuple[int, int]:
    from crossret.search.manifest import CAPTIONS, IMAGES
    from crossret.search.score_files import score_encoded
    from crossret.search.stored import StoredEncoded, is_encoded
    from crossret.terminal import progress_bar

    if data is not None:
        refuse({"regions": regions, "words": words}, f"is not needed beside {data}")
        if not is_encoded(data):
            return _score_split(run, data, "test" if split is None else split, device, output)
        regions = words = data
    refuse({"split": split}, "is for DATA that is to be encoded")
    if regions is None or words is None:
        raise ValueError(f"{run}: needs DATA beside it, or --regions and --words that it encoded")
    images, captions = StoredEncoded.of_directory(regions, IMAGES), StoredEncoded.of_directory(words, CAPTIONS)
    model, _ = load_model_of(run, device)
    with progress_bar("scoring") as progress:
        return score_encoded(model, images, captions, output, progress=progress)


def _score_split(run: Path, data: Path, split: str, device: str | None, output: Path) -> tuple[int, int]:
    import numpy as np

    from crossret.evaluation import encode_dataset, score_matrix
    from crossret.evaluation.finiteness import why_not_finite
    from crossret.files.arrays import write_blocks
    from crossret.files.features import check_output
    from crossret.search.score_files import warn_not_finite
    from crossret.terminal import progress_bar

    check_output(output, data, run)
    model, corpus = load_trained(run, data, split, device)
    with write_blocks(output, (corpus.n_images, corpus.n_captions)) as write:
        with progress_bar("encoding") as progress:
            images, captions = encode_dataset(model, corpus, progress=progress)
        with progress_bar("scoring") as progress:
            scores = score_matrix(model, images, captions, progress=progress)
        write(slice(None), slice(None), scores)
    finite = np.isfinite(scores).all(axis=1)
    if not finite.all():
        warn_not_finite(output, why_not_finite(corpus, int(finite.argmin())))
    return scores.shape


def _score_features(
    scorer: Scorer, regions: Path, words: Path, region_lengths: Path | None, word_lengths: Path | None, output: Path
) -> tuple[int, int]:
    from crossret.search.manifest import CAPTIONS, IMAGES
    from crossret.search.score_files import score_files
    from crossret.search.stored import check_scored_by_rows, side_directory
    from crossret.terminal import progress_bar

    regions, words = side_directory(regions, IMAGES), side_directory(words, CAPTIONS)
    check_scored_by_rows(words, regions)
    with progress_bar("scoring") as progress:
        return score_files(
            scorer,
            regions,
            words,
            output,
            region_lengths=region_lengths,
            word_lengths=word_lengths,
            progress=progress,
        )
